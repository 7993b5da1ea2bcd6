"""Are FSDP's units too small, and do its collectives begin when compute could still hide them?"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.facts.communication.collectives import SMALL_BYTES, collective_table
from diagnose.facts.communication.overlap import HIDING_SHARE
from diagnose.facts.communication.peers import waits
from diagnose.facts.communication.sharding import Mask, Shards, ShardTraffic, each_round, shards, traffic, unit_name
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.spans import host_spans
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals

OPEN_SHARE = 0.1
"""Of a collective's own time, from which on it is exposed (our choice)."""

QUICK = 0.25
"""Quantile of what equal collectives take: one in ten of gloo loses a slice of the scheduler (measured: 4 ms)."""

_REDUCES = 2
"""As a kind of collective; gathers of the forward pass are 0, those of the backward pass 1."""
_BLOCK = re.compile(r"([^.]+\.)*?\d+(?=\.|\Z)")


@dataclass(frozen=True)
class FineUnits:
    """Units that are parts of one block, whose collectives take as long as they do to start. Numbers are per step."""

    units: int
    """Gathered in a forward pass."""
    blocks: int
    """That would be if each block were one: `layers.1` of `layers.1.mlp` and `layers.1.attention`."""
    bytes: int | None
    """Of a unit, in the median."""
    latency_share: float
    """Of what collectives take, what they would take without any bytes; 0 unknown."""
    needless: ShardTraffic
    """Collectives that would be left out if the units of a block were one."""
    host: tuple[tuple[int, Intervals], ...]
    """By thread, when it was in FSDP's hooks of these units."""


@fact
def fine_units(facts: Facts) -> FineUnits:
    """Of the whole recording. Raises Missing without ops, and like the table of collectives."""
    found = shards(facts)
    block = _blocks(facts, found)
    start_ns, byte_ns = _cost(facts, found)
    kept = np.ones(len(found.rows), dtype=bool)
    keys = np.stack([found.round, found.backward, found.gathers, block, _occurrence(found)]).astype(np.int64)
    _, group = np.unique(keys, axis=1, return_inverse=True)
    for number in range(int(group.max(initial=-1)) + 1):
        mine = np.flatnonzero(group.ravel() == number)
        mine = mine[np.argsort(found.unit[mine], kind="stable")]  # In the order of the forward pass.
        each = start_ns + byte_ns * found.bytes[mine]
        if len(mine) > 1 and (found.bytes[mine] >= 0).all() and each.sum() > 0:
            whole = start_ns + byte_ns * found.bytes[mine].sum()
            kept[mine[max(round(float(whole / each.mean())), 1) :]] = False
    sizes = found.bytes[found.gathers]
    forward = found.gathers & ~found.backward
    usual = float(np.median(sizes)) if len(sizes) and (sizes >= 0).all() else None
    return FineUnits(
        units=each_round(found.round[forward]),
        blocks=each_round(np.unique(np.stack((found.round[forward], block[forward])), axis=1)[0]),
        bytes=None if usual is None else round(usual),
        latency_share=0.0 if usual is None else start_ns / max(start_ns + byte_ns * usual, 1.0),
        needless=traffic(facts, found, ~kept),
        host=_hooks(facts, found, ~kept),
    )


def _occurrence(found: Shards) -> IntArray:
    """How many of the same unit, pass and kind came before each: in HSDP an all-reduce follows what was scattered."""
    count: dict[tuple[int, ...], int] = {}
    columns = (found.round, found.backward.astype(np.int64), found.gathers.astype(np.int64), found.unit)
    before = []
    for key in zip(*(column.tolist() for column in columns), strict=True):
        count[key] = count.get(key, -1) + 1
        before.append(count[key])
    return np.array(before, dtype=np.int64)


def _blocks(facts: Facts, found: Shards) -> IntArray:
    """The block that each unit is of: its name up to the first number; of one process group."""
    table = collective_table(facts)
    named = [_BLOCK.match(unit) for unit in found.units]
    block = [one[0] if one else unit for one, unit in zip(named, found.units, strict=True)]
    texts = [
        "|".join((block[unit], str(table.group_ranks[row]), str(table.group_description[row])))
        if found.units[unit]
        else f"|{number}"  # Which of FSDP1's units is meant is not known.
        for number, (unit, row) in enumerate(zip(found.unit.tolist(), found.rows.tolist(), strict=True))
    ]
    return np.unique(np.array(texts, dtype=str), return_inverse=True)[1].ravel().astype(np.int64)


def _cost(facts: Facts, found: Shards) -> tuple[float, float]:
    """What a gather takes to start, and for each byte, in ns: by the quicker quarter of those of each size.

    Where all are of one size, one of SMALL_BYTES is taken to need as long for its bytes as to start.
    """
    table, known = collective_table(facts), waits(facts)
    chosen = found.gathers & (found.bytes > 0) & table.in_steps[found.rows]
    rows, size = found.rows[chosen], found.bytes[chosen].astype(np.float64)
    times = Intervals(table.times.starts[rows], table.times.ends[rows])
    takes = times.ends - times.starts - (0 if known is None else intervals.covered(times, known))
    sizes = np.unique(size)
    quick = np.array([np.quantile(takes[size == asked], QUICK) for asked in sizes])
    if not len(sizes):
        return 0.0, 0.0
    low, high = np.triu_indices(len(sizes), 1)
    apart = sizes[high] >= 2 * sizes[low]
    if apart.any():  # Theil and Sen's estimate: the median slope of all pairs.
        byte_ns = max(float(np.median(((quick[high] - quick[low]) / (sizes[high] - sizes[low]))[apart])), 0.0)
    else:
        byte_ns = float(np.median(quick / (sizes + SMALL_BYTES)))
    return float(np.clip(np.median(quick - byte_ns * sizes), 0.0, quick.min())), byte_ns


def _hooks(facts: Facts, found: Shards, chosen: Mask) -> tuple[tuple[int, Intervals], ...]:
    """Time of threads in ranges of units of which some collectives are chosen, but of no other unit."""
    names = {found.units[unit] for unit in found.unit[chosen].tolist()}
    others = {found.units[unit] for unit in found.unit[~chosen].tolist()}
    own = host_spans(
        facts, SpanKind.ANNOTATION, named=lambda name: name.startswith("FSDP::") and unit_name(name) in names - others
    )
    rest = host_spans(
        facts, SpanKind.ANNOTATION, named=lambda name: name.startswith("FSDP::") and unit_name(name) in others
    )
    return tuple(
        (track, intervals.subtract(own.where(own.track == track).times, rest.where(rest.track == track).times))
        for track in np.unique(own.track).tolist()
    )


@dataclass(frozen=True)
class LateGathers:
    """FSDP's exposed collectives on the device that compute could hide. Numbers are per step."""

    ids: IntArray
    exposed_ns: int
    """Time that compute before gathers, or behind reductions, could hide; without known waiting for other ranks."""
    share: float
    """The same of the time of `ids`."""
    compared: bool
    """Waiting for other ranks is known."""


@fact
def late_gathers(facts: Facts) -> LateGathers:
    """Of the used steps; none on the host, where nothing runs beside. Raises Missing like shards."""
    found, table, known = shards(facts), collective_table(facts), waits(facts)
    chosen = ~table.on_host[found.rows] & table.in_steps[found.rows]
    rows, used = found.rows[chosen], steps(facts)
    if not len(rows):
        return LateGathers(rows, 0, 0.0, known is not None)
    times, compute = Intervals(table.times.starts[rows], table.times.ends[rows]), device_time(facts).compute
    transfer = times if known is None else Intervals(_arrived(times, known), times.ends)
    open_ns = transfer.ends - transfer.starts - intervals.covered(transfer, compute)
    idle_links = intervals.subtract(compute, intervals.union(times))
    could_ns = HIDING_SHARE * _beside(found, chosen, times, idle_links)
    hidden = np.minimum(open_ns, could_ns).astype(np.int64)
    late = hidden >= OPEN_SHARE * (transfer.ends - transfer.starts)
    hidden, rows = hidden[late], rows[late]
    return LateGathers(
        ids=table.ids[rows],
        exposed_ns=round_half_up(int(hidden.sum()), used.count),
        share=float(hidden.sum() / max((transfer.ends - transfer.starts)[late].sum(), 1)),
        compared=known is not None,
    )


def _arrived(times: Intervals, known: Intervals) -> IntArray:
    """When the last rank had come to each: waiting comes first."""
    return times.starts + intervals.covered(times, known)


def _beside(found: Shards, chosen: Mask, times: Intervals, compute: Intervals) -> IntArray:
    """Compute that could hide each: since the gather before in its pass, or until the reduction behind it.

    `compute` is what ran while none of them did, as a link carries one after the other. In a round with one unit all of
    it could, as that unit could be in pieces.
    """
    rounds = found.round[chosen]
    kind = np.where(found.gathers[chosen], found.backward[chosen], _REDUCES)
    order = np.lexsort((times.starts, kind, rounds))
    same = (np.diff(rounds[order]) == 0) & (np.diff(kind[order]) == 0)
    before, behind = order[:-1][same], order[1:][same]
    hides = np.where(kind[behind] == _REDUCES, before, behind)
    begin, end = np.zeros((2, len(order)), dtype=np.int64)
    begin[hides], end[hides] = times.ends[before], np.maximum(times.starts[behind], times.ends[before])
    forward, counts = np.unique(rounds[kind == 0], return_counts=True)
    single = np.isin(rounds, forward[counts == 1])
    each = compute.total // max(len(np.unique(rounds)), 1)
    return np.where(single, each, intervals.covered(Intervals(begin, end), compute))
