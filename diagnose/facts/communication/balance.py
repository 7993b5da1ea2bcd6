"""Do all ranks compute alike? Who computes more waits for nobody, and all others wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.facts.communication.arrivals import peers, waits
from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.host import HostActivity, host_activities, host_threads
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.spans import host_spans, on_training_threads
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.model import Peers

STAGES = frozenset({"send", "recv"})
"""Operations, as recorded, by which the stages of a pipeline hand on their work."""

SEND_RECV = "send_recv"
"""What kernels of these are called, and those of an all-to-all."""

MORE_WORK = 0.25
"""A rank that computes longer does the same work if its kernels have so little of that more threads (our choice)."""


@dataclass(frozen=True)
class Part:
    """One used step of this rank, and how much less of it there is if no rank computes longer than it should."""

    compute_ids: IntArray
    """What computes: kernels, or ops where the CPU trains."""
    compute_left: float
    """Share of its computing that is left to it; 1 if it has no more than it should."""
    meeting_ids: IntArray
    """Collectives on the device."""
    host_pieces: Intervals
    """When its main thread did nothing but wait for collectives on the host."""
    meetings_left: float
    """Share of the time of both that is left if it need not wait for ranks that compute more."""


@dataclass(frozen=True)
class Balance:
    """How much longer the rank that computes longest does so than the others, per step."""

    rank: int
    """This one."""
    ranks: tuple[int, ...]
    longest: int
    """The rank that computes longest over all steps."""
    longest_share: float
    """Share of the steps in which it does."""
    longest_ns: int
    """Computing of that rank."""
    mean_ns: int
    """Computing of all ranks on average."""
    others_ns: int
    """Computing of the one of the others that computes longest in each step."""
    same_work: bool
    """Known that the longest one's kernels are asked to do no more than the others': its device is slower."""
    always_ns: int
    """By how much that rank exceeds the mean over all steps."""
    excess_ns: int
    """By how much the longest one of each step, whichever that is, exceeds the mean."""
    step_ns: int
    on_cpu: bool
    main_track: int
    """Of the thread that waits on the host."""
    parts: tuple[Part, ...]
    """If the work of all is dealt out evenly: then all compute for as long as they do on average."""
    mended: tuple[Part, ...]
    """If the rank that computes longest over all steps does so for no longer than any other."""

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

    Raises Missing like peers, and for stages of a pipeline, which do different work on purpose.
    """
    if _alone(facts):
        return None
    others, used = peers(facts), steps(facts)
    if _is_pipeline(facts):
        raise Missing("ranks that do the same work", "Compare stages of a pipeline by hand.")
    compute, count = others.compute_ns, len(others.steps)
    mean, total = compute.mean(axis=0), compute.sum(axis=1)
    longest = int(total.argmax())
    rest = np.delete(compute, longest, axis=0).max(axis=0)
    return Balance(
        rank=others.rank,
        ranks=others.ranks,
        longest=others.ranks[longest],
        longest_share=float((compute.argmax(axis=0) == longest).mean()),
        longest_ns=round_half_up(int(total[longest]), count),
        mean_ns=round(float(mean.mean())),
        others_ns=round(float(rest.mean())),
        same_work=_same_work(others, longest),
        always_ns=round(float(total[longest] - mean.sum()) / count),
        excess_ns=round(float((compute.max(axis=0) - mean).mean())),
        step_ns=used.mean_ns,
        on_cpu=trains_on_cpu(facts),
        main_track=host_threads(facts).main,
        parts=_parts(facts, others, mean),
        mended=_parts(facts, others, rest),
    )


def _same_work(others: Peers, longest: int) -> bool:
    if (others.threads <= 0).any():
        return False
    total = others.compute_ns.sum(axis=1)
    more, longer = (one[longest] / np.delete(one, longest).mean() - 1.0 for one in (others.threads, total))
    return bool(abs(more) <= MORE_WORK * longer)


def _alone(facts: Facts) -> bool:
    """Whether nothing says that there are other ranks: neither the recording, nor any collective in it."""
    rank, table = facts.rank, optional(collective_table, facts)
    told = max(rank.provenance.world_size or 0, rank.context.rank.world_size if rank.context else 0)
    return rank.peers is None and told <= 1 and (table is None or not len(table.ids))


def _is_pipeline(facts: Facts) -> bool:
    operations = set(collective_table(facts).operation.tolist())
    names = facts.rank.spans["name"].cat.categories
    exchanged = any("all_to_all" in name or "alltoall" in name for name in names)
    return bool(operations & STAGES) or (SEND_RECV in operations and not exchanged)


def _parts(facts: Facts, others: Peers, usual_ns: npt.NDArray[np.number[Any]]) -> tuple[Part, ...]:
    """If no rank computes for longer than this in each step. Shape of `usual_ns` (steps,)."""
    used, own = steps(facts), others.ranks.index(others.rank)
    most = others.compute_ns.max(axis=0)
    computing_ids, meeting_ids = _work(facts)
    on_host, known = host_activities(facts)[HostActivity.OTHER_RANK], waits(facts)
    found = []
    for number, computed, usual, longest in zip(others.steps, others.compute_ns[own], usual_ns, most, strict=True):
        at = used.numbers.index(number)
        low, high = int(used.bounds_ns[at]), int(used.bounds_ns[at + 1])
        rendezvous, pieces = _between(facts, meeting_ids, low, high), intervals.clip(on_host, low, high)
        there = intervals.merge(_times(facts, rendezvous), pieces)
        waited = there if known is None else intervals.intersect(there, known)
        less = min(float(longest - usual), waited.total) if computed < longest else 0.0
        found.append(
            Part(
                compute_ids=_between(facts, computing_ids, low, high),
                compute_left=min(float(usual) / max(float(computed), 1.0), 1.0),
                meeting_ids=rendezvous,
                host_pieces=pieces,
                meetings_left=1.0 - less / max(there.total, 1),
            )
        )
    return tuple(found)


def _work(facts: Facts) -> tuple[IntArray, IntArray]:
    """What computes, and the collectives on the device."""
    work = device_work(facts)
    computes = work.ids[work.work_class == WorkClass.COMPUTE]
    if trains_on_cpu(facts):
        computes = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost().ids
    return computes, work.ids[work.work_class == WorkClass.COMMUNICATION]


def _between(facts: Facts, ids: IntArray, low: int, high: int) -> IntArray:
    """Those that start in a step."""
    start = facts.rank.spans["start_ns"].to_numpy()[ids]
    return ids[(start >= low) & (start < high)]


def _times(facts: Facts, ids: IntArray) -> Intervals:
    start, dur = (facts.rank.spans[column].to_numpy()[ids] for column in ("start_ns", "dur_ns"))
    return intervals.union(Intervals(start, start + dur))
