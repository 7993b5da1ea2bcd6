"""Collectives on threads of the host, and DDP's buckets."""

import numpy as np
import pytest

from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.ddp import buckets
from diagnose.facts.communication.host_collectives import barriers, host_collectives, host_runs
from diagnose.facts.core.base import Facts, Missing
from diagnose.synthetic.reading import facts_of, facts_of_ranks

MS = 1_000_000
CPU = "4 steps of 100\n2 threads, 4 cores"
SMALL = 'shapes=[[[256]],[]] types=["TensorList",""]'


def of(*rows: str) -> Facts:
    return facts_of("\n".join((CPU, *rows)))


def test_each_collective_belongs_to_the_op_that_asked_for_it() -> None:
    found = host_collectives(
        of(
            f"cpu        c10d::allreduce_ 10-11 {SMALL} | c10d::allreduce_ 12-13 | c10d::barrier 50-60",
            "cpu gloo1  gloo:all_reduce 11-30",
            "cpu gloo2  gloo:all_reduce 13-20 | gloo:barrier 51-58",
        )
    )
    assert found.operation[:3].tolist() == ["allreduce_", "allreduce_", "barrier"]
    assert found.begin_ns[:3].tolist() == [10 * MS, 12 * MS, 50 * MS]
    assert found.end_ns[:3].tolist() == [30 * MS, 20 * MS, 60 * MS]  # the barrier's op returns last
    assert found.bytes[:3].tolist() == [1024, -1, -1]


def test_what_was_asked_for_before_the_recording_belongs_to_nothing() -> None:
    found = host_collectives(
        of("cpu       c10d::allreduce_ 10-11", "cpu gloo  gloo:all_reduce 1-5 in 0 | gloo:all_reduce 11-30")
    )
    assert len(found.ids) == 4
    assert found.end_ns[0] == 30 * MS


def test_small_collectives_that_are_waited_for_one_by_one_are_a_run() -> None:
    """Five of 2 ms each, 3 ms apart: from the end of the first to the end of the last are 12 ms."""
    rows = (
        f"cpu       aten::mm 0-5 | c10d::allreduce_ 10-10.5 {SMALL} x5 every 3 | aten::copy_ 12.6-12.7 x4 every 3",
        "cpu gloo  gloo:all_reduce 10.5-12.5 x5 every 3",
    )
    found = host_runs(of(*rows))
    assert (found.calls, found.unknown_calls) == (5, 0)
    assert found.later.ns == 12 * MS
    assert (found.later.own.total, found.later.waiting.total) == (0, 3 * 12 * MS)  # no other rank tells


@pytest.mark.parametrize(
    ("collectives", "between"),
    [
        (f"{SMALL} x3 every 3", "aten::copy_ 12.6-12.7 x2 every 3"),  # too few
        (f"{SMALL} x5 every 3", "aten::mm 12.6-12.7 x4 every 3"),  # work that may need the results
        ("shapes=[[[1000000]],[]] x5 every 3", "aten::copy_ 12.6-12.7 x4 every 3"),  # large
        (f"{SMALL} x5 every 1", "aten::copy_ 9.6-9.7"),  # the next is asked for before one is over
    ],
)
def test_what_is_no_run(collectives: str, between: str) -> None:
    every = collectives.split(" x")[1]
    threads = [f"cpu gloo{k}  gloo:all_reduce {10.5 + k}-{12.5 + k} in 1,2" for k in range(5)]
    gloo = threads if "every 1" in every else [f"cpu gloo  gloo:all_reduce 10.5-12.5 x{every}"]
    assert host_runs(of(f"cpu  c10d::allreduce_ 10-10.5 {collectives} | {between}", *gloo)).calls == 0


def test_collectives_of_unknown_size_are_counted() -> None:
    found = host_runs(of("cpu  c10d::allreduce_ 10-10.5 x5 every 3", "cpu gloo  gloo:all_reduce 10.5-12.5 x5 every 3"))
    assert (found.calls, found.unknown_calls) == (0, 5)


def test_a_barrier_holds_up_the_host_until_all_have_come() -> None:
    rank = CPU + "\ncpu  c10d::barrier {begin}-{end}\ncpu gloo  gloo:barrier {inside}-70"
    first, last = (rank.format(begin=begin, end=begin + 5, inside=begin + 1) for begin in (40, 60))
    alone = barriers(facts_of_ranks(first)[0])
    assert (alone.calls, alone.blocked.ns) == (1, 30 * MS)
    assert (alone.blocked.own.total, alone.blocked.waiting.total) == (0, 3 * 30 * MS)
    compared = barriers(facts_of(f"{last}\n---\n{first}"))  # of the rank that the other waits for
    assert compared.blocked.ns == 10 * MS
    assert (compared.blocked.own.total, compared.blocked.waiting.total) == (3 * 10 * MS, 0)


BACKWARD = '"autograd::engine::evaluate_function: MmBackward0"'


def test_buckets_of_a_backward_pass_on_the_host() -> None:
    """Four of 1 KB take 10, 2, 2 and 2 ms; two of the usual size would spare two of the shortest."""
    found = buckets(
        of(
            f"cpu       DistributedDataParallel.forward 0-5 | {BACKWARD} 10-15 x4 every 12",
            f"cpu       c10d::allreduce_ 11-12 {SMALL} x4 every 12",
            "cpu gloo  gloo:all_reduce 12-22 | gloo:all_reduce 24-26 x3 every 12",
        )
    )
    assert (found.calls, found.bytes, found.usual) == (4, 1024, 1)
    assert found.left == pytest.approx(1 - 3 * 2 / 16)
    assert found.host_ns == 4 * MS
    assert found.exposed_ns == 7 * MS  # from 15 to 22; the others run within ops


def test_buckets_on_the_device() -> None:
    found = buckets(
        facts_of(
            f"""
            4 steps of 100
            cpu     DistributedDataParallel.forward 0-5 | {BACKWARD} 10-15 x2 every 12 | device_sync 40-99
            cpu     c10d::allreduce_ 11-12 x2 every 12
            gpu 20  allreduce 30-40 @11.5 operation=allreduce in_elements=8000000 dtype=Float
            gpu 20  allreduce 40-60 @23.5 operation=allreduce in_elements=8000000 dtype=Float
            """
        )
    )
    assert (found.calls, found.bytes, found.usual) == (2, 32_000_000, 4)  # 1 MB, and 63 in three of 25 MB
    assert (found.left, found.exposed_ns) == (1.0, 30 * MS)


def test_reductions_that_no_backward_pass_starts_are_no_buckets() -> None:
    forward = "cpu  DistributedDataParallel.forward 0-5 | c10d::allreduce_ 11-12"
    assert buckets(of(forward, "cpu gloo  gloo:all_reduce 12-22")).calls == 0
    with pytest.raises(Missing, match="sizes of gradient buckets"):
        buckets(
            of(
                f"cpu  DistributedDataParallel.forward 0-5 | {BACKWARD} 10-15",
                "cpu  c10d::allreduce_ 11-12",
                "cpu gloo  gloo:all_reduce 12-22",
            )
        )


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
