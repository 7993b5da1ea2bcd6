"""How much exposed communication compute could hide."""

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.overlap import exposure
from diagnose.facts.communication.peers import compare, peers, waits
from diagnose.facts.core.base import Facts, Missing
from diagnose.synthetic.reading import facts_of, facts_of_ranks
from diagnose.trace.job import CollectiveSequence
from diagnose.trace.manifest import Host, RankManifest
from diagnose.trace.model import Context, Peers
from tests.drawing import Drawing

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def three_steps(compute_us: int, communication: list[tuple[int, int]]) -> Drawing:
    """Steps of 1000 us that compute from 0 on, the last us too, and communicate at these times."""
    draw = Drawing()
    for number in range(3):
        at = 1000 * number
        draw.step(number, at, at + 999).launch("gemm", (at, at + 1), (at + 1, at + compute_us))
        for k, (start, end) in enumerate(communication):
            draw.launch(NCCL, (at + 2 + 2 * k, at + 3 + 2 * k), (at + start, at + end), stream=20)
        draw.launch("last", (at + 900, at + 901), (at + 999, at + 1000))
    return draw


def test_with_enough_compute_all_could_be_hidden_and_with_little_a_part() -> None:
    found = exposure(three_steps(500, [(600, 700), (800, 900)]).facts())
    assert (found.ns, found.exposed_ns, found.compute_ns, found.share) == (200_000, 200_000, 500_000, 0.2)
    assert (found.bytes, found.hideable_ns, found.hideable_share) == (None, 200_000, 1.0)  # 0.9 of 500 us is more
    assert exposure(three_steps(100, [(300, 800)]).facts()).hideable_share == pytest.approx(0.9 * 100 / 500)


def test_what_is_hidden_already_needs_its_compute() -> None:
    found = exposure(three_steps(200, [(50, 100), (150, 650)]).facts())
    assert (found.ns, found.exposed_ns) == (550_000, 450_000)  # the first is hidden
    # The compute could hide 0.9 * 200 = 180 us, of which it hides 100: 80 more, of the second one's 500.
    assert found.hideable_share == pytest.approx(80 / 500, abs=0.002)


def test_without_communication_or_device() -> None:
    found = exposure(three_steps(500, []).facts())
    assert (found.ns, found.exposed_ns, found.share, found.hideable_share) == (0, 0, 0.0, 0.0)
    with pytest.raises(Missing, match="device work"):
        exposure(Drawing().op("aten::mm", 0, 10).facts())


RANK = """
4 steps of 100
rank {rank} of 2
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
gpu     sgemm 0.1-{computed} @0.05
gpu 20  allreduce {computed}-90 @0.3 group_size=2
"""
MS = 1_000_000


def pair(first: int, second: int) -> str:
    """Two ranks that compute until these ms of each step, and leave one all-reduce at 90."""
    return RANK.format(rank=0, computed=first) + "---\n" + RANK.format(rank=1, computed=second)


def sequences(text: str = pair(60, 80)) -> list[CollectiveSequence]:
    return [collective_sequence(facts) for facts in facts_of_ranks(text)]


def compared(text: str) -> list[Peers]:
    return of_each(*sequences(text))


def of_each(*some: CollectiveSequence) -> list[Peers]:
    found = compare(dict(enumerate(some)))
    assert found is not None
    return [found.peers(rank) for rank in range(len(some))]


def shifted(one: CollectiveSequence, ns: int) -> CollectiveSequence:
    """The same by a clock that is ahead."""
    calls = replace(one.calls, begin_ns=one.calls.begin_ns + ns, end_ns=one.calls.end_ns + ns)
    lane = replace(one.lane, from_ns=one.lane.from_ns + ns, until_ns=one.lane.until_ns + ns)
    return replace(one, calls=calls, lane=lane, bounds_ns=one.bounds_ns + ns)


def of_size(one: CollectiveSequence, members: int, world_size: int) -> CollectiveSequence:
    """The same with collectives between so many ranks; -1 unknown."""
    calls = replace(one.calls, members=np.full(len(one.calls.ids), members))
    return replace(one, calls=calls, world_size=world_size)


def test_who_comes_first_waits_for_who_comes_last() -> None:
    first, last = compared(pair(60, 80))
    assert first.steps == (1, 2, 3)  # the first recorded step is never used
    assert (first.waits_ns.tolist(), last.waits_ns.tolist()) == ([20 * MS] * 3, [0] * 3)
    assert first.waited_ns.tolist() == last.waited_ns.tolist() == [60 * MS, 0]
    assert first.compute_ns.tolist() == [[59_900_000] * 3, [79_900_000] * 3]


def test_what_is_not_waiting_is_transfer() -> None:
    waiting, awaited_for = facts_of_ranks(pair(60, 80))
    found = exposure(Facts(replace(waiting.rank, peers=compared(pair(60, 80))[0])))
    assert (found.exposed_ns, found.waiting_ns, found.hideable_ns) == (30 * MS, 20 * MS, 10 * MS)
    assert found.share == pytest.approx(0.10)  # 10 ms of transfer in steps of 100
    assert exposure(awaited_for).waiting_ns is None


def test_transfer_is_not_told_from_waiting_where_some_collectives_were_not_compared() -> None:
    for end, known in ((91, 20 * MS), (99, None)):  # of 10 and 30 ms in all-reduces; nobody waits at a broadcast's end
        more = f'group_size=2 | "ncclDevKernel_Broadcast_RING_LL()" 90-{end} @0.35'
        mixed = pair(60, 80).replace("group_size=2", more)
        waiting, _ = facts_of_ranks(mixed)
        assert exposure(Facts(replace(waiting.rank, peers=compared(mixed)[0]))).waiting_ns == known


def test_without_the_other_ranks_nobody_knows_who_waited() -> None:
    alone = facts_of(RANK.format(rank=0, computed=60))
    assert waits(alone) is None
    with pytest.raises(Missing, match="other ranks' recordings"):
        peers(alone)


def test_clocks_that_differ_are_set_by_the_ends_of_collectives() -> None:
    one, other = sequences()
    found = of_each(one, shifted(other, 7_000_000_000))
    assert [each.waits_ns.tolist() for each in found] == [[20 * MS] * 3, [0] * 3]


@pytest.mark.parametrize(("peers", "waits_ms"), [(None, 60), (2, 60), (1, 20)])
def test_clocks_of_several_machines_are_set_by_collectives(peers: int | None, waits_ms: int) -> None:
    texts = (RANK.format(rank=0, computed=60), RANK.format(rank=1, computed=80))
    ranks = [facts_of(text).rank for text in texts]
    ranks[1] = replace(ranks[1], zero_unix_ns=ranks[1].zero_unix_ns + 40 * MS)  # its clock is 40 ms ahead
    told = [Context(RankManifest(rank=k, world_size=2, peers=peers), Host(), 2) for k in (0, 1)]
    known = [collective_sequence(Facts(replace(ranks[k], context=told[k]))) for k in (0, 1)]
    longer = [replace(one, calls=replace(one.calls, end_ns=one.calls.end_ns + 100 * MS)) for one in known]
    assert of_each(*longer)[0].waits_ns.tolist() == [waits_ms * MS] * 3


def test_ranks_on_one_clock_that_leave_before_others_come_are_of_different_runs() -> None:
    one, other = (replace(sequence, machine=7) for sequence in sequences())
    found = of_each(one, shifted(other, 50 * MS))
    assert len(found[0].met) == len(found[1].met) == 0
    assert found[0].compute_ns.tolist() == [[59_900_000] * 3, [79_900_000] * 3]


def test_a_group_of_which_a_rank_is_missing_is_not_compared() -> None:
    for members, world_size in ((4, 0), (-1, 3)):
        assert not len(of_each(*(of_size(one, members, world_size) for one in sequences()))[0].met)


def test_only_steps_of_all_ranks_are_compared() -> None:
    one, other = sequences()
    first, _ = of_each(one, replace(other, numbers=(2, 3, 4)))
    assert (first.steps, len(first.met)) == ((2, 3), 2)
    for some in ({0: one, 1: replace(other, numbers=(7, 8, 9))}, {0: one}, {0: one, 1: None}, {}):
        assert compare(some) is None


def test_barriers_and_gathers_meet_but_broadcasts_do_not() -> None:
    text = pair(60, 80).replace("group_size=2", "group_size=2 operation={}")
    for operation, meets in [("_allgather_base", True), ("all_to_allv", True), ("barrier", True), ("broadcast", False)]:
        assert bool(len(compared(text.format(operation, operation))[0].met)) is meets, operation
