"""Sets of half-open time intervals as sorted int64 arrays: the algebra under every time in a report.

An `Intervals` is a pair of equally long int64 arrays (starts, ends), in nanoseconds. Functions marked *normal* return
it sorted, disjoint, non-touching and without empty intervals; inputs called `a` and `b` must be normal. All functions
are pure and run in O(n log n) or better without Python loops.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Interval k is [starts[k], ends[k])."""

    starts: IntArray
    ends: IntArray

    @property
    def total(self) -> int:
        """Sum of lengths, ns. Of a normal set: the time covered."""
        return int((self.ends - self.starts).sum())

    @property
    def size(self) -> int:
        """How many intervals there are."""
        return len(self.starts)

    def where(self, which: IntArray | npt.NDArray[np.bool_]) -> Intervals:
        """Those at these positions, or of which this is true."""
        return Intervals(self.starts[which], self.ends[which])


def of(starts: object, ends: object) -> Intervals:
    """Intervals from any two int sequences, as they are (not normalised)."""
    return Intervals(np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64))


EMPTY = of([], [])


def union(pieces: Intervals) -> Intervals:
    """Normal set of all time covered by at least one piece; pieces may overlap and come in any order."""
    keep = pieces.ends > pieces.starts
    starts, ends = pieces.starts[keep], pieces.ends[keep]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    reach = np.maximum.accumulate(ends[order])
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(starts[opens], reach[closes])


def merge(*sets: Intervals) -> Intervals:
    """Normal set of the time in any of the sets, which need not be normal."""
    return union(Intervals(*(np.concatenate(edges) for edges in zip(*sets, strict=True))))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Normal set of the part of `a` inside [start, end)."""
    inside = Intervals(np.maximum(a.starts, start), np.minimum(a.ends, end))
    return inside.where(inside.ends > inside.starts)


def gaps(a: Intervals, start: int, end: int) -> Intervals:
    """Normal set of the part of [start, end) that `a` does not cover."""
    if end <= start:
        return EMPTY
    inside = clip(a, start, end)
    starts = np.concatenate(([start], inside.ends))
    ends = np.concatenate((inside.starts, [end]))
    keep = ends > starts
    return Intervals(starts[keep], ends[keep])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Normal set of the time in `a` and not in `b`."""
    if not a.size or not b.size:
        return a
    low = min(int(a.starts[0]), int(b.starts[0]))
    high = max(int(a.ends[-1]), int(b.ends[-1]))
    return intersect(a, gaps(b, low, high))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Normal set of the time in both `a` and `b`."""
    if not a.size or not b.size:
        return EMPTY
    edges = np.concatenate((a.starts, a.ends, b.starts, b.ends))
    delta = np.repeat(np.array([1, -1, 1, -1], dtype=np.int64), (a.size, a.size, b.size, b.size))
    order = np.lexsort((delta, edges))
    edges, depth = edges[order], np.cumsum(delta[order])
    both = np.flatnonzero(depth[:-1] == 2)
    starts, ends = edges[both], edges[both + 1]
    keep = ends > starts
    return Intervals(starts[keep], ends[keep])


def union_of(pieces: Intervals, chosen: IntArray | npt.NDArray[np.bool_]) -> Intervals:
    """The normal set of some of the pieces, by mask or position."""
    return union(pieces.where(chosen))


def covered(pieces: Intervals, a: Intervals) -> IntArray:
    """For each piece (any order, may overlap), the ns of it that `a` covers. Shape (pieces.size,)."""
    if not a.size:
        return np.zeros(pieces.size, dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(a.ends - a.starts)))

    def up_to(times: IntArray) -> IntArray:
        """Total length of `a` before each time."""
        last = np.searchsorted(a.starts, times, side="right")
        overshoot = np.where(last > 0, np.maximum(a.ends[last - 1] - times, 0), 0)
        reached: IntArray = before[last] - overshoot
        return reached

    within: IntArray = np.maximum(up_to(pieces.ends) - up_to(pieces.starts), 0)
    return within


def distinct(values: IntArray) -> IntArray:
    """The values in order, each once. numpy's `unique` hashes since 2.3, which takes fifty times as long for many."""
    ordered = np.sort(values)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(ordered)]]


def cut(pieces: Intervals, moments: IntArray) -> tuple[Intervals, IntArray]:
    """Pieces, none of which are empty, cut in two at every moment within them (any order, may repeat).

    Returns what they become, piece by piece, and the position of the piece that each comes from.
    """
    edges = distinct(moments)
    first = np.searchsorted(edges, pieces.starts, side="right")
    count = np.searchsorted(edges, pieces.ends, side="left") - first + 1
    owner = np.repeat(np.arange(pieces.size), count)
    begun = np.cumsum(count) - count
    within = np.arange(len(owner)) - begun[owner]
    starts = np.where(within > 0, edges[first[owner] + within - 1] if len(edges) else 0, pieces.starts[owner])
    ends = np.roll(starts, -1)
    ends[begun + count - 1] = pieces.ends
    return Intervals(starts, ends), owner


def holds(a: Intervals, moments: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each moment lies in `a`."""
    last = np.searchsorted(a.starts, moments, side="right") - 1
    return (last >= 0) & (a.ends[last] > moments) if a.size else np.zeros(len(moments), dtype=bool)


NONE = -1


def parents(track: IntArray, start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Index of the innermost span on the same track that contains each span, or -1. Shape (n,).

    Containing means start <= start and end >= end; of two equal spans the one that comes first contains the other.
    Spans that merely overlap contain nothing: such a child belongs to the next one out that holds all of it.

    In order of (track, start, -end) the parent is the nearest earlier span that ends no sooner.
    """
    order = np.lexsort((-end_ns, start_ns, track))
    ends, tracks = end_ns[order], track[order]
    up = _last_reaching(ends, np.arange(len(order)), ends)
    up[tracks[up] != tracks] = NONE
    result = np.full(len(order), NONE, dtype=np.int64)
    result[order] = np.where(up >= 0, order[up], NONE)
    return result


def innermost_at(
    moment_ns: IntArray, moment_track: IntArray, track: IntArray, start_ns: IntArray, end_ns: IntArray
) -> IntArray:
    """Index of the innermost span that is open at each moment on the moment's track, or -1. Shape (moments,).

    Open means start <= moment < end, or a span of no length at that very moment.
    """
    if not len(start_ns):
        return np.full(len(moment_ns), NONE, dtype=np.int64)
    order = np.lexsort((-end_ns, start_ns, track))
    starts, ends, tracks = start_ns[order], end_ns[order], track[order]
    is_moment = np.repeat([False, True], [len(order), len(moment_ns)])
    times, owners = np.concatenate((start_ns, moment_ns)), np.concatenate((track, moment_track))
    merged = np.lexsort((is_moment, times, owners))
    begun = np.empty(len(merged), dtype=np.int64)
    begun[merged] = np.cumsum(~is_moment[merged])
    begun = begun[len(order) :]
    found = _last_reaching(ends, begun, moment_ns + 1)
    last = begun - 1
    found = np.where((last >= 0) & (starts[last] == moment_ns) & (ends[last] == moment_ns), last, found)
    found[tracks[found] != moment_track] = NONE
    return np.where(found >= 0, order[found], NONE)


def _last_reaching(ends: IntArray, before: IntArray, least: IntArray) -> IntArray:
    """The last position left of each `before` whose end is at least `least`, or -1.

    Up and down a tree of maxima, whose level h holds the latest end of every 2**h: O(log n) however spans overlap.
    """
    levels = [ends]
    while len(levels[-1]) > 1:
        if len(levels[-1]) % 2:
            levels[-1] = np.append(levels[-1], np.iinfo(np.int64).min)
        levels.append(np.maximum(levels[-1][::2], levels[-1][1::2]))
    found = np.full(len(before), NONE, dtype=np.int64)
    at, asking, hits = before, np.arange(len(before)), list[IntArray]()
    for latest in levels:
        hit = (at % 2 == 1) & (latest[at - 1] >= least[asking])
        found[asking[hit]] = at[hit] - 1
        hits.append(asking[hit])
        at, asking = at[~hit] // 2, asking[~hit]
    below = np.zeros(0, dtype=np.int64)
    for latest, hit in zip(levels[-2::-1], hits[:0:-1], strict=True):
        below = np.concatenate((below, hit))
        right = 2 * found[below] + 1
        found[below] = right - (latest[right] < least[below])
    return found
