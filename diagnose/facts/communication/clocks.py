"""How far is each rank's clock ahead? All ranks leave a collective of all at the same moment, to some microseconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from diagnose.trace.intervals import IntArray
from diagnose.trace.job import CollectiveSequence

ROUNDS = 6
"""Of moving each rank to the median of those it meets; two suffice where all meet (chosen)."""

CERTAIN = 3.0
"""Clocks that differ by less than so many times the spread of what tells are taken to be one (ranks of one host)."""


def offsets_ns(
    sequences: Sequence[CollectiveSequence],
    collectives: Sequence[tuple[int, list[tuple[int, int]]]],
    transfers: Sequence[tuple[int, list[tuple[int, int]]]],
) -> tuple[IntArray, int]:
    """By how much each rank's clock is ahead of the first rank's of its host, and how far ends still differ.

    Ranks that are known to share a clock are not moved. Those that only send to each other are placed in the middle of
    what is possible: nothing is received before it was sent.
    """
    apart = [
        (sequence.machine >= 0, sequence.machine if sequence.machine >= 0 else sequence.rank) for sequence in sequences
    ]
    hosts = {name: k for k, name in enumerate(dict.fromkeys(apart))}
    host = np.array([hosts[name] for name in apart])
    rows = [
        (at, k, int(sequences[at].calls.end_ns[row])) for k, (_, some) in enumerate(collectives) for at, row in some
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    ahead = np.zeros(len(hosts), dtype=np.int64)
    if len(hosts) > 1:
        ahead, part = _by_ends(host, table, len(hosts))
        ahead = _by_transfers(sequences, host, transfers, ahead, part)
    offsets: IntArray = ahead[host]
    return offsets, _left(table, offsets)


def _by_ends(host: IntArray, table: IntArray, hosts: int) -> tuple[IntArray, IntArray]:
    """Offsets by the ends of collectives, and which hosts these connect: those of one number. Shape (hosts,) each."""
    found, part = np.zeros(hosts, dtype=np.int64), np.full(hosts, -1, dtype=np.int64)
    at, join_point, end = table.T
    on = host[at]
    for start in range(hosts):
        if part[start] < 0:
            part[start] = start
            _spread_from(start, found, part, on, join_point, end)
    free = part != np.arange(hosts)
    for _ in range(ROUNDS if len(table) else 0):
        left = end - found[on]
        off = _halfway(on, left - _median_of(join_point, left)[join_point], hosts)
        found += np.where(free, np.trunc(off), 0).astype(np.int64)
    left = end - found[on]
    spread = _halfway(on, np.abs(left - _median_of(join_point, left)[join_point]), hosts)
    found = np.where(np.abs(found - found[part]) <= CERTAIN * spread, found[part], found)
    ahead: IntArray = found - found[part]
    return ahead, part


def _spread_from(
    start: int, found: IntArray, part: IntArray, on: IntArray, join_point: IntArray, end: IntArray
) -> None:
    """Places all hosts that are connected to one, by those placed before them: clocks may be seconds apart."""
    nowhere = np.iinfo(np.int64).min
    while True:
        known = part[on] == start
        first = np.full(int(join_point.max(initial=-1)) + 1, nowhere)
        first[join_point[known]] = (end - found[on])[known]
        rows = np.flatnonzero((part[on] < 0) & (first[join_point] > nowhere))
        if not len(rows):
            return
        new = np.unique(on[rows])
        found[new] = np.trunc(_halfway(on[rows], end[rows] - first[join_point[rows]], len(found)))[new].astype(np.int64)
        part[new] = start


def _halfway(group: IntArray, values: IntArray, groups: int) -> npt.NDArray[np.float64]:
    """The median of each group's values, the mean of two in the middle; 0 of none. Shape (groups,)."""
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    some = np.append(values[order], 0)
    low, high = (np.minimum(first + (count + odd) // 2, len(values)) for odd in (-1, 0))
    return np.where(count > 0, (some[np.maximum(low, first)] + some[high]) / 2, 0.0)


def _median_of(group: IntArray, values: IntArray) -> IntArray:
    """The (lower) median of each group's values, by group. Shape (groups,)."""
    order = np.lexsort((values, group))
    count = np.bincount(group)
    first = np.cumsum(count) - count
    found: IntArray = np.append(values[order], 0)[np.minimum(first + (count - 1) // 2, len(values))]
    return found


def _by_transfers(
    sequences: Sequence[CollectiveSequence],
    host: IntArray,
    transfers: Sequence[tuple[int, list[tuple[int, int]]]],
    ahead: IntArray,
    part: IntArray,
) -> IntArray:
    """Places hosts that no collective connects, by the middle of the bounds that transfers between them set."""
    found, placed = ahead.copy(), {int(part[0])}
    least: dict[tuple[int, int], int] = {}
    for _, ((sender, sent), (receiver, received)) in transfers:
        begin = int(sequences[sender].calls.begin_ns[sent]) - int(ahead[host[sender]])
        end = int(sequences[receiver].calls.end_ns[received]) - int(ahead[host[receiver]])
        pair = int(part[host[sender]]), int(part[host[receiver]])
        least[pair] = min(least.get(pair, end - begin), end - begin)
    while True:
        edge = next(((a, b) for a, b in least if a in placed and b not in placed and (b, a) in least), None)
        if edge is None:
            return found
        a, b = edge
        base = int(found[a] - ahead[a])
        most, lowest = least[a, b], -least[b, a]
        known = lowest <= 0 <= most  # Both may share a clock.
        found[part == b] += base if known else base + (most + lowest) // 2
        placed.add(b)


def _left(table: IntArray, offsets: IntArray) -> int:
    if not len(table):
        return 0
    at, join_point, end = table.T
    left = end - offsets[at]
    return int(np.median(np.abs(left - _median_of(join_point, left)[join_point])))
