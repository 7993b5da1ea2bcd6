"""Where a step goes while nothing is computed, on drawings whose answers follow by hand."""

from msgspec.structs import replace

from diagnose.contracts.finding import OutcomeKind
from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.peers import compare
from diagnose.facts.communication.roles import Role
from diagnose.facts.core.base import Facts
from diagnose.facts.core.breakdown import TimeCause, breakdown
from diagnose.facts.device.lost_time import Lost, lost_time, together
from diagnose.pipeline import present
from diagnose.synthetic.reading import facts_of, facts_of_ranks
from tests.rules import built_in

STAGES = """
    4 steps of 100
    rank 0 of 2
    cpu     aten::mm 0-0.1 | c10d::recv_ 0.2-0.4 | aten::mm 0.5-0.6 | device_sync 1-95.01
    gpu     sgemm 0.1-40 @0.05 | sgemm 80-90 @0.55 | h2d 92-95 @0.8 pinned 64MB
    gpu 20  nccl 40-80 @0.3 operation=recv from=1
"""


def of(facts: Facts) -> dict[TimeCause, Lost]:
    return {one.cause: one for one in lost_time(facts)}


def test_each_moment_without_compute_has_one_owner() -> None:
    facts = facts_of(STAGES)
    found, parts = of(facts), breakdown(facts)
    recv, copy = found[TimeCause.COMMUNICATION], found[TimeCause.COPY]
    assert (recv.what, recv.role, recv.ns, recv.share, recv.calls) == ("recv", Role.STAGE, 40_000_000, 0.4, 3)
    assert (copy.ns, copy.calls) == (3_000_000, 3)
    assert sum(one.ns for one in found.values()) == parts.step_ns - parts.compute_ns


def test_idle_time_after_a_wait_is_the_waiting_calls() -> None:
    facts = facts_of("4 steps of 100\ncpu aten::mm 40-41 | device_sync 42-99.01\ngpu sgemm 40.01-99 @40")
    sync = of(facts)[TimeCause.SYNC]
    assert sync.ns == 41_010_000
    assert facts.rank.spans["name"].iloc[sync.ids].unique().tolist() == ["cudaDeviceSynchronize"]


def test_python_at_a_line_is_not_told_by_cause() -> None:
    drawing = (
        "4 steps of 100\ncpu {}aten::mm 40-41 | aten::mm 60-60.1\ngpu sgemm 40.02-60 @40.01 | sgemm 60.05-99 @60.01"
    )
    assert of(facts_of(drawing.format("")))[TimeCause.PYTHON].ns == 41_020_000
    assert TimeCause.PYTHON not in of(facts_of(drawing.format('"train.py(30): make_mask" 0-99 | ')))


def test_who_is_waited_for_is_the_rank_that_comes_last() -> None:
    alone, _ = drawn = facts_of_ranks(TWO_RANKS)
    others = compare({at: collective_sequence(one) for at, one in enumerate(drawn)})
    facts = Facts(replace(alone.rank, peers=others.peers(0)))
    (lost,) = (one for one in lost_time(facts) if one.cause is TimeCause.COMMUNICATION)
    ((rank, ns),) = lost.awaited
    assert rank == 1
    assert abs(ns - 60_000_000) < 1_000_000


TWO_RANKS = """
    4 steps of 100
    rank 0 of 2
    cpu     aten::mm 0-0.1 | c10d::broadcast_ 0.2-0.4 | device_sync 1-99.9
    gpu     sgemm 0.1-30 @0.05
    gpu 20  nccl 30-99.5 @0.3 operation=allreduce group_size=2
    ---
    4 steps of 100
    rank 1 of 2
    cpu     aten::mm 0-0.1 | c10d::broadcast_ 0.2-0.4 | device_sync 1-99.9
    gpu     sgemm 0.1-90 @0.05
    gpu 20  nccl 90-99.5 @0.3 operation=allreduce group_size=2
"""


def test_start_up_is_few_long_pieces() -> None:
    start_up = "cpu aten::mm 0-1 | aten::mm 50-51\ngpu sgemm 1-2 @0.5 | sgemm 51-52 @50.5"
    small = "cpu aten::mm 0-0.1 x50 every 1\ngpu sgemm 0.1-0.5 @0.05 x50 every 1"
    assert [[one.recurs for one in lost_time(facts_of(text)) if one.share > 0.1] for text in (start_up, small)] == [
        [False],
        [True],
    ]


def test_small_kinds_add_up() -> None:
    facts = facts_of(STAGES)
    recv = of(facts)[TimeCause.COMMUNICATION]
    both = together([recv, recv])
    assert (both.ns, both.calls, both.what, both.role) == (2 * recv.ns, 2 * recv.calls, "", None)
    assert together([]) is None


def test_the_finding_is_left_out_where_another_explains_it() -> None:
    facts = facts_of("4 steps of 100\ncpu aten::mm 40-41 | device_sync 42-99.01\ngpu sgemm 40.01-99 @40")
    alone = present(facts, [built_in("unexplained_time")]).findings
    assert [one.rule for one in alone] == ["unexplained_time"]
    both = present(facts, [built_in("unexplained_time"), built_in("explicit_synchronisation")])
    assert [one.rule for one in both.findings] == ["explicit_synchronisation"]
    assert both.outcomes[0].outcome is OutcomeKind.CLEAN
