"""Do ranks with the same work compute for equally long, and stages of a pipeline? All others wait for the longest."""

from functools import reduce
from itertools import pairwise

import numpy as np
from msgspec import Struct

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.job_times import SHARED_NOISE, Times, is_certain, noise, own_time_ns, require_steps
from diagnose.facts.communication.peers import peers
from diagnose.facts.communication.roles import Role, roles
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import TimeCause, round_half_up
from diagnose.facts.core.host import host_time
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import RECV, SEND, Job, Pipeline, Work
from diagnose.trace.model import Peers

MOST_STEPS = 0.5  # Share of the steps; a rank that comes last in more of them is late.
MORE_WORK = 0.25
"""Work counts as the same where the sizes of the longest rank's kernels or ops explain at most this share of its longer
computing (our choice)."""
COVERED = 0.5  # Share of the others' computing that must be in kinds of work that the longest rank has (our choice).


class LateHost(Struct, frozen=True):
    """A rank that keeps the others waiting while it does not compute: its host, or an idle device."""

    rank: int
    ns: int  # Its own time without computing, per step.
    others_ns: int  # The same of whichever other rank with the same work takes longest in each step; mean.
    share: float  # Of the steps in which its own time, and that without computing, are the longest.
    why: TimeCause | None  # What fills at least half of its excess; None unknown, as of all but the facts' own rank.
    keep: Times  # Factor on each rank's own time without computing if it takes as long as `others_ns`. (ranks, steps)


class Balance(Struct, frozen=True):
    """By how much the rank that computes longest exceeds the ranks with the same work. Times are means per step."""

    complete: bool  # All ranks of the job were recorded, as far as is known.
    longest: int  # The rank that exceeds the mean of those with the same work by most, over all steps.
    longest_share: float  # Share of the steps in which it does.
    longest_ns: int  # Computing of that rank.
    mean_ns: int  # Computing of all ranks with the same work, on average.
    others_ns: int  # Computing of whichever other one of these computes longest in each step.
    same_work: bool  # The longest one's kernels or ops surely do no more than the others'; False if unknown.
    more_work: float | None  # How many times as long the others would take for the sizes of its work; None unknown.
    shares_batch: bool  # The longest one holds a part of the same layers as those it exceeds (tensor parallelism).
    exchanges: bool  # Ranks hold experts or shards of embeddings, and send each other rows by all-to-all.
    surely: bool  # It exceeds the others by more than chance, and by more than equal ranks differ.
    always_ns: int  # By how much that rank exceeds the mean over all steps.
    excess_ns: int  # By how much the longest one of each step, whichever that is, exceeds the mean.
    own_ns: int  # Own time (computing or on the host, not held up by others) of all with the same work, on average.
    late: LateHost | None  # The rank whose host surely keeps the others waiting.
    on_cpu: bool
    noise: float  # Share of a rank's own time by which equal ranks differ.
    balanced_load: Times  # Factor on each rank's computing if work is dealt out evenly. Shape (ranks, steps).
    without_straggler: Times  # The same if the longest one computes for no longer than the others.

    @property
    def holds_more(self) -> bool:
        """Whether ranks may have different amounts of work, as they hold different experts or shards of embeddings."""
        return self.exchanges and not self.same_work

    @property
    def shared_cores(self) -> bool:
        """Whether ranks are known to compute on the same cores."""
        return self.noise >= SHARED_NOISE

    @property
    def in_turn(self) -> bool:
        """Whether now one rank, now another exceeds the mean by more than equal ranks differ."""
        return self.excess_ns - self.always_ns > self.noise * self.own_ns


@fact
def balance(facts: Facts) -> Balance | None:
    """Computing on all ranks in the steps that all of them use; None if no two do the same, or the run has one rank.

    Raises Missing like peers, if it is not known which stage of a pipeline ranks are, and if ranks differ by much but
    only a single step is known.
    """
    if _is_only_rank(facts):
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
    excess = compute - mean
    longest = int(excess.sum(axis=1).argmax())
    most = _most_of_others(compute, alike, longest)
    without_straggler = np.ones(compute.shape)
    without_straggler[longest] = np.minimum(most / np.maximum(compute[longest], 1), 1.0)
    own_ns = float(own[alike == alike[longest]].mean())
    more, rest, total = compute[longest] - most, _rest(alike, longest), compute.sum(axis=1)
    require_steps(more, usual * own_ns)
    more_work, longer = _more_work(others, longest, rest), float(total[longest] / max(total[rest].mean(), 1.0)) - 1.0
    return Balance(
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
        on_cpu=on_cpu,
        noise=usual,
        balanced_load=mean / np.maximum(compute, 1),
        without_straggler=without_straggler,
    )


def _means(taken_ns: Times, alike: IntArray) -> Times:
    """For each rank the mean over all ranks with the same work, itself included. Shape (ranks, steps)."""
    return np.stack([taken_ns[alike == role].mean(axis=0) for role in alike])


def _rest(alike: IntArray, one: int) -> IntArray:
    """Positions of the other ranks with the same work as the rank at position `one`."""
    return np.flatnonzero((alike == alike[one]) & (np.arange(len(alike)) != one))


def _most_of_others(taken_ns: Times, alike: IntArray, one: int) -> Times:
    """The longest time of `_rest` in each step. Shape (steps,)."""
    most: Times = taken_ns[_rest(alike, one)].max(axis=0)
    return most


def _late(
    facts: Facts, others: Peers, alike: IntArray, own_ns: Times, other_ns: Times, usual: float
) -> LateHost | None:
    """The rank that comes last in most steps because of what it does besides computing; None if none surely does.

    `own_ns`: what each rank takes by itself in each step; `other_ns`: what of that is not computing.
    """
    rank = int((other_ns - _means(other_ns, alike)).sum(axis=1).argmax())
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
    return LateHost(
        rank=others.ranks[rank],
        ns=round(float(other_ns[rank].mean())),
        others_ns=round(float(most.mean())),
        share=share,
        why=_why(facts, float(more.mean())) if others.ranks[rank] == others.rank else None,
        keep=keep,
    )


def _why(facts: Facts, more_ns: float) -> TimeCause | None:
    """The activity that this rank's host spends longest on; None if that is less than half of its excess, `more_ns`."""
    parts = {one: ns for one, ns in host_time(facts).parts.items() if one not in _USUAL}
    most = max(parts, key=lambda part: parts[part])
    return most if parts[most] >= 0.5 * more_ns else None


_USUAL = (TimeCause.OPS, TimeCause.LAUNCH, TimeCause.SYNC, TimeCause.OTHER_RANK, TimeCause.HOST_NOT_RECORDED)
"""What every rank's host does for long, and which is no reason to be late."""


def _operations(job: Job) -> set[str]:
    return {name for sequence in job.sequences for name in sequence.operations}


def _shares_batch(facts: Facts, others: Peers, longest: int) -> bool:
    """Whether the longest is one of the ranks that exchange activations with this one, and surely exceeds them."""
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
    """A number per rank, equal for the same work: that of ranks with the same pipeline stages, else of all. (ranks,)"""
    stages_of = {rank: _stages_of(pipeline, rank) for pipeline in job.pipelines for rank in pipeline.ranks}
    numbers: dict[tuple[int, ...], int] = {}
    return np.array([numbers.setdefault(stages_of.get(rank, ()), len(numbers)) for rank in job.ranks], dtype=np.int64)


def _stages_of(pipeline: Pipeline, rank: int) -> tuple[int, ...]:
    return tuple(stage for stage, holder in enumerate(pipeline.rank_of) if holder == rank)


def _more_work(others: Peers, longest: int, rest: IntArray) -> float | None:
    """Factor on the others' time if their work had the sizes of the longest rank's, over kinds that all have.

    None if these are less than COVERED of their time, or their sizes are not known.
    """
    own, theirs = others.job.sequences[longest].work, [others.job.sequences[at].work for at in rest.tolist()]
    kinds = reduce(np.intersect1d, [other.kind[other.size > 0] for other in theirs], own.kind[own.size > 0])
    size, ns = np.mean([_of_kinds(other, kinds) for other in theirs], axis=0)
    if ns.sum() < COVERED * np.mean([other.ns.sum() for other in theirs]) or not len(kinds):
        return None
    return float((ns * _of_kinds(own, kinds)[0] / size).sum() / ns.sum())


def _of_kinds(work: Work, kinds: IntArray) -> Times:
    """(size, ns) of these kinds, all of which `work` has, per step. Shape (2, kinds)."""
    order = np.argsort(work.kind)
    at = order[np.searchsorted(work.kind[order], kinds)]
    return np.stack((work.size[at], work.ns[at]))


def _is_only_rank(facts: Facts) -> bool:
    """Whether nothing says that there are other ranks: neither the recording, nor any collective in it."""
    rank, table = facts.rank, optional(collective_table, facts)
    told = max(rank.provenance.world_size or 0, rank.context.rank.world_size if rank.context else 0)
    return rank.peers is None and told <= 1 and (table is None or not len(table.ids))


def _hands_on_unseen(facts: Facts, others: Peers) -> bool:
    """Whether ranks send to each other, and it is not known which stage of which pipeline each is.

    NCCL gives kernels of transfers and of an all-to-all one name: where an all-to-all runs, that name says nothing.
    """
    sent, names = _operations(others.job), facts.rank.spans["name"].cat.categories
    exchanged = any("all_to_all" in name or "alltoall" in name for name in names)
    handed_on = bool(sent & {SEND, RECV}) or ("sendrecv" in sent and not exchanged)
    return handed_on and not others.job.pipelines


class Stages(Struct, frozen=True):
    """Pipelines of one shape. Ranks of a place, one of each pipeline, hold the same stages. Arrays: shape (places,)."""

    ranks: tuple[tuple[int, ...], ...]  # Of each place, one of each pipeline.
    held: tuple[tuple[int, ...], ...]  # Stages of each place.
    positions: tuple[tuple[int, ...], ...]  # By pipeline and place, where its rank is among those of the job.
    compute_ns: IntArray  # Per step, of the quickest rank of each place: another that takes longer is a straggler.
    micro_batches: int  # Per step.
    cost_ns: float  # What each micro-batch of a step costs besides computing: what `Rechunk` calls o. At least 0.
    step_ns: int
    uneven: bool  # Surely one place computes longer than all of them do on average.
    even: Times  # Factor on each rank's computing if all places compute alike. Shape (ranks, steps).

    @property
    def longest(self) -> int:
        """The place that computes longest."""
        return int(self.compute_ns.argmax())

    @property
    def stages_per_rank(self) -> int:
        """Stages of the place that holds most."""
        return max(len(one) for one in self.held)

    @property
    def idle_share(self) -> float:
        """Share of the step in which a rank does not compute, on average over the places."""
        return 1.0 - float(self.compute_ns.mean()) / max(self.step_ns, 1)

    @property
    def ideal_idle_share(self) -> float:
        """The same of p equal places of v stages, m micro-batches and no other cost: (p - 1) / v of m + (p - 1) / v."""
        filling = (len(self.ranks) - 1) / self.stages_per_rank
        return filling / (self.micro_batches + filling)


@fact
def stages(facts: Facts) -> Stages | None:
    """The stages in the steps that all ranks use; None if this rank, or no rank, hands anything on.

    Also None if it is not known which rank is which stage. Raises Missing like peers, without marked steps, if it is
    not known into how many micro-batches a step is split, and if places differ by much but only one step is known.
    """
    table, moving = optional(collective_table, facts), (SEND, RECV, "sendrecv", "coalesced")  # Batches are one kernel.
    if table is None or not np.isin(table.plain, moving).any():
        return None
    job = peers(facts).job
    if not job.pipelines:
        return None
    if job.window:
        raise Missing("marked steps", "Call prof.step() after each step.")
    held = [tuple(_stages_of(one, rank) for rank in one.ranks) for one in job.pipelines]
    counts = {_micro_batches(job, one) for one in job.pipelines}
    if len(set(held)) != 1 or len(counts) != 1 or not min(counts):
        raise Missing("the micro-batches of a pipeline", "Record all ranks of all stages in the same steps.")
    positions = tuple(tuple(job.ranks.index(rank) for rank in one.ranks) for one in job.pipelines)
    compute = peers(facts).compute_ns.astype(np.float64)
    of_place = np.stack([compute[list(position)] for position in positions]).min(axis=0)
    mean = of_place.mean(axis=1)
    even = np.ones(compute.shape)
    for one in positions:
        even[list(one)] = (mean.mean() / np.maximum(mean, 1.0))[:, None]
    longest, count = int(mean.argmax()), counts.pop()
    excess = of_place[longest] - of_place.mean(axis=0)
    usual_ns = noise(facts, job.sequences[0].on_cpu) * float(mean.mean())
    require_steps(excess, usual_ns)
    return Stages(
        ranks=tuple(zip(*(one.ranks for one in job.pipelines), strict=True)),
        held=held[0],
        positions=positions,
        compute_ns=np.rint(mean).astype(np.int64),
        micro_batches=count,
        cost_ns=_cost_ns(mean, job.step_ns, count, max(len(one) for one in held[0])),
        step_ns=job.step_ns,
        uneven=is_certain(excess) and float(excess.mean()) >= usual_ns,
        even=even,
    )


def _micro_batches(job: Job, pipeline: Pipeline) -> int:
    """Micro-batches per step; 0 unknown. What the first rank sends to the second, over how often it does so for one."""
    first, second = pipeline.rank_of[0], pipeline.rank_of[1]
    pairs = list(pairwise(pipeline.rank_of))
    for_one = pairs.count((first, second)) + pairs.count((second, first))
    sequence = job.sequences[job.ranks.index(first)]
    sends = np.array([name == SEND for name in sequence.operations], dtype=bool)[sequence.calls.operation]
    sent = sends & (pipeline.peers_of(sequence) == second) & (sequence.calls.step >= 0)
    count, rest = divmod(int(sent.sum()), for_one * len(sequence.numbers))
    return 0 if rest else count


def _cost_ns(compute_ns: Times, step_ns: int, count: int, stages_per_rank: int) -> float:
    """Per micro-batch: what is left of the step after computing and filling, over m + p - 1 (see `Stages`)."""
    filling = (compute_ns.sum() - compute_ns.max()) / stages_per_rank / count
    return max(step_ns - float(compute_ns.max()) - float(filling), 0.0) / (count + len(compute_ns) - 1)
