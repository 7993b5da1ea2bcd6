"""What do the other ranks' recordings tell of this one: who waits for whom?

A collective lasts as long as the last rank lets the others wait for it: from one rank's recording, waiting and
transferring look the same. Every rank gives its `sequence`, and gets back its `Peers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from diagnose.facts.communication.matching import join
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.spans import members
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.job import CollectiveSequence, Job, JoinPoint
from diagnose.trace.model import Peers

HOW = "Record all ranks at once, as diagnose profile does, and analyse their folder."


@dataclass(frozen=True)
class Compared:
    """Ranks side by side."""

    job: Job
    waited_ns: IntArray
    """For how long each rank stood still and waited for others, in all steps. Shape (ranks,)."""

    @property
    def awaited(self) -> int | None:
        """The rank that waits least for the others: they wait for it. None if nothing is known of waiting."""
        return self.job.ranks[int(self.waited_ns.argmin())] if self.job.join_points else None

    def peers(self, rank: int) -> Peers:
        """What the others tell of a rank."""
        job, at = self.job, self.job.ranks.index(rank)
        met = _arrivals([join_point for join_point in job.join_points if join_point.whole])
        own = met.rank == at
        rows = np.stack((job.sequences[at].calls.ids[met.call[own]], met.arrived_ns[own], met.wait_ns[own]), axis=1)
        ids, arrived_ns, wait_ns = rows[np.lexsort(rows.T[::-1])].T
        return Peers(
            rank=rank,
            ranks=job.ranks,
            steps=job.sequences[at].numbers,
            machines=np.array([sequence.machine for sequence in job.sequences], dtype=np.int64),
            devices=np.array([sequence.device for sequence in job.sequences], dtype=np.int64),
            compute_ns=np.stack([sequence.compute_ns for sequence in job.sequences]),
            waited_ns=self.waited_ns,
            met=ids,
            from_ns=arrived_ns + int(job.ahead_ns[at]),
            waits_ns=wait_ns,
            job=job,
        )


def compare(ranks: Mapping[int, CollectiveSequence | None]) -> Compared | None:
    """The ranks side by side; None if fewer than two, or no step of all of them, can be compared."""
    known = [replace(one, rank=rank) for rank, one in ranks.items() if one is not None]
    job = join(known) if len(known) == len(ranks) else None
    return None if job is None else Compared(job, _waited_ns(job))


@dataclass(frozen=True)
class _Arrivals:
    """Each rank that came to each of some join points. Arrays of shape (arrivals,)."""

    rank: IntArray
    """Position of its sequence."""
    call: IntArray
    arrived_ns: IntArray
    wait_ns: IntArray


def _arrivals(join_points: Sequence[JoinPoint]) -> _Arrivals:
    none = np.zeros(0, dtype=np.int64)
    rows = [
        (none,) * 4,
        *(
            (join_point.ranks, join_point.calls, join_point.arrived_ns, join_point.wait_ns)
            for join_point in join_points
        ),
    ]
    return _Arrivals(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def _waited_ns(job: Job) -> IntArray:
    met = _arrivals(job.join_points)
    found = []
    for one, rows in zip(job.sequences, members(met.rank, len(job.sequences)), strict=True):
        held = Intervals(one.lane.from_ns[one.lane.waits], one.lane.until_ns[one.lane.waits])
        absent = Intervals(met.arrived_ns[rows], met.arrived_ns[rows] + met.wait_ns[rows])
        found.append(intervals.intersect(intervals.union(held), intervals.union(absent)).total)
    return np.array(found, dtype=np.int64)


@fact
def peers(facts: Facts) -> Peers:
    """What the other ranks tell of this one. Raises Missing if no other was looked at, or none in the same steps."""
    if facts.rank.peers is None:
        raise Missing("the other ranks' recordings", HOW)
    return facts.rank.peers


def waits(facts: Facts) -> Intervals | None:
    """When this rank had come to a collective and the last one had not, a normal set; None if that is not known."""
    others = optional(peers, facts)
    if others is None or not len(others.met):
        return None
    start = others.from_ns - facts.rank.zero_unix_ns
    return intervals.union(Intervals(start, start + others.waits_ns))
