"""What if, for a whole job: ranks joined where they communicate, so that a change on one rank moves the others.

Each rank is a chain of its own stretches between calls. A collective of all begins on each rank when that rank has
come, and is over on all some transfer time after the last one has; a transfer needs its two ranks. Who waits for a
call goes on when it is over. All of that are edges of one graph (`replay.graph`), so that a replay is one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.replay import graph as graphs
from diagnose.replay import simulate
from diagnose.replay.graph import EdgeKind, Edges, Graph, edges
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import Course, Job

MOST_EARLY_NS = 20_000_000
"""A rank may be recorded to leave a collective so much before the last one came: spans of gloo end some ms early where
a machine is busy, and clocks differ."""


@dataclass(frozen=True)
class JobGraph:
    """The joined graph, and where the parts of each rank stand in it."""

    graph: Graph
    structure: simulate.Structure
    own_edge: tuple[IntArray, ...]
    """Of each rank, the edge of each event's own time; one more for what comes after the last. Positions in edges."""
    transfer_edge: tuple[IntArray, ...]
    """Of each meeting, the edge of each rank's transfer."""
    starts: IntArray
    """Point where each rank begins."""
    ends: IntArray
    steps: int


@dataclass(frozen=True)
class _Laid:
    """Where the points of one rank begin: its events, then arrival and end of each call."""

    event: int
    events: int
    arrive: int
    over: int


def join(job: Job) -> JobGraph:
    """The graph of a job's ranks."""
    laid, count = list[_Laid](), 0
    for one in job.courses:
        events, calls = len(one.lane.call) + 2, len(one.calls.ids)
        laid.append(_Laid(count, events, count + events, count + events + calls))
        count += events + 2 * calls
    first_meeting = count
    count += len(job.meetings)
    observed = np.zeros(count, dtype=np.int64)
    parts: list[Edges] = []
    arrived = [one.calls.begin_ns.copy() for one in job.courses]
    over = [one.calls.end_ns.copy() for one in job.courses]
    alone = [np.ones(len(one.calls.ids), dtype=bool) for one in job.courses]
    for met in job.meetings:
        for at, call, came, ended in zip(met.ranks, met.calls, met.arrived_ns, met.ended_ns, strict=True):
            arrived[at][call], over[at][call] = came, ended
            alone[at][call] = met.transfer and not job.courses[at].on_cpu and bool(ended < met.last_ns)
    for at, (one, place) in enumerate(zip(job.courses, laid, strict=True)):
        lane = one.lane
        until = np.concatenate(([one.bounds_ns[0]], lane.until_ns, [one.bounds_ns[-1]]))
        waited = np.flatnonzero(lane.waits)
        np.minimum.at(over[at], lane.call[waited], np.maximum(lane.until_ns[waited], arrived[at][lane.call[waited]]))
        observed[place.event : place.event + place.events] = until
        observed[place.arrive : place.arrive + len(arrived[at])] = arrived[at]
        observed[place.over : place.over + len(over[at])] = over[at]
    numbers = first_meeting + np.arange(len(job.meetings))
    observed[numbers] = [met.last_ns for met in job.meetings]
    for at, (one, place) in enumerate(zip(job.courses, laid, strict=True)):
        parts += _chain(one, place, arrived[at], over[at], alone[at])
    for number, met in zip(numbers.tolist(), job.meetings, strict=True):
        places = [laid[at] for at in met.ranks.tolist()]
        arrive = np.array([place.arrive for place in places]) + met.calls
        ended = np.array([place.over for place in places]) + met.calls
        parts.append(edges(EdgeKind.EVENT, arrive, np.full(len(arrive), number), 0))
        joint = np.array([not alone[at][call] for at, call in zip(met.ranks, met.calls, strict=True)])
        takes = observed[ended] - met.last_ns  # Negative where an end was recorded too early.
        source = np.full(int(joint.sum()), number)
        owner = number - first_meeting
        parts.append(edges(EdgeKind.WORK, source, ended[joint], takes[joint], owner))
    starts = np.array([place.event for place in laid])
    ends = np.array([place.event + place.events - 1 for place in laid])
    made = graphs.joined(parts)
    lane_of = np.arange(count)  # A rank's events are a lane; arrivals, ends and meetings are each by themselves.
    for place in laid:
        lane_of[place.event : place.event + place.events] = place.event
    graph = graphs.arranged(observed, lane_of, made, np.concatenate((starts, ends)), MOST_EARLY_NS)
    return _looked_up(job, graph, made, laid)


def _chain(one: Course, place: _Laid, arrived: IntArray, over: IntArray, alone: npt.NDArray[np.bool_]) -> list[Edges]:
    """A rank by itself: own time, where it asks, what it waits for, and calls that follow each other."""
    lane = one.lane
    points = place.event + np.arange(place.events)
    last = max(int(one.bounds_ns[-1] - (lane.until_ns[-1] if len(lane.until_ns) else one.bounds_ns[0])), 0)
    held = lane.until_ns - lane.from_ns
    for_nothing = lane.waits & (over[np.maximum(lane.call, 0)] <= lane.from_ns)  # What it asks for is over already.
    own = np.append(lane.own_ns + np.where(for_nothing, held, 0), last)
    found = [edges(EdgeKind.HOST, points[:-1], points[1:], own, np.arange(len(own)), one.rank)]
    at, call = np.flatnonzero(~lane.waits & (lane.call >= 0)), lane.call[~lane.waits & (lane.call >= 0)]
    queued = _before_in_queue(one.calls.queue, over)
    free = np.where(queued >= 0, over[np.maximum(queued, 0)], np.iinfo(np.int64).min)
    ready = np.maximum(lane.until_ns[at], free[call])
    found.append(edges(EdgeKind.LAUNCH, points[1 + at], place.arrive + call, np.maximum(arrived[call] - ready, 0)))
    behind = np.flatnonzero(queued >= 0)
    found.append(edges(EdgeKind.STREAM, place.over + queued[behind], place.arrive + behind, 0))
    by_itself = np.flatnonzero(alone)
    takes = over[by_itself] - arrived[by_itself]
    found.append(edges(EdgeKind.WORK, place.arrive + by_itself, place.over + by_itself, takes))
    at, call = np.flatnonzero(lane.waits), lane.call[lane.waits]
    found.append(
        edges(
            EdgeKind.WAIT,
            place.over + call,
            points[1 + at],
            np.where(for_nothing[at], 0, lane.until_ns[at] - over[call]),
        )
    )
    return found


def _before_in_queue(queue: IntArray, over: IntArray) -> IntArray:
    """The call before each on its stream or thread, or -1."""
    found = np.full(len(queue), -1, dtype=np.int64)
    order = np.argsort(queue, kind="stable")
    same = queue[order][1:] == queue[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    return found


def _looked_up(job: Job, graph: Graph, made: Edges, laid: Sequence[_Laid]) -> JobGraph:
    """Edges by rank and event, and by meeting."""
    some = graph.edges
    own = []
    for one, place in zip(job.courses, laid, strict=True):
        mine = np.flatnonzero((some.kind == EdgeKind.HOST) & (some.track == one.rank))
        own.append(mine[np.argsort(some.owner[mine], kind="stable")])
        if len(own[-1]) != place.events - 1:
            raise ValueError("a rank's own time is out of order")
    transfers = np.flatnonzero((some.kind == EdgeKind.WORK) & (some.owner >= 0))
    transfers = transfers[np.argsort(some.owner[transfers], kind="stable")]
    cuts = np.searchsorted(some.owner[transfers], np.arange(1, len(job.meetings)))
    ranks = len(job.courses)
    return JobGraph(
        graph=graph,
        structure=simulate.folded(graph),
        own_edge=tuple(own),
        transfer_edge=tuple(np.split(transfers, cuts)),
        starts=graph.bounds[:ranks],
        ends=graph.bounds[ranks:],
        steps=len(job.courses[0].numbers),
    )


def step_ns(joined: JobGraph, delays: Sequence[IntArray]) -> IntArray:
    """The job's mean step under each set of delays (as the graph's): until the last rank ends. Shape (sets,)."""
    delay = np.stack(list(delays), axis=1)
    residual = np.repeat(joined.graph.residual_ns[:, None], delay.shape[1], axis=1)
    ends = simulate.times(joined.graph, joined.structure, delay, residual, joined.ends).max(axis=0)
    begin = joined.graph.observed_ns[joined.starts].max()
    found: IntArray = (ends - begin) // joined.steps
    return found
