"""What a job's step waits for: the critical path through its ranks, walked back from the end of its last step.

At a collective the path goes on with the rank that came last, at a transfer with the later side, else along the rank.
So it holds no waiting between ranks that all of them recorded: what it holds is what they wait for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from enum import Enum

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diagnose.replay.critical_path import Chain, chain
from diagnose.replay.graph import EdgeKind
from diagnose.replay.job import Joined
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import Job


class JobPathKind(str, Enum):
    """What goes on in a piece of the path."""

    COMPUTE = "compute"
    HOST = "host"  # A rank by itself, without computing.
    TRANSFER = "transfer"  # In a collective or transfer, after its last rank has come.
    UNMATCHED = "unmatched"  # In what not all ranks are known of: transfer, or waiting for the others.
    UNEXPLAINED = "unexplained"  # The recordings do not show what is waited for.


class JobPathPart(Struct, frozen=True):
    """Stretches of the path of one kind, on one rank or between the same ranks."""

    what: JobPathKind
    rank: int | None  # None of transfers, and of what ranks without a recording may have held up.
    ns: int  # Per step.
    share: float  # Of the job's step.
    operation: str = ""  # Of transfers and of what is unmatched.
    ranks: tuple[int, ...] = ()  # That transfer, in order; of "send" from, to.
    group: str = ""  # What the program says that their process group is for, such as "mesh_tp".


class JobPathStretch(Struct, frozen=True):
    """What the job waits for from one moment to another of one step."""

    from_ns: int  # Since the step began.
    ns: int
    what: JobPathKind
    rank: int | None
    operation: str = ""


MOST_STRETCHES = 400  # Of a step: shorter ones than a pixel of a wide screen are parts of their neighbours.


class JobPath(Struct, frozen=True):
    """The critical path of a job."""

    parts: tuple[JobPathPart, ...]  # By what it waits for, longest first; they add up to the job's step exactly.
    lane: tuple[JobPathStretch, ...]  # The same of the last step, in order of time.


def job_path(job: Job, joined: Joined) -> JobPath:
    """The path through all steps, and its course in the last one."""
    graph = joined.graph
    first = joined.starts[graph.observed_ns[joined.starts].argmax()]
    last = joined.ends[graph.observed_ns[joined.ends].argmax()]
    found = chain(replace(graph, bounds=np.array([first, last])))
    pieces = _pieces(job, joined, found)
    return JobPath(_parts(job, joined, pieces), _lane(job, pieces, int(graph.observed_ns[last])))


_Key = tuple[JobPathKind, int, int, str, tuple[int, ...]]
"""Kind, position of the sequence (-1 none), group, operation, ranks."""


def _parts(job: Job, joined: Joined, pieces: list[tuple[_Key, int]]) -> tuple[JobPathPart, ...]:
    """Parts of the path per step, longest first; `pieces` are ns in all steps. Rounded so that they add up."""
    total: dict[_Key, int] = defaultdict(int)
    for key, ns in pieces:
        total[key] += ns
    order = sorted(total, key=lambda key: (-total[key], key[0].value, key[1:]))
    done, parts = 0, []
    for key in order:
        before, done = done // joined.steps, done + total[key]
        if ns := done // joined.steps - before:
            kind, at, group, operation, ranks = key
            use = job.groups[group].use if group >= 0 else ""
            rank = job.sequences[at].rank if at >= 0 else None
            parts.append(JobPathPart(kind, rank, ns, ns / max(job.step_ns, 1), operation, ranks, use))
    return tuple(sorted(parts, key=lambda part: -part.ns))


def _lane(job: Job, pieces: list[tuple[_Key, int]], end_ns: int) -> tuple[JobPathStretch, ...]:
    """The part of the path, which ends at `end_ns`, in the last step; neighbours that are alike are one stretch, and
    short ones are, as what most of it is.
    """
    begin_ns = max(int(sequence.bounds_ns[-2]) for sequence in job.sequences)
    least_ns = (end_ns - begin_ns) / (MOST_STRETCHES - 1)  # Of all but the last.
    found, reached = list[Counter[_Key]](), end_ns - sum(ns for _, ns in pieces)
    for key, ns in pieces:
        inside = reached + ns - max(reached, begin_ns)
        reached += ns
        if inside <= 0:
            continue
        if not found or (found[-1].total() >= least_ns and list(found[-1]) != [key]):
            found.append(Counter())
        found[-1][key] += inside
    stretches, at_ns = list[JobPathStretch](), 0
    for one in found:
        kind, at, _, operation, _ = max(one, key=one.__getitem__)
        rank = job.sequences[at].rank if at >= 0 else None
        stretches.append(JobPathStretch(at_ns, one.total(), kind, rank, operation))
        at_ns += one.total()
    return tuple(stretches)


def _pieces(job: Job, joined: Joined, found: Chain) -> list[tuple[_Key, int]]:
    """Each stretch of the path by what it is; own time as two, of which one is computing."""
    all_edges = joined.graph.edges
    known = found.edge >= 0
    kind = np.where(known, all_edges.kind[found.edge], EdgeKind.AFTER)
    track = np.where(known, all_edges.track[found.edge], -1)
    owner = np.where(known, all_edges.owner[found.edge], -1)
    rank = np.where(track >= 0, np.searchsorted(joined.lanes, track), -1)
    whole, delayed = found.end_ns - found.start_ns, found.delay_end_ns - found.start_ns
    pieces, columns = list[tuple[_Key, int]](), (kind, rank, owner, whole, delayed)
    for edge, at, what, ns, explained in zip(*(column.tolist() for column in columns), strict=True):
        pieces += _piece(job, edge, at, what, explained)
        pieces.append(((JobPathKind.UNEXPLAINED, at, -1, "", ()), ns - explained))
    return [(key, ns) for key, ns in pieces if ns]


def _piece(job: Job, edge: int, at: int, what: int, ns: int) -> list[tuple[_Key, int]]:
    """(key, ns) of the time on an edge. `at`: position of the rank, -1 between ranks; `what`: owner of the edge."""
    if at < 0:
        key = _join_point(job, what) if edge == EdgeKind.WORK else (JobPathKind.UNEXPLAINED, -1, -1, "", ())
        return [(key, ns)]
    sequence = job.sequences[at]
    if edge == EdgeKind.WORK:
        operation = sequence.operations[int(sequence.calls.operation[what])]
        return [((JobPathKind.UNMATCHED, at, int(job.group_of[at][what]), operation, ()), ns)]
    computed = _computed(job, at, what, ns) if edge == EdgeKind.HOST else 0
    return [((JobPathKind.COMPUTE, at, -1, "", ()), computed), ((JobPathKind.HOST, at, -1, "", ()), ns - computed)]


def _join_point(job: Job, number: int) -> _Key:
    """The key of a join point: transfer if all ranks are known, else unmatched."""
    met = job.join_points[number]
    ranks: IntArray = met.ranks if met.transfer else np.sort(met.ranks)
    first = job.sequences[int(met.ranks[0])]
    operation = first.operations[int(first.calls.operation[met.calls[0]])]
    who = tuple(job.sequences[at].rank for at in ranks.tolist())
    return JobPathKind.TRANSFER if met.whole else JobPathKind.UNMATCHED, -1, met.group, operation, who


def _computed(job: Job, at: int, event: int, ns: int) -> int:
    """How much of a stretch of a rank's own time it computes: evenly, where the stretch is a part of one."""
    lane, sequence = job.sequences[at].lane, job.sequences[at]
    if event < len(lane.own_ns):
        own, compute = int(lane.own_ns[event]), int(lane.compute_ns[event])
    else:
        own, compute = ns, int(sequence.compute_ns.sum() - lane.compute_ns.sum())
    return min(max(compute, 0) * min(ns, own) // own, ns) if own > 0 else 0
