"""Where a rank is held up by its collectives."""

from __future__ import annotations

from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.synthetic.reading import facts_of


def test_gaps_between_kernels_beside_a_collective_do_not_wait_for_it() -> None:
    found = collective_sequence(
        facts_of(
            """
            3 steps of 100
            rank 0 of 2
            cpu     aten::mm 0-0.1 | aten::mm 0.2-0.3 | aten::mm 0.4-0.5 | device_sync 1-99.9
            gpu     sgemm 1-40 @0.05 | sgemm 41-60 @0.25 | sgemm 80-90 @0.45
            gpu 20  allreduce 30-80 @0.3 group_size=2
            """
        )
    )
    waits = (found.lane.until_ns - found.lane.from_ns)[found.lane.waits]
    assert waits.tolist() == [20_000_000] * 2  # from 60 to 80 of each step
