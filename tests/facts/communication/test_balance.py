"""Do all ranks compute alike?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diagnose.facts.communication.balance import Balance, balance
from diagnose.facts.core.base import Missing
from diagnose.synthetic.reading import facts_of

RANK = """
5 steps of 100
rank {rank} of {ranks}
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
gpu     sgemm 0.1-{even} @0.05 in 0,2,4 blocks={blocks} | sgemm 0.1-{odd} @0.05 in 1,3 blocks={blocks}
gpu 20  allreduce {even}-90 @0.3 in 0,2,4 group_size={ranks} | allreduce {odd}-90 @0.3 in 1,3 group_size={ranks}
"""
MS = 1_000_000


def balanced(text: str) -> Balance:
    """Of several ranks."""
    found = balance(facts_of(text))
    assert found is not None
    return found


def of(*computed: tuple[float, float], blocks: Sequence[int] = ()) -> Balance:
    """Ranks that compute until these ms in even and in odd steps, of which 1 to 4 are used."""
    drawn = (
        RANK.format(rank=rank, ranks=len(computed), even=even, odd=odd, blocks=blocks[rank] if blocks else 100)
        for rank, (even, odd) in enumerate(computed)
    )
    return balanced("---\n".join(drawn))


def test_one_rank_computes_longer_in_every_step() -> None:
    found = of((60, 60), (60, 60), (84, 84))
    assert (found.longest, found.longest_share) == (2, 1.0)
    assert (found.longest_ns, found.mean_ns) == (83_900_000, 67_900_000)
    assert found.always_ns == found.excess_ns == 16 * MS
    assert found.always_share == pytest.approx(0.16)
    assert found.in_turn_share == 0.0


def test_ranks_compute_longer_in_turn() -> None:
    found = of((60, 80), (80, 60))
    assert found.always_ns == 0
    assert found.excess_ns == 10 * MS
    assert found.in_turn_share == pytest.approx(0.10)


def test_the_longest_rank_computes_as_long_as_the_mean_if_all_do() -> None:
    found = of((60, 60), (80, 80))
    assert found.rank == 1  # the others wait for it
    assert [part.compute_left for part in found.parts] == [pytest.approx(69.9 / 79.9)] * 4
    assert [part.meetings_left for part in found.parts] == [1.0] * 4
    assert all(len(part.compute_ids) == 1 for part in found.parts)


def test_a_slower_device_could_do_the_same_work_as_fast_as_the_slowest_of_the_others() -> None:
    found = of((60, 60), (70, 64), (80, 80))  # as many blocks
    assert found.same_work
    assert found.others_ns == 66_900_000  # 69.9 and 63.9 ms in turn
    assert [part.compute_left for part in found.mended] == [pytest.approx(63.9 / 79.9), pytest.approx(69.9 / 79.9)] * 2


@pytest.mark.parametrize(("blocks", "same"), [(100, True), (107, True), (108, False), (130, False), (90, False)])
def test_more_work_is_told_from_a_slower_device_by_what_kernels_are_asked_to_do(blocks: int, same: bool) -> None:
    # 30 ms and 39, which is 30 % longer: a quarter of it is 7.5 % more threads.
    assert of((30.1, 30.1), (39.1, 39.1), blocks=(100, blocks)).same_work is same


def test_where_this_rank_waits_it_waits_less_if_all_compute_alike() -> None:
    found = of((50, 80), (80, 70))  # rank 0 waits 30 ms in even steps, rank 1 10 ms in odd ones
    assert found.rank == 1
    # Even steps: 79.9 ms against 64.9 on average. Odd: it waits 10 of its 20 ms, and 5 are above the mean of 74.9.
    assert [part.compute_left for part in found.parts] == [1.0, pytest.approx(64.9 / 79.9)] * 2
    assert [part.meetings_left for part in found.parts] == [pytest.approx(0.75), 1.0] * 2


def test_stages_of_a_pipeline_are_not_compared() -> None:
    handing_on = [
        RANK.format(rank=rank, ranks=2, even=60, odd=60, blocks=100) + "gpu 21 nccl 91-92 @0.35 operation={}"
        for rank in range(2)
    ]
    assert balanced("\n---\n".join(handing_on).replace("{}", "all_to_allv")).ranks == (0, 1)
    with pytest.raises(Missing, match="ranks that do the same work"):
        balance(facts_of("\n---\n".join(handing_on).replace("{}", "send")))


def test_kernels_that_send_and_receive_are_of_a_pipeline_unless_ops_say_all_to_all() -> None:
    kernel = "gpu 21 ncclDevKernel_SendRecv(Args) 91-92 @0.35"
    ranks = [f"{RANK.format(rank=rank, ranks=2, even=60, odd=60, blocks=100)}{kernel}" for rank in range(2)]
    with pytest.raises(Missing, match="ranks that do the same work"):
        balance(facts_of("\n---\n".join(ranks)))
    said = [rank.replace("device_sync", "c10d::alltoall_base_ 0.5-0.6 | device_sync") for rank in ranks]
    assert balanced("\n---\n".join(said)).ranks == (0, 1)


def test_where_the_cpu_trains_ops_are_what_computes() -> None:
    rank = """
        4 steps of 100
        2 threads, 4 cores
        cpu       aten::mm 0-{end} | c10d::allreduce_ {end}-{later}
        cpu gloo  gloo:allreduce {later}-90
        """
    found = balanced("---".join(rank.format(end=end, later=end + 1) for end in (40, 60)))
    assert found.on_cpu
    assert not found.same_work  # what ops are asked to do is not compared
    assert (found.longest, found.longest_ns, found.mean_ns) == (1, 60 * MS, 50 * MS)
    assert [part.compute_left for part in found.parts] == [pytest.approx(5 / 6)] * 3


def test_a_run_of_one_rank_has_nothing_to_compare() -> None:
    alone = "4 steps of 100\ncpu aten::mm 0-1\ngpu sgemm 0.5-90 @0.2"
    assert balance(facts_of(alone)) is None
    assert balance(facts_of(f"{alone}\nrank 0 of 1")) is None
    for more in ("rank 0 of 2", "gpu 20 allreduce 91-92 @0.3"):
        with pytest.raises(Missing, match="the other ranks' recordings"):
            balance(facts_of(f"{alone}\n{more}"))
