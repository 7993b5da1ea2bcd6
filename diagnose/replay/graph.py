"""The dependency graph of a recording: moments, and which of them have to come before which.

A *point* is a moment: a launch or blocking call begins or ends, a device operation begins or ends, a step ends. An
*edge* says that its target comes at least `delay_ns` after its source. Points are numbered in an order in which every
edge leads forward, so that a replay is one pass (`replay.simulate`).

The delay of an edge is what the rules of the model give, but never more than what was observed; what is observed
beyond all of a point's edges is its *residual*. With residuals a replay gives the observed times exactly; without them,
and with unlimited delays, it is the model's own prediction (`pure`).
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import astuple, replace

from diagnose.trace.intervals import IntArray

OFF = -(1 << 60)  # The delay of an edge that constrains nothing.

JITTER_NS = 20_000  # A cause may be recorded so late after its effect: clocks are matched to a few us (kineto #1380).

_TICKS = 16  # of order per ns, so that points of one moment can be told apart
_MOST_ROUNDS = 50  # of putting targets behind their sources; what is left then contradicts itself


class EdgeKind(IntEnum):
    """Why an edge's target waits for its source."""

    HOST = 0  # Thread order, and the time the thread needs from one to the other.
    WORK = 1  # A device operation's start and end.
    LAUNCH = 2  # Work starts after the call that launches it.
    STREAM = 3  # Work starts after the work before it on its stream.
    EVENT = 4  # Work starts after an event on another stream, recorded or inferred.
    WAIT = 5  # A host call returns after the device work that it waits for.
    QUEUE = 6  # A launch returns when the stream's queue has room.
    STEP = 7  # A step ends with its last work.
    AFTER = 8  # Nothing is known but that it was later.
    TRACK = 9  # Only in edits: what is moved to a track of its own follows what was moved before it.
    DELIVERY = 10  # Only in edits: where moved work was, its result is waited for.


ONLY_IN_EDITS = (EdgeKind.TRACK, EdgeKind.DELIVERY)


Arrays = TypeVar("Arrays", bound=Struct)


class Edges(Struct, frozen=True):
    """Edges as arrays of shape (edges,). Host edges stand for the time [from_ns, until_ns) of thread `track`."""

    source: IntArray
    target: IntArray
    estimate_ns: IntArray  # The delay that the model gives.
    kind: npt.NDArray[np.int8]
    owner: IntArray  # Span id of the device operation or host call that the edge is about, or -1.
    track: IntArray
    from_ns: IntArray
    until_ns: IntArray


def edges(
    kind: EdgeKind,
    source: IntArray,
    target: IntArray,
    estimate_ns: IntArray | int = 0,
    owner: IntArray | int = -1,
    track: IntArray | int = -1,
    from_ns: IntArray | int = 0,
    until_ns: IntArray | int = 0,
) -> Edges:
    """Edges of one kind; single numbers stand for all of them."""

    def whole(values: IntArray | int) -> IntArray:
        return np.broadcast_to(np.asarray(values, dtype=np.int64), source.shape)

    return Edges(
        source=source,
        target=target,
        estimate_ns=whole(estimate_ns),
        kind=np.full(source.shape, kind, dtype=np.int8),
        owner=whole(owner),
        track=whole(track),
        from_ns=whole(from_ns),
        until_ns=whole(until_ns),
    )


def joined(parts: Sequence[Arrays]) -> Arrays:
    """All rows of all parts, in order: of structs of arrays of one kind, one at least."""
    return type(parts[0])(*(np.concatenate(column) for column in zip(*map(astuple, parts), strict=True)))


def positions(first: IntArray, count: IntArray) -> IntArray:
    """All positions of ranges, one range after the other: `count[k]` positions from `first[k]` on."""
    found: IntArray = np.repeat(first - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
    return found


def _chosen(some: Edges, which: npt.NDArray[np.bool_] | IntArray) -> Edges:
    return Edges(*(column[which] for column in astuple(some)))


class Graph(Struct, frozen=True):
    """A recording's points in topological order, with edges sorted by target."""

    observed_ns: IntArray  # Shape (points,).
    edges: Edges
    delay_ns: IntArray  # Of each edge, at most what was observed; OFF for edges of edits alone. Shape (edges,).
    residual_ns: IntArray  # Of each point, never negative. Shape (points,).
    bounds: IntArray  # Points where the used steps begin and end. Shape (used + 1,).
    marks: IntArray  # Points that were asked for besides.


def arranged(
    observed_ns: IntArray,
    lane: IntArray,
    unordered: Edges,
    bounds: IntArray,
    marks: IntArray | None = None,
    jitter_ns: int = JITTER_NS,
) -> Graph:
    """The graph of these points and edges. Points of a lane (a thread, a stream) have to be together and in order."""
    ticks, kept = _order(observed_ns, lane, unordered, jitter_ns)
    order = np.argsort(ticks, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    some = _chosen(unordered, kept)
    some = replace(some, source=rank[some.source], target=rank[some.target])
    some = _chosen(some, np.argsort(some.target, kind="stable"))
    observed = observed_ns[order]
    delay = np.minimum(some.estimate_ns, observed[some.target] - observed[some.source])
    delay[np.isin(some.kind, ONLY_IN_EDITS)] = OFF
    demanded = np.full(len(observed), OFF, dtype=np.int64)
    np.maximum.at(demanded, some.target, np.where(delay == OFF, OFF, observed[some.source] + delay))
    residual = np.where(demanded == OFF, 0, observed - demanded)
    return Graph(observed, some, delay, residual, rank[bounds], rank[bounds[:0] if marks is None else marks])


def _order(
    observed_ns: IntArray, lane: IntArray, some: Edges, jitter_ns: int
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """For each point a number in whose order edges lead forward, and which edges then do. It grows along each lane and
    with time, but within `jitter_ns` a target is put behind its source."""
    rows, number = _shared_lanes(lane)
    ticks = _along_lanes(observed_ns * _TICKS, rows, number)
    possible = observed_ns[some.source] <= observed_ns[some.target] + jitter_ns
    for _ in range(_MOST_ROUNDS):
        late = np.flatnonzero(possible & (ticks[some.source] >= ticks[some.target]))
        if not len(late):
            break
        np.maximum.at(ticks, some.target[late], ticks[some.source[late]] + 1)
        ticks = _along_lanes(ticks, rows, number)
    return ticks, ticks[some.source] < ticks[some.target]


def _shared_lanes(lane: IntArray) -> tuple[IntArray, IntArray]:
    """Rows of points that share a lane, and the number of their lanes, counted among these lanes only."""
    follows = np.concatenate(([False], lane[1:] == lane[:-1]))[: len(lane)]
    rows = np.flatnonzero(follows | np.append(follows[1:], False)[: len(lane)])
    return rows, np.cumsum(~follows[rows])


def _along_lanes(ticks: IntArray, rows: IntArray, number: IntArray) -> IntArray:
    """The least ticks not below these that rise along every lane. `rows`, `number`: from `_shared_lanes`."""
    place = np.arange(len(rows))
    low = ticks[rows] - place
    apart = number * (np.ptp(low) + 1 if len(low) else 0)
    found = ticks.copy()
    found[rows] = np.maximum.accumulate(low + apart) - apart + place
    return found
