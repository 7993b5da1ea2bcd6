"""What do the other ranks' recordings tell of this one: who waits for whom?

A collective lasts as long as the last rank lets the others wait for it: from one rank's recording, waiting and
transferring look the same. Every rank gives its `course`, and gets back its `Peers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from diagnose.facts.communication.meetings import join
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.trace import intervals
from diagnose.trace.intervals import Intervals
from diagnose.trace.job import Course, Job, Meeting
from diagnose.trace.model import Peers

HOW = "Record all ranks at once, as diagnose profile does, and analyse their folder."


def compare(ranks: Mapping[int, Course | None]) -> dict[int, Peers]:
    """What the others tell of each rank; empty if fewer than two ranks, or no step of all of them, can be compared."""
    known = [replace(one, rank=rank) for rank, one in ranks.items() if one is not None]
    job = join(known) if len(known) == len(ranks) else None
    if job is None:
        return {}
    waited_ns = waited(job)
    compute_ns = np.stack([one.compute_ns for one in job.courses])
    return {one.rank: _peers(job, at, compute_ns, waited_ns) for at, one in enumerate(job.courses)}


def waited(job: Job) -> intervals.IntArray:
    """For how long each rank stood still and waited for others, in all steps. Shape (ranks,)."""
    rows = [(at, start, start + ns) for one in job.meetings for at, start, ns in _of_each(one) if ns]
    rank, start, end = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    found = []
    for at, one in enumerate(job.courses):
        held = Intervals(one.lane.from_ns[one.lane.waits], one.lane.until_ns[one.lane.waits])
        absent = intervals.union(Intervals(start[rank == at], end[rank == at]))
        found.append(intervals.intersect(intervals.union(held), absent).total)
    return np.array(found, dtype=np.int64)


def _of_each(one: Meeting) -> Iterable[tuple[int, int, int]]:
    """(position of the rank, when it arrived, for how long it waited for the last one)."""
    return zip(one.ranks.tolist(), one.arrived_ns.tolist(), one.wait_ns.tolist(), strict=True)


def _peers(job: Job, at: int, compute_ns: intervals.IntArray, waited_ns: intervals.IntArray) -> Peers:
    own = job.courses[at]
    rows = [
        (int(own.calls.ids[call]), int(began) + int(job.ahead_ns[at]), int(waits))
        for met in job.meetings
        if met.whole
        for rank, call, began, waits in zip(met.ranks, met.calls, met.arrived_ns, met.wait_ns, strict=True)
        if rank == at
    ]
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3)
    return Peers(
        rank=own.rank,
        ranks=job.ranks,
        steps=own.numbers,
        machines=np.array([one.machine for one in job.courses], dtype=np.int64),
        devices=np.array([one.device for one in job.courses], dtype=np.int64),
        compute_ns=compute_ns,
        waited_ns=waited_ns,
        met=table[:, 0],
        from_ns=table[:, 1],
        waits_ns=table[:, 2],
        job=job,
    )


def awaited(others: Mapping[int, Peers]) -> int | None:
    """The rank that waits least for the others: they wait for it. None if nothing is known of waiting."""
    known = next((one for one in others.values() if one.job.meetings), None)
    return None if known is None else known.ranks[int(known.waited_ns.argmin())]


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
