"""Which calls of two recordings are alike by the calls around them: where loops turn more or less often, their order in
a step tells nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.trace.intervals import IntArray

REACHES = (4, 2, 1)
"""Calls before and after that have to agree: as many as possible, fewer at the ends of loops (our choice)."""

_PRIME = 0x100000001B3  # Of FNV-1a, 64 bits.


class Sequence(Struct, frozen=True):
    """Calls in any order. Arrays of shape (calls,)."""

    what: IntArray  # Equal for calls of one name on one thread, in both recordings; -1 for what the other one lacks.
    track: IntArray
    start_ns: IntArray


def matching(ours: Sequence, theirs: Sequence, told: IntArray) -> IntArray:
    """For each of our calls one of theirs with the same calls around it, or -1. Shape (ours,).

    Only if all of theirs that have these around them tell the same (`told`, shape (theirs,)).
    """
    found = np.full(len(ours.what), -1, dtype=np.int64)
    for reach in REACHES:
        left = np.flatnonzero((found < 0) & (ours.what >= 0))
        keys, first, group = np.unique(_keys(theirs, reach), return_index=True, return_inverse=True)
        if not len(left) or not len(keys):
            break
        differ = told != told[first][group.reshape(-1)]
        sure = np.bincount(group.reshape(-1), weights=differ, minlength=len(keys)) == 0
        mine = _keys(ours, reach)[left]
        at = np.minimum(np.searchsorted(keys, mine), len(keys) - 1)
        some = (keys[at] == mine) & sure[at] & (theirs.what[first[at]] == ours.what[left])
        found[left[some]] = first[at[some]]
    return found


def _keys(some: Sequence, reach: int) -> npt.NDArray[np.uint64]:
    order = np.lexsort((some.start_ns, some.track))
    edge = np.full(reach, -2)
    what, track = (np.concatenate((edge, values[order], edge)) for values in (some.what, some.track))
    count, made = len(order), np.zeros(len(order), dtype=np.uint64)
    here = track[reach : reach + count]
    for by in range(2 * reach + 1):
        on_thread = track[by : by + count] == here
        near = np.where(on_thread, what[by : by + count] + 3, 0).astype(np.uint64)
        made = (made ^ near) * np.uint64(_PRIME)
    keys = np.empty(count, dtype=np.uint64)
    keys[order] = made
    return keys
