"""Do ranks that do the same compute alike? Who computes more waits for nobody, and all others wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.peers import peers
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import Job
from diagnose.trace.model import Peers

STAGES = frozenset({"send", "recv"})
"""Operations by which the stages of a pipeline hand on their work."""

MORE_WORK = 0.25
"""A rank that computes longer does the same work if its kernels have so little of that more threads (our choice)."""


@dataclass(frozen=True)
class Balance:
    """How much longer the rank that computes longest does so than those that do the same, per step."""

    rank: int
    """This one."""
    ranks: tuple[int, ...]
    longest: int
    """The rank that exceeds the mean of those that do the same by most, over all steps."""
    longest_share: float
    """Share of the steps in which it does."""
    longest_ns: int
    """Computing of that rank."""
    mean_ns: int
    """Computing of all that do the same as it, on average."""
    others_ns: int
    """Computing of the one of these, without it, that computes longest in each step."""
    same_work: bool
    """Known that the longest one's kernels are asked to do no more than the others': its device is slower."""
    always_ns: int
    """By how much that rank exceeds the mean over all steps."""
    excess_ns: int
    """By how much the longest one of each step, whichever that is, exceeds the mean."""
    step_ns: int
    on_cpu: bool
    dealt: npt.NDArray[np.float64] = field(repr=False)
    """What is left of each rank's computing if work is dealt out evenly. Shape (ranks, steps)."""
    mended: npt.NDArray[np.float64] = field(repr=False)
    """The same if the longest one computes for no longer than the others."""

    @property
    def always_share(self) -> float:
        """`always_ns` over the step."""
        return self.always_ns / max(self.step_ns, 1)

    @property
    def in_turn_share(self) -> float:
        """What now one rank, now another exceeds the mean by, over the step."""
        return (self.excess_ns - self.always_ns) / max(self.step_ns, 1)


@fact
def balance(facts: Facts) -> Balance | None:
    """Computing on all ranks in the steps that all of them use; None if the run has one rank.

    Raises Missing like peers, and if no two ranks do the same, as in a pipeline.
    """
    if _alone(facts):
        return None
    others = peers(facts)
    alike = kinds_of_ranks(others.job)
    if np.bincount(alike).max() < 2 or _hands_on_unseen(facts, others):
        raise Missing("ranks that do the same work", "Compare stages of a pipeline by hand.")
    compute, count = others.compute_ns, len(others.steps)
    mean = np.stack([compute[alike == role].mean(axis=0) for role in alike])
    several = np.bincount(alike)[alike] > 1
    excess = np.where(several[:, None], compute - mean, 0.0)
    longest = int(excess.sum(axis=1).argmax())
    rest = np.flatnonzero((alike == alike[longest]) & (np.arange(len(alike)) != longest))
    most = compute[rest].max(axis=0)
    mended = np.ones(compute.shape)
    mended[longest] = np.minimum(most / np.maximum(compute[longest], 1), 1.0)
    return Balance(
        rank=others.rank,
        ranks=others.ranks,
        longest=others.ranks[longest],
        longest_share=float((excess.argmax(axis=0) == longest).mean()),
        longest_ns=round_half_up(int(compute[longest].sum()), count),
        mean_ns=round(float(mean[longest].mean())),
        others_ns=round(float(most.mean())),
        same_work=_same_work(others, longest, rest),
        always_ns=round(float(excess[longest].mean())),
        excess_ns=round(float(excess.max(axis=0).mean())),
        step_ns=others.job.step_ns,
        on_cpu=others.job.courses[longest].on_cpu,
        dealt=np.where(several[:, None], mean / np.maximum(compute, 1), 1.0),
        mended=mended,
    )


def kinds_of_ranks(job: Job) -> IntArray:
    """Ranks of one number do the same: those of one stage of a pipeline, else all. Shape (ranks,)."""
    stages: list[tuple[int, ...]] = []
    for rank in job.ranks:
        mine = next((one for one in job.pipelines if rank in one.ranks), None)
        stages.append(tuple(k for k, held in enumerate(mine.rank_of) if held == rank) if mine is not None else ())
    numbers = {one: k for k, one in enumerate(dict.fromkeys(stages))}
    return np.array([numbers[one] for one in stages], dtype=np.int64)


def _same_work(others: Peers, longest: int, rest: IntArray) -> bool:
    if (others.threads[[longest, *rest]] <= 0).any():
        return False
    total = others.compute_ns.sum(axis=1)
    more, longer = (one[longest] / one[rest].mean() - 1.0 for one in (others.threads, total))
    return bool(abs(more) <= MORE_WORK * longer)


def _alone(facts: Facts) -> bool:
    """Whether nothing says that there are other ranks: neither the recording, nor any collective in it."""
    rank, table = facts.rank, optional(collective_table, facts)
    told = max(rank.provenance.world_size or 0, rank.context.rank.world_size if rank.context else 0)
    return rank.peers is None and told <= 1 and (table is None or not len(table.ids))


def _hands_on_unseen(facts: Facts, others: Peers) -> bool:
    """Whether ranks send to each other, and it is not known which stage of which pipeline each is."""
    sent: Sequence[str] = [name for one in others.job.courses for name in one.operations]
    if not others.job.pipelines:
        return bool(STAGES & set(sent)) or _sends(facts, sent)
    return False


SEND_RECV = "sendrecv"
"""What kernels of transfers are called, and those of an all-to-all."""


def _sends(facts: Facts, operations: Sequence[str]) -> bool:
    names = facts.rank.spans["name"].cat.categories
    exchanged = any("all_to_all" in name or "alltoall" in name for name in names)
    return SEND_RECV in operations and not exchanged
