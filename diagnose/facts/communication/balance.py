"""Do ranks that do the same compute alike? Who computes more waits for nobody, and all others wait for it."""

from functools import reduce

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.job_times import own_time_ns
from diagnose.facts.communication.peers import peers
from diagnose.facts.communication.roles import Role, roles
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import TimeCause, round_half_up
from diagnose.facts.core.host import host_time
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import RECV, SEND, Job
from diagnose.trace.model import Context, Peers

Times = npt.NDArray[np.float64]

MOST_STEPS = 0.5  # A rank is late if it comes last in more of the steps.

MORE_WORK = 0.25
"""A rank that computes longer does the same work if others would take so little of that longer for its kernels' threads
(our choice)."""

COVERED = 0.5
"""Of the others' computing, that has to be of kinds of kernels or ops that the longest rank has, too (our choice)."""


class Late(Struct, frozen=True):
    """A rank that keeps the others waiting while it does not compute: its host, or an idle device."""

    rank: int
    ns: int  # Per step, of that rank.
    others_ns: int  # Of the one of those that do the same that takes longest for it.
    share: float  # Of the steps in which no other takes as long.
    why: TimeCause | None
    """What its host does for most of the time that the others do not need; None if that is not known."""
    keep: npt.NDArray[np.float64]
    """What is left of it if that rank takes as long as the others. Shape (ranks, steps)."""


class Balance(Struct, frozen=True):
    """How much longer the rank that computes longest does so than those that do the same, per step."""

    rank: int  # This one.
    ranks: tuple[int, ...]
    complete: bool  # These are all ranks of the job, as far as is known.
    longest: int  # The rank that exceeds the mean of those that do the same by most, over all steps.
    longest_share: float  # Share of the steps in which it does.
    longest_ns: int  # Computing of that rank.
    mean_ns: int  # Computing of all that do the same as it, on average.
    others_ns: int  # Computing of the one of these, without it, that computes longest in each step.
    same_work: bool
    """Known that the longest one's kernels or ops are asked to do no more than the others': its device is slower."""
    more_work: float | None
    """How many times as much the longest one's kernels or ops are asked to do as the others', on average."""
    shares_batch: bool  # The longest one holds a part of the same layers as those it exceeds (tensor parallelism).
    exchanges: bool  # Ranks hold experts or shards of embeddings, and send each other rows by all-to-all.
    surely: bool  # It exceeds the others by more than chance, and by more than equal ranks differ.
    always_ns: int  # By how much that rank exceeds the mean over all steps.
    excess_ns: int  # By how much the longest one of each step, whichever that is, exceeds the mean.
    own_ns: int  # What those that do the same take by themselves, on average.
    late: Late | None  # The rank whose host surely keeps the others waiting.
    step_ns: int
    on_cpu: bool
    noise: float  # Share of what a rank takes by itself by which equal ranks differ.
    dealt: npt.NDArray[np.float64]
    """What is left of each rank's computing if work is dealt out evenly. Shape (ranks, steps)."""
    evened: npt.NDArray[np.float64]
    """The same if the longest one computes for no longer than the others."""

    @property
    def holds_more(self) -> bool:
        """Ranks hold different experts or tables, and what rows ask of these may differ."""
        return self.exchanges and not self.same_work

    @property
    def shared_cores(self) -> bool:
        """Known that ranks compute on the same cores."""
        return self.noise >= SHARED_NOISE

    @property
    def in_turn(self) -> bool:
        """Now one rank, now another exceeds the mean by more than equal ranks differ."""
        return self.excess_ns - self.always_ns > self.noise * self.own_ns


@fact
def balance(facts: Facts) -> Balance | None:
    """Computing on all ranks in the steps that all of them use; None if no two do the same, or the run has one rank.

    Raises Missing like peers, if it is not known which stage of a pipeline ranks are, and if they differ by much in a
    single step.
    """
    if _alone(facts):
        return None
    others = peers(facts)
    alike = _kinds_of_ranks(others.job)
    if _hands_on_unseen(facts, others):
        raise Missing("ranks that do the same work", "Record all ranks of all stages in the same steps.")
    if np.bincount(alike).max() < 2:
        return None
    compute, count = others.compute_ns.astype(np.float64), len(others.steps)
    computing, other = own_time_ns(others.job)
    own = computing + other
    on_cpu = others.job.sequences[0].on_cpu
    usual = noise(facts, on_cpu)
    mean = _means(compute, alike)
    several = np.bincount(alike)[alike] > 1
    excess = np.where(several[:, None], compute - mean, 0.0)
    longest = int(excess.sum(axis=1).argmax())
    most = _most_of_others(compute, alike, longest)
    evened = np.ones(compute.shape)
    evened[longest] = np.minimum(most / np.maximum(compute[longest], 1), 1.0)
    own_ns = float(own[alike == alike[longest]].mean())
    more, rest, total = compute[longest] - most, _rest(alike, longest), compute.sum(axis=1)
    require_steps(more, usual * own_ns)
    more_work, longer = _more_work(others, longest, rest), float(total[longest] / max(total[rest].mean(), 1.0)) - 1.0
    return Balance(
        rank=others.rank,
        ranks=others.ranks,
        complete=max(sequence.world_size for sequence in others.job.sequences) <= len(others.ranks),
        longest=others.ranks[longest],
        longest_share=float((excess.argmax(axis=0) == longest).mean()),
        longest_ns=round_half_up(int(compute[longest].sum()), count),
        mean_ns=round(float(mean[longest].mean())),
        others_ns=round(float(most.mean())),
        same_work=more_work is not None and abs(more_work - 1.0) <= MORE_WORK * longer,
        more_work=more_work,
        shares_batch=_shares_batch(facts, others, longest),
        exchanges=any(name.startswith("alltoall") for name in _operations(others.job)),
        surely=is_certain(more) and float(more.mean()) >= usual * own_ns,
        always_ns=round(float(excess[longest].mean())),
        excess_ns=round(float(excess.max(axis=0).mean())),
        own_ns=round(own_ns),
        late=_late(facts, others, alike, own, other, usual),
        step_ns=others.job.step_ns,
        on_cpu=on_cpu,
        noise=usual,
        dealt=np.where(several[:, None], mean / np.maximum(compute, 1), 1.0),
        evened=evened,
    )


def _means(taken_ns: Times, alike: IntArray) -> Times:
    """Of the ranks that do the same as each. Shape (ranks, steps)."""
    return np.stack([taken_ns[alike == role].mean(axis=0) for role in alike])


def _rest(alike: IntArray, one: int) -> IntArray:
    return np.flatnonzero((alike == alike[one]) & (np.arange(len(alike)) != one))


def _most_of_others(taken_ns: Times, alike: IntArray, one: int) -> Times:
    found: Times = taken_ns[_rest(alike, one)].max(axis=0).astype(np.float64)
    return found


def _late(facts: Facts, others: Peers, alike: IntArray, own_ns: Times, other_ns: Times, usual: float) -> Late | None:
    """The rank that comes last because of what it does besides computing, if there surely is one.

    `own_ns`: what each rank takes by itself in each step; `other_ns`: what of that is not computing.
    """
    several = np.bincount(alike)[alike] > 1
    excess = np.where(several[:, None], other_ns - _means(other_ns, alike), 0.0)
    rank = int(excess.sum(axis=1).argmax())
    most = _most_of_others(other_ns, alike, rank)
    more = other_ns[rank] - most
    last = own_ns[rank] > _most_of_others(own_ns, alike, rank)  # Others may compute for as much longer.
    share = float((last & (more > 0)).mean())
    usual_ns = usual * float(own_ns[_rest(alike, rank)].mean())
    require_steps(more, usual_ns)
    if share <= MOST_STEPS or not is_certain(more) or more.mean() < usual_ns:
        return None
    keep = np.ones(own_ns.shape)
    keep[rank] = np.minimum(most / np.maximum(other_ns[rank], 1.0), 1.0)
    mine = others.ranks[rank] == others.rank
    return Late(
        rank=others.ranks[rank],
        ns=round(float(other_ns[rank].mean())),
        others_ns=round(float(most.mean())),
        share=share,
        why=_why(facts, float(more.mean())) if mine else None,
        keep=keep,
    )


def _why(facts: Facts, more_ns: float) -> TimeCause | None:
    """What this rank's host does for at least half of the time that it takes longer than others."""
    parts = {one: ns for one, ns in host_time(facts).parts.items() if one not in _USUAL}
    most = max(parts, key=lambda part: parts[part])
    return most if parts[most] >= 0.5 * more_ns else None


_USUAL = (TimeCause.OPS, TimeCause.LAUNCH, TimeCause.SYNC, TimeCause.OTHER_RANK, TimeCause.HOST_NOT_RECORDED)
"""What every rank's host does for long."""


def _operations(job: Job) -> set[str]:
    return {name for sequence in job.sequences for name in sequence.operations}


def _shares_batch(facts: Facts, others: Peers, longest: int) -> bool:
    """Whether this rank exchanges activations, with ranks of which the longest exceeds the others."""
    if optional(collective_table, facts) is None:
        return False
    table, role = collective_table(facts), optional(roles, facts)
    if role is None or Role.ACTIVATION not in role:
        return False
    asked = others.job.sequences[others.ranks.index(others.rank)].calls.ids
    group = others.job.group_of[others.ranks.index(others.rank)]
    used = np.unique(group[np.isin(asked, table.ids[role == Role.ACTIVATION])])
    together = {rank for one in used[used >= 0].tolist() for rank in others.job.groups[one].ranks} or set(others.ranks)
    rest = [at for at, rank in enumerate(others.ranks) if rank in together and at != longest]
    if others.ranks[longest] not in together or not rest:
        return False
    return is_certain(others.compute_ns[longest] - others.compute_ns[rest].max(axis=0))


def _kinds_of_ranks(job: Job) -> IntArray:
    """Ranks of one number do the same: those of one stage of a pipeline, else all. Shape (ranks,)."""
    stages: list[tuple[int, ...]] = []
    for rank in job.ranks:
        mine = next((pipeline for pipeline in job.pipelines if rank in pipeline.ranks), None)
        stages.append(tuple(k for k, held in enumerate(mine.rank_of) if held == rank) if mine is not None else ())
    numbers = {one: k for k, one in enumerate(dict.fromkeys(stages))}
    return np.array([numbers[stage] for stage in stages], dtype=np.int64)


def _more_work(others: Peers, longest: int, rest: IntArray) -> float | None:
    """How many times as long the others would take for what the longest is asked to do, of the kinds that all have.

    None if these are less than COVERED of their time, or their sizes are not known.
    """
    own, theirs = others.job.sequences[longest].work, [others.job.sequences[at].work for at in rest.tolist()]
    kinds = reduce(np.intersect1d, [other.kind[other.size > 0] for other in theirs], own.kind[own.size > 0])
    size, ns = np.zeros(len(kinds)), np.zeros(len(kinds))
    for other in theirs:
        at = np.searchsorted(other.kind, kinds, sorter=(order := np.argsort(other.kind)))
        size += other.size[order][at] / len(theirs)
        ns += other.ns[order][at] / len(theirs)
    asked = own.size[(order := np.argsort(own.kind))][np.searchsorted(own.kind, kinds, sorter=order)]
    if ns.sum() < COVERED * np.mean([other.ns.sum() for other in theirs]) or not len(kinds):
        return None
    return float((ns * asked / size).sum() / ns.sum())


def _alone(facts: Facts) -> bool:
    """Whether nothing says that there are other ranks: neither the recording, nor any collective in it."""
    rank, table = facts.rank, optional(collective_table, facts)
    told = max(rank.provenance.world_size or 0, rank.context.rank.world_size if rank.context else 0)
    return rank.peers is None and told <= 1 and (table is None or not len(table.ids))


def _hands_on_unseen(facts: Facts, others: Peers) -> bool:
    """Whether ranks send to each other, and it is not known which stage of which pipeline each is.

    Kernels of transfers are called like those of an all-to-all.
    """
    sent, names = _operations(others.job), facts.rank.spans["name"].cat.categories
    exchanged = any("all_to_all" in name or "alltoall" in name for name in names)
    handed_on = bool(sent & {SEND, RECV}) or ("sendrecv" in sent and not exchanged)
    return handed_on and not others.job.pipelines


_T_995 = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250)
"""Quantiles of Student's t for 1 to 9 degrees of freedom: beyond them is chance in 1 of 200 cases. One of several ranks
is the longest by chance as well, so that it must be rare."""

DEVICE_NOISE, CPU_NOISE, SHARED_NOISE = 0.05, 0.25, 0.5
"""Of what a rank takes by itself: ranks of equal work differ by as much all the time. Devices of one model do by some
per cent; of two ranks on two shared cores one took up to 0.22 longer, and 0.33 where both cores were one."""

SIBLINGS = 2  # Logical cores that may be one.


def is_certain(excess_ns: npt.NDArray[np.float64]) -> bool:
    """Whether what is positive on average is so beyond how it differs from step to step. False for a single step."""
    count = len(excess_ns)
    if count < 2:
        return False
    error = float(excess_ns.std(ddof=1)) / np.sqrt(count)
    return bool(excess_ns.mean() > _T_995[min(count - 2, len(_T_995) - 1)] * error)


def require_steps(excess_ns: npt.NDArray[np.float64], least_ns: float) -> None:
    """Raises Missing if so much is known of a single step only: it may be chance, and it may be none."""
    if len(excess_ns) < 2 and float(excess_ns.mean()) >= least_ns:
        raise Missing(
            "whether ranks differ by more than noise", "Record several steps, and call prof.step() after each."
        )


def noise(facts: Facts, on_cpu: bool) -> float:
    """Share of a rank's own time by which equal ranks differ."""
    if not on_cpu:
        return DEVICE_NOISE
    context = facts.rank.context
    return SHARED_NOISE if context is not None and cores_shared(context) else CPU_NOISE


def cores_shared(context: Context) -> bool:
    """Whether the ranks of a machine keep more of its cores busy than are surely cores of their own.

    What a rank keeps busy was measured in the steps without the profiler; in recordings that do not say, it is taken
    for as many cores as the rank has threads. False if neither is known.
    """
    cpus, alone = context.host.cpus_allowed, context.rank.unprofiled
    busy = alone.busy_cores if alone is not None and alone.cpu_ns is not None else context.rank.flags.threads
    return cpus is not None and busy is not None and cpus < SIBLINGS * busy * max(context.ranks, 1)
