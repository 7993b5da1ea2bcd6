"""Do all ranks compute alike?"""

from collections.abc import Sequence

import numpy as np
import pytest

from diagnose.facts.communication.balance import Balance, balance, cores_shared, is_certain
from diagnose.facts.core.base import Missing
from diagnose.facts.core.breakdown import TimeCause
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Flags, Host, RankManifest, Timed
from diagnose.trace.model import Context

RANK = """
5 steps of 100
rank {rank} of {ranks}
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
gpu     sgemm 0.1-{even} @0.05 in 0,2,4 blocks={blocks} | sgemm 0.1-{odd} @0.05 in 1,3 blocks={blocks}
gpu 20  allreduce {even}-90 @0.3 in 0,2,4 group_size={ranks} | allreduce {odd}-90 @0.3 in 1,3 group_size={ranks}
"""
MS = 1_000_000


def balanced(text: str) -> Balance:
    found = balance(facts_of(text))
    assert found is not None
    return found


def of(*computed: tuple[float, float], blocks: Sequence[int] = ()) -> Balance:
    """Ranks that compute until these ms in even and in odd steps, of which 1 to 4 are used."""
    synthetic = (
        RANK.format(rank=rank, ranks=len(computed), even=even, odd=odd, blocks=blocks[rank] if blocks else 100)
        for rank, (even, odd) in enumerate(computed)
    )
    return balanced("---\n".join(synthetic))


def test_one_rank_computes_longer_in_every_step() -> None:
    found = of((60, 60), (60, 60), (84, 84))
    assert (found.longest, found.longest_share) == (2, 1.0)
    assert (found.longest_ns, found.mean_ns) == (83_900_000, 67_900_000)
    assert found.always_ns == found.excess_ns == 16 * MS


def test_ranks_compute_longer_in_turn() -> None:
    found = of((60, 80), (80, 60))
    assert found.always_ns == 0
    assert found.excess_ns == 10 * MS


def test_the_longest_rank_computes_as_long_as_the_mean_if_all_do() -> None:
    found = of((60, 60), (80, 80))
    assert found.rank == 1  # the others wait for it
    assert found.dealt.tolist() == [[pytest.approx(69.9 / 59.9)] * 4, [pytest.approx(69.9 / 79.9)] * 4]


def test_a_slower_device_could_do_the_same_work_as_fast_as_the_slowest_of_the_others() -> None:
    found = of((60, 60), (70, 64), (80, 80))  # as many blocks
    assert found.same_work
    assert found.others_ns == 66_900_000  # 69.9 and 63.9 ms in turn
    left = [pytest.approx(63.9 / 79.9), pytest.approx(69.9 / 79.9)] * 2
    assert found.evened.tolist() == [[1.0] * 4, [1.0] * 4, left]


@pytest.mark.parametrize(("blocks", "same"), [(100, True), (107, True), (108, False), (130, False), (90, False)])
def test_more_work_is_told_from_a_slower_device_by_what_kernels_are_asked_to_do(blocks: int, same: bool) -> None:
    # 30 ms and 39, which is 30 % longer: a quarter of it is 7.5 % more threads.
    assert of((30.1, 30.1), (39.1, 39.1), blocks=(100, blocks)).same_work is same


def test_where_ranks_take_turns_each_step_is_dealt_out_by_itself() -> None:
    found = of((50, 80), (80, 70))  # on average 64.9 ms in even steps and 74.9 in odd ones
    even, odd = (64.9 / 79.9, 64.9 / 49.9), (74.9 / 69.9, 74.9 / 79.9)
    assert found.dealt.tolist() == [
        [pytest.approx(odd[1]), pytest.approx(even[1])] * 2,
        [pytest.approx(odd[0]), pytest.approx(even[0])] * 2,
    ]


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
    assert found.dealt.tolist() == [[pytest.approx(5 / 4)] * 3, [pytest.approx(5 / 6)] * 3]


def test_a_run_of_one_rank_has_nothing_to_compare() -> None:
    alone = "4 steps of 100\ncpu aten::mm 0-1\ngpu sgemm 0.5-90 @0.2"
    assert balance(facts_of(alone)) is None
    assert balance(facts_of(f"{alone}\nrank 0 of 1")) is None
    for more in ("rank 0 of 2", "gpu 20 allreduce 91-92 @0.3"):
        with pytest.raises(Missing, match="the other ranks' recordings"):
            balance(facts_of(f"{alone}\n{more}"))


LATE = """
4 steps of 100
rank {rank} of 2
cpu     {host} | aten::mm {late}-{late}.1 | c10d::allreduce_ {late}.2-{late}.4 | device_sync 31-99.9
gpu     sgemm {late}.1-{end} @{late}.05
gpu 20  allreduce {end}-90 @{late}.3 group_size=2
"""


def test_a_rank_whose_host_is_late_computes_no_longer() -> None:
    fetching = LATE.format(rank=0, host="load 0-18", late=20, end=80)
    found = balanced(fetching + "---" + LATE.format(rank=1, host="load 0-1", late=2, end=62))
    assert not found.surely
    assert (found.late.rank, found.late.ns, found.late.others_ns) == (0, 30_100_000, 12_100_000)
    assert (found.late.share, found.late.why) == (1.0, TimeCause.LOADER)
    assert found.late.keep.tolist() == [[pytest.approx(12.1 / 30.1)] * 3, [1.0] * 3]


def test_what_differs_from_step_to_step_as_much_as_between_ranks_is_chance() -> None:
    found = of((60, 80), (75, 70))  # 15 ms more, and 10 less
    assert not found.surely
    assert found.in_turn


@pytest.mark.parametrize(("longer", "surely"), [(62.9, False), (64.0, True)])
def test_devices_of_one_model_differ_by_some_per_cent(longer: float, surely: bool) -> None:
    assert of((60, 60), (longer, longer)).surely is surely  # 5 % of 70: both are idle for 10 ms


def test_what_takes_little_time_does_not_hide_that_one_rank_is_asked_to_do_more() -> None:
    """Of 1,000 blocks kernels take 1 ms on both ranks; those that take long have 10, or 20 where they take 60 ms."""
    rank = """
        4 steps of 100
        rank {rank} of 2
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     fill 0.1-1.1 @0.03 blocks=1000 | sgemm 1.1-{end} @0.05 blocks={blocks}
        gpu 20  allreduce {end}-90 @0.3 group_size=2
        """
    found = balanced("---".join(rank.format(rank=at, end=31.1 + 30 * at, blocks=10 + 10 * at) for at in range(2)))
    assert found.longest == 1
    assert not found.same_work
    assert found.more_work == pytest.approx((1 + 2 * 30) / (1 + 30))


ONE_STEP = """
rank {rank} of {ranks}
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
gpu     sgemm 0.1-{end} @0.05
gpu 20  allreduce {end}-90 @0.3 group_size={ranks}
"""


def test_of_a_single_step_it_is_not_known_whether_ranks_differ_by_chance() -> None:
    """20 ms of 60 may be chance; 1 ms of it is what equal devices differ by."""
    with pytest.raises(Missing, match="more than noise"):
        balance(facts_of("---".join(ONE_STEP.format(rank=at, ranks=2, end=60 + 20 * at) for at in range(2))))
    alike = balanced("---".join(ONE_STEP.format(rank=at, ranks=2, end=60 + at) for at in range(2)))
    assert not alike.surely


def test_a_rank_without_a_recording_may_take_longer_than_the_longest_recorded_one() -> None:
    assert of((60, 60), (80, 80)).complete
    synthetic = "---".join(RANK.format(rank=at, ranks=3, even=60 + 20 * at, odd=60, blocks=100) for at in range(2))
    assert not balanced(synthetic).complete


@pytest.mark.parametrize(
    ("excess", "certain"),
    [
        ([5.0], False),  # one step says nothing of its spread
        ([5.0, 5.0], True),
        ([11.1, 14.3], False),  # mean 12.7, error 1.6: 63.7 errors are needed of two
        ([29.8, 33.7, 27.7], True),  # mean 30.4, error 1.76: 17.3 of 9.9
        ([1.0, 3.0, 2.0, 4.0], False),  # mean 2.5, error 0.65: 3.9 of 5.8
        ([-5.0, -5.0, -5.0], False),
    ],
)
def test_an_excess_is_certain_beyond_its_error(excess: list[float], certain: bool) -> None:
    assert is_certain(np.array(excess)) is certain


@pytest.mark.parametrize(
    ("threads", "busy", "shared"),
    [
        (1, None, True),  # 4 ranks of a thread each: 2 cores are enough only if each core is worth two
        (None, None, False),
        (1, 0.1, False),  # they sleep: 0.4 of 2 cores are busy
        (1, 0.3, True),  # 1.2 of 2 cores that may be one
        (8, 0.1, False),
        (None, 0.3, True),
    ],
)
def test_ranks_share_cores_if_they_keep_more_than_half_of_them_busy(
    threads: int | None, busy: float | None, shared: bool
) -> None:
    cpu_ns = None if busy is None else round(busy * 100)
    alone = Timed(first_step=0, wall_ns=(90, 110), cpu_ns=cpu_ns)
    rank = RankManifest(rank=0, flags=Flags(threads=threads), unprofiled=alone)
    assert cores_shared(Context(rank, Host(cpus=2, cpus_allowed=2), ranks=4)) is shared


def test_an_unknown_number_of_cores_is_not_shared() -> None:
    assert not cores_shared(Context(RankManifest(rank=0, flags=Flags(threads=1)), Host(), ranks=4))
