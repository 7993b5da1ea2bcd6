"""A rank between its collectives, where they run on a device."""

from __future__ import annotations

import numpy as np

from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.synthetic.reading import facts_of

MS = 1_000_000

QUEUED = """
2 steps of 100
rank 0 of 2
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | aten::mm 0.5-0.6 | c10d::allreduce_ 0.7-0.9 | aten::mm 1-1.1
cpu     device_sync 2-99.9
gpu     sgemm 0.1-10 @0.05 | sgemm 10-20 @0.55 | sgemm 20-60 @1.05
gpu 20  allreduce 10-45 @0.3 group_size=2 | allreduce {begin}-85 @0.8 group_size=2
"""


def between_ms(text: str) -> float:
    """From when the rank asks for the first call of a step to when it asks for the second."""
    lane = collective_sequence(facts_of(text)).lane
    asked = lane.from_ns[~lane.waits & (lane.call >= 0)]
    return round(float(asked[1] - asked[0]) / MS, 3)


def test_what_waits_for_the_collective_before_it_is_asked_for_when_its_data_is_there() -> None:
    assert between_ms(QUEUED.format(begin=45)) == 10.0  # the second sgemm ends at 20


def test_what_the_stream_was_free_for_is_asked_for_when_it_begins() -> None:
    assert between_ms(QUEUED.format(begin=55)) == 45.0


OVERLAPPED = """
2 steps of 100
rank 0 of 2
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.3 | c10d::allgather_ 0.4-0.5 | aten::mm 0.6-0.7 | aten::mm 0.8-0.9
cpu     device_sync 2-99.9
gpu     sgemm 0.1-10 @0.05 | sgemm {begin}-60 @0.65 | sgemm 60.1-90 @0.85
gpu 20  allreduce 10-70 @0.25 group_size=2
gpu 24  allgather 10-30 @0.45 group_size=2
"""


def held(text: str) -> list[tuple[str, float]]:
    """What the rank is held up by in its first used step, and for how long (ms)."""
    found = collective_sequence(facts_of(text))
    lane, calls = found.lane, found.calls
    waits = np.flatnonzero(lane.waits)
    names = [found.operations[calls.operation[call]] for call in lane.call[waits]]
    took = ((lane.until_ns - lane.from_ns)[waits] / MS).round(3).tolist()
    return list(zip(names, took, strict=True))


def test_a_rank_is_held_up_by_the_collective_that_is_over_when_it_goes_on() -> None:
    assert held(OVERLAPPED.format(begin=30.01)) == [("allgather", 20.01)]


def test_a_gap_between_kernels_while_a_collective_runs_is_no_wait_for_it() -> None:
    assert held(OVERLAPPED.format(begin=10.01)) == []
