"""What stages of a pipeline compute, and what more micro-batches would spare."""

import re

import numpy as np
import pytest

from diagnose.facts.communication.balance import Stages, stages
from diagnose.facts.communication.peers import peers
from diagnose.facts.core.base import Missing
from diagnose.replay.edits import Estimate, Even, Own, Rechunk
from diagnose.replay.job_saving import JobReplay
from diagnose.synthetic.reading import facts_of

MS = 1_000_000

# Two micro-batches, whose forward and backward passes take 10 ms each; the last one may begin later.
TWO = """
4 steps of {step}
rank 0 of 2
cpu     aten::mm 0-0.1 | device_sync 0.3-60
gpu     sgemm 1-11 @0.05 | sgemm 11-21 @0.06 | sgemm 31-41 @0.07 | sgemm 51-61 @0.08
gpu 20  nccl 11-11.1 @0.2 operation=send to={to} | nccl 21.2-31 @0.21 operation={take} from={to}
gpu 21  nccl 21-21.1 @0.22 operation=send to={to} | nccl 41-51 @0.23 operation={take} from={to}
---
4 steps of {step}
rank 1 of 2
cpu     aten::mm 0-0.1 | device_sync 0.3-60
gpu     sgemm 11.1-21 @0.05 | sgemm 21-{half} @0.06 | sgemm 31-41 @0.07 | sgemm 41-51 @0.08
gpu 20  nccl 0.3-11.1 @0.2 operation={first} {far}=0 | nccl 31-31.1 @0.21 operation=send to=0
gpu 21  nccl 21-21.1 @0.22 operation=recv from=0 | nccl 51-51.1 @0.23 operation=send to=0
"""


def synthetic(step: int = 65, half: float = 31, first: str = "recv") -> str:
    return TWO.format(step=step, half=half, to=1, take="recv", first=first, far="from" if first == "recv" else "to")


def known(text: str) -> Stages:
    found = stages(facts_of(text))
    assert found is not None
    return found


@pytest.mark.parametrize("other", [r"\g<0>", "group_size=2 group_ranks=[0,1]", ""])
def test_micro_batches_and_what_each_costs_besides_computing(other: str) -> None:
    """The other rank is recorded, is the only other member of the group, or is told by what sends and receives."""
    found = known(re.sub(r"(to|from)=\d", other, synthetic()))
    assert found.ranks == found.held == ((0,), (1,))
    assert found.compute_ns.tolist() == [40 * MS, pytest.approx(39.9 * MS)]
    # A step of 65 ms has 40 of the longest, 39.9 / 2 of the other, and three times the cost.
    assert found.cost_ns == pytest.approx((65 - 40 - 39.9 / 2) / 3 * MS)
    assert (found.micro_batches, found.uneven, found.ideal_idle_share) == (2, False, pytest.approx(1 / 3))


def test_a_place_that_computes_longer_is_levelled() -> None:
    found = known(synthetic(half=25))  # 33.9 of 40 ms
    assert found.uneven
    mean = (40 + 33.9) / 2
    assert found.even.tolist() == [[pytest.approx(mean / 40)] * 3, [pytest.approx(mean / 33.9)] * 3]


def test_ranks_that_all_begin_by_sending_are_a_ring_and_who_sends_nothing_is_in_no_pipeline() -> None:
    facts = facts_of(synthetic(first="send"))
    assert not peers(facts).job.pipelines
    assert stages(facts) is None
    assert stages(facts_of("4 steps of 100\ncpu  aten::mm 0-0.1\ngpu  sgemm 0.1-60 @0.05")) is None


def test_of_one_rank_nothing_is_known() -> None:
    with pytest.raises(Missing, match="the other ranks' recordings"):
        stages(facts_of(synthetic().split("---")[0]))


def test_more_micro_batches_spare_filling_and_cost_something_each() -> None:
    facts = facts_of(synthetic())
    replay = JobReplay(facts, peers(facts).job)
    found = known(synthetic())

    def step_ns(cost_ns: float, times: int = 2) -> int:
        edit = Rechunk(found.positions, 2, times, 1, cost_ns)
        return int(replay.step_times_ns([((edit,), Estimate.LIKELY)])[0])

    # The shorter one fills 39.9 / 2 ms; half of it with twice, a third of it with three times as many.
    assert step_ns(0) == 65 * MS - round(39.9 / 4 * MS)
    assert step_ns(MS) == 65 * MS - round((39.9 / 4 - 2) * MS)
    assert step_ns(0, times=3) == 65 * MS - round(39.9 / 3 * MS)
    assert step_ns(8 * MS) == 65 * MS  # It would lose: nothing is saved.


def test_a_late_host_is_as_early_as_others() -> None:
    rank = """
        4 steps of 100
        rank {rank} of 2
        cpu     aten::mm {late}-{late}.1 | c10d::allreduce_ {late}.2-{late}.4 | device_sync 31-99.9
        gpu     sgemm {late}.1-{end} @{late}.05
        gpu 20  allreduce {end}-90 @{late}.3 group_size=2
    """
    facts = facts_of(rank.format(rank=0, late=20, end=80) + "---" + rank.format(rank=1, late=0, end=60))
    job = peers(facts).job
    keep = np.array([[0.0] * 3, [1.0] * 3])
    (step,) = JobReplay(facts, job).step_times_ns([((Even(keep, 1.0, Own.OTHER),), Estimate.LIKELY)])
    assert step == 80 * MS  # the other rank takes 70 ms by itself, and both transfer for 10
