"""Who is inside whom on a thread: parents of nested spans, and the span open at a moment. Vectorised."""

from __future__ import annotations

import numpy as np

from diagnose.trace.intervals import IntArray

NONE = -1


def parents(track: IntArray, start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Index of the innermost span on the same track that contains each span, or -1. Shape (n,).

    Containing means start <= start and end >= end; of two equal spans the one that comes first contains the other.
    Spans that merely overlap contain nothing: such a child belongs to the next one out that holds all of it.

    In order of (track, start, -end) the parent is the nearest earlier span that ends no sooner ("previous greater
    element"), found by pointer jumping: every round skips spans known to end too soon, so rounds grow with log n.
    """
    order = np.lexsort((-end_ns, start_ns, track))
    n = len(order)
    ends, tracks = end_ns[order], track[order]
    up = np.arange(-1, n - 1, dtype=np.int64)
    up[np.flatnonzero(np.diff(tracks, prepend=tracks[:1] - 1))] = NONE
    open_ = np.flatnonzero(up >= 0)
    while len(open_):
        open_ = open_[ends[up[open_]] < ends[open_]]
        up[open_] = up[up[open_]]
        open_ = open_[up[open_] >= 0]
    result = np.full(n, NONE, dtype=np.int64)
    result[order] = np.where(up >= 0, order[up], NONE)
    return result


def innermost_at(
    moment_ns: IntArray, moment_track: IntArray, track: IntArray, start_ns: IntArray, end_ns: IntArray
) -> IntArray:
    """Index of the innermost span that is open at each moment on the moment's track, or -1. Shape (moments,).

    Open means start <= moment < end, or a span of no length at that very moment.
    """
    found = np.full(len(moment_ns), NONE, dtype=np.int64)
    if not len(start_ns):
        return found
    order = np.lexsort((-end_ns, start_ns, track))
    up = parents(track, start_ns, end_ns)
    for one in np.unique(moment_track):
        mine = order[track[order] == one]
        asked = np.flatnonzero(moment_track == one)
        at = np.searchsorted(start_ns[mine], moment_ns[asked], side="right") - 1
        found[asked] = np.where(at >= 0, mine[np.maximum(at, 0)], NONE) if len(mine) else NONE
    climbing = np.flatnonzero(found >= 0)
    while len(climbing):
        span, moment = found[climbing], moment_ns[climbing]
        is_open = (end_ns[span] > moment) | ((end_ns[span] == moment) & (start_ns[span] == moment))
        climbing = climbing[~is_open]
        found[climbing] = up[found[climbing]]
        climbing = climbing[found[climbing] >= 0]
    return found
