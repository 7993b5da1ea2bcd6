"""The stages of pipelines: what each computes, and how many micro-batches go through them."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.communication.balance import is_certain, noise, require_steps
from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.peers import peers
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import RECV, SEND, CollectiveSequence, Job, Pipeline


class Stages(Struct, frozen=True):
    """Pipelines of one shape. Arrays of shape (places,): ranks of one place hold the same stages."""

    ranks: tuple[tuple[int, ...], ...]  # Of each place, one of each pipeline.
    held: tuple[tuple[int, ...], ...]  # Stages of each place.
    positions: tuple[tuple[int, ...], ...]  # Of each pipeline, where its ranks are among those of the job.
    compute_ns: IntArray
    """Per step, of the quickest rank of each place: one that takes longer for the same is a straggler."""
    micro_batches: int  # Per step.
    cost_ns: float  # Per micro-batch and step, besides computing: what `Rechunk` calls o. At least 0.
    step_ns: int
    uneven: bool  # Surely one place computes longer than all of them do on average.
    even: npt.NDArray[np.float64]
    """What is left of each rank's computing if all places compute alike. Shape (ranks, steps)."""

    @property
    def longest(self) -> int:
        """The place that computes longest."""
        return int(self.compute_ns.argmax())

    @property
    def stages_per_rank(self) -> int:
        """At most."""
        return max(len(one) for one in self.held)

    @property
    def idle_share(self) -> float:
        """Of the step in which a rank does not compute, on average."""
        return 1.0 - float(self.compute_ns.mean()) / max(self.step_ns, 1)

    @property
    def ideal_idle_share(self) -> float:
        """Of equal stages, where nothing takes time but computing: (p - 1) / v of m + (p - 1) / v."""
        filling = (len(self.ranks) - 1) / self.stages_per_rank
        return filling / (self.micro_batches + filling)


@fact
def stages(facts: Facts) -> Stages | None:
    """The stages in the steps that all ranks use; None if this rank, or no rank, hands anything on.

    Raises Missing like peers, if it is not known which rank is which stage, and if they differ by much in a single
    step.
    """
    if not _hands_on(facts):
        return None
    job = peers(facts).job
    laid = job.pipelines
    if not laid:
        return None
    if job.window:
        raise Missing("marked steps", "Call prof.step() after each step.")
    held = [tuple(tuple(k for k, rank in enumerate(one.rank_of) if rank == mine) for mine in one.ranks) for one in laid]
    counts = {_micro_batches(job, one) for one in laid}
    if len(set(held)) != 1 or len(counts) != 1 or not min(counts):
        raise Missing("the micro-batches of a pipeline", "Record all ranks of all stages in the same steps.")
    positions = tuple(tuple(job.ranks.index(rank) for rank in one.ranks) for one in laid)
    compute = np.stack([sequence.compute_ns for sequence in job.sequences]).astype(np.float64)
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
        ranks=tuple(zip(*(one.ranks for one in laid), strict=True)),
        held=held[0],
        positions=positions,
        compute_ns=np.rint(mean).astype(np.int64),
        micro_batches=count,
        cost_ns=_cost_ns(mean, job.step_ns, count, max(len(one) for one in held[0])),
        step_ns=job.step_ns,
        uneven=is_certain(excess) and float(excess.mean()) >= usual_ns,
        even=even,
    )


def _hands_on(facts: Facts) -> bool:
    table = optional(collective_table, facts)
    if table is None:
        return False
    return bool(np.isin(table.plain, _TRANSFERS).any())


_TRANSFERS = (SEND, RECV, "sendrecv", "coalesced")  # Several of a batch are recorded as one.


def _micro_batches(job: Job, laid: Pipeline) -> int:
    """Micro-batches a step; 0 unknown. What the first rank sends to the second, over how often it does for one."""
    first, second = laid.rank_of[0], laid.rank_of[1]
    pairs = list(zip(laid.rank_of[:-1], laid.rank_of[1:], strict=True))
    for_one = pairs.count((first, second)) + pairs.count((second, first))
    sequence = job.sequences[job.ranks.index(first)]
    sent = _sent(sequence, laid, second)
    count, rest = divmod(sent, for_one * len(sequence.numbers))
    return 0 if rest else count


def _sent(one: CollectiveSequence, laid: Pipeline, to: int) -> int:
    names = np.array([name == SEND for name in one.operations], dtype=bool)[one.calls.operation]
    return int((names & (laid.peers_of(one) == to) & (one.calls.step >= 0)).sum())


def _cost_ns(compute_ns: npt.NDArray[np.float64], step_ns: int, count: int, stages_per_rank: int) -> float:
    """What is left of the step after computing and filling, over m + p - 1."""
    filling = (compute_ns.sum() - compute_ns.max()) / stages_per_rank / count
    return max(step_ns - float(compute_ns.max()) - float(filling), 0.0) / (count + len(compute_ns) - 1)
