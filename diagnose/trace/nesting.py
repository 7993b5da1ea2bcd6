"""Who is inside whom on a thread: parents of nested spans, and the span open at a moment. Vectorised."""

from __future__ import annotations

import numpy as np

from diagnose.trace.intervals import IntArray

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
