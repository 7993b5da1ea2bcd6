"""How does FSDP gather parameters, and reduce and scatter gradients: which unit, in which pass, how often?

A *unit* is what `fully_shard` or FullyShardedDataParallel wraps: its parameters are gathered by one collective. FSDP2
names it in its ranges, as in `FSDP::all_gather (layers.1)`; FSDP1 does not, so that units are told by their turn in a
pass. A *round* is a forward pass and the backward passes that follow it: a micro-batch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.facts.communication.collectives import SMALL_BYTES, collective_table
from diagnose.facts.communication.course import standing
from diagnose.facts.communication.overlap import HIDING_SHARE
from diagnose.facts.communication.peers import waits
from diagnose.facts.communication.roles import Role, asked_by, roles
from diagnose.facts.core.base import Facts, fact, once
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import recorded_inputs
from diagnose.facts.core.names import BACKWARD
from diagnose.facts.core.spans import HostSpans, host_spans, require_ops
from diagnose.facts.core.steps import steps
from diagnose.facts.optimizer.optimizer import updates
from diagnose.trace import intervals, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals

OPEN_SHARE = 0.1
"""Of a collective's own time, from which on it is exposed (our choice)."""

QUICK = 0.25
"""Quantile of what equal collectives take: one in ten of gloo loses a slice of the scheduler (measured: 4 ms)."""

Mask = npt.NDArray[np.bool_]

_FORWARD = re.compile(r"FSDP::pre_forward|FullyShardedDataParallel\._pre_forward\Z")
_BACKWARD = re.compile(
    r"FSDP::(pre_backward|post_backward|root_post_backward|backward_prefetch)|"
    r"FullyShardedDataParallel\._(pre|post)_backward"
)
_OWN = re.compile(r"FSDP::(all_gather|post_backward_reduce)(?!_)")
"""Ranges that hold all that one collective needs: copies into and out of its buffer, and waiting for it."""
_BLOCK = re.compile(r"([^.]+\.)*?\d+(?=\.|\Z)")
_REDUCES = 2
"""As a kind of collective; gathers of the forward pass are 0, those of the backward pass 1."""
_COPY_OUT = "FSDP::all_gather_copy_out"
_UNIT = re.compile(r"\(([^)]*)\)")


@dataclass(frozen=True)
class Shards:
    """FSDP's collectives, in the order in which they are asked for. Arrays of shape (collectives,)."""

    rows: IntArray
    """Of the table of collectives."""
    gathers: Mask
    """Of parameters; else they reduce and scatter gradients."""
    backward: Mask
    """Asked for in a backward pass."""
    turn: IntArray
    """Steps of the optimizer before it."""
    turns: int
    """Steps of the optimizer."""
    round: IntArray
    """Numbered over the recording."""
    unit: IntArray
    """Position in `units`."""
    units: tuple[str, ...]
    """Names; "" is the root, or any of FSDP1."""
    host_ids: IntArray
    """The range, or else the op, that does nothing but this."""
    asked_ns: IntArray
    bytes: IntArray
    """All ranks' parts together; -1 unknown."""


@once
def shards(facts: Facts) -> Shards:
    """Of the whole recording; none if FSDP is not used. Raises Missing without ops, and like the table."""
    require_ops(facts)
    table, role = collective_table(facts), roles(facts)
    by, starts = asked_by(facts, table), facts.rank.spans["start_ns"].to_numpy()
    rows = np.flatnonzero(((role == Role.SHARD_GATHER) | (role == Role.SHARD_REDUCE)) & (by >= 0))
    rows = rows[np.argsort(starts[by[rows]], kind="stable")]
    by = by[rows]
    at = starts[by]
    track = facts.rank.spans["track"].to_numpy()[by].astype(np.int64)
    ranges = _ranges(facts, _OWN)
    around = _innermost(ranges, at, track)
    names = facts.rank.spans["name"].iloc[ranges.ids].astype(str).to_numpy()
    unit_of = [_unit(str(names[k])) if k >= 0 else "" for k in around.tolist()]
    units = tuple(dict.fromkeys(unit_of))
    ended = np.sort(updates(facts).end_ns)
    return Shards(
        rows=rows,
        gathers=role[rows] == Role.SHARD_GATHER,
        backward=_in_backward(facts, at, track),
        turn=np.searchsorted(ended, at, side="right"),
        turns=len(ended),
        round=_rounds(facts, at),
        unit=np.array([units.index(one) for one in unit_of], dtype=np.int64),
        units=units,
        host_ids=np.where(around >= 0, np.append(ranges.ids, -1)[around], by),
        asked_ns=at,
        bytes=_bytes(facts, table.bytes[rows], by),
    )


def _ranges(facts: Facts, named: re.Pattern[str]) -> HostSpans:
    return host_spans(facts, SpanKind.ANNOTATION, named=lambda name: bool(named.match(name)))


def _unit(name: str) -> str:
    found = _UNIT.search(name)
    return found[1] if found else ""


def _innermost(some: HostSpans, at: IntArray, track: IntArray) -> IntArray:
    return nesting.innermost_at(at, track, some.track, some.start_ns, some.end_ns)


def _in_backward(facts: Facts, at: IntArray, track: IntArray) -> Mask:
    ops = host_spans(facts, SpanKind.OP, named=lambda name: name.startswith(BACKWARD))
    found: Mask = (_innermost(ops, at, track) >= 0) | (_innermost(_ranges(facts, _BACKWARD), at, track) >= 0)
    return found


def _rounds(facts: Facts, at: IntArray) -> IntArray:
    """How many forward passes have begun after a backward pass, or as the first, until each moment."""
    forward, backward = _ranges(facts, _FORWARD), _ranges(facts, _BACKWARD)
    forward = forward.where(~_in_backward(facts, forward.start_ns, forward.track))
    moments = np.concatenate((forward.start_ns, backward.start_ns))
    order = np.argsort(moments, kind="stable")
    begins = (np.arange(len(moments)) < len(forward.ids))[order]
    new = begins & ~np.concatenate(([False], begins[:-1]))[: len(begins)]
    return np.searchsorted(moments[order][new], at, side="right")


def _bytes(facts: Facts, told: IntArray, by: IntArray) -> IntArray:
    """As the table tells; on the host by the inputs of the op, where lists of results are not recorded."""
    position, inputs = recorded_inputs(facts, by)
    names = facts.rank.spans["name"].iloc[by].astype(str).to_numpy()
    world = max(facts.rank.provenance.world_size or 0, 1)
    sizes = [max((sum(one.bytes or 4 * one.elements for one in some) for some in taken), default=0) for taken in inputs]
    found = np.array([*(size or -1 for size in sizes), -1], dtype=np.int64)[position]
    parts = np.where((names == "c10d::allgather_") & (found > 0), world, 1)  # Only a rank's own part is recorded.
    return np.where(told >= 0, told, found * parts)


@dataclass(frozen=True)
class ShardTraffic:
    """Some of FSDP's collectives. Numbers are per step."""

    ids: IntArray
    host_ids: IntArray
    """What the host does for nothing but these."""
    calls: int
    bytes: int | None
    """None if not known of all."""
    ns: int
    """Time in which one at least was running."""
    exposed_ns: int
    """Of it, while nothing was computed (on the host: the main thread stood); without known waiting for other ranks."""
    compared: bool
    """Waiting for other ranks is known."""
    on_host: bool
    track: int
    """Of the main thread."""
    waits: Intervals
    """When it did nothing but wait for those that threads of the host carry out, and not in `host_ids`."""


def _traffic(facts: Facts, found: Shards, chosen: Mask, more: IntArray | None = None) -> ShardTraffic:
    """Of some rows of the shards; `more` is what the host does for these besides."""
    table, used, known = collective_table(facts), steps(facts), waits(facts)
    rows = found.rows[chosen]
    inside = rows[table.in_steps[rows]]
    sizes = found.bytes[chosen][table.in_steps[rows]]
    running = intervals.clip(intervals.union_of(table.times, inside), used.start_ns, used.end_ns)
    on_host = bool(table.on_host[rows].any())
    stands = standing(facts) if on_host else intervals.EMPTY
    alone = stands if on_host or not len(rows) else device_time(facts).exposed_communication
    exposed = intervals.intersect(running, alone)
    transfer = exposed if known is None else intervals.subtract(exposed, known)
    host_ids = np.unique(np.concatenate((found.host_ids[chosen], found.host_ids[:0] if more is None else more)))
    start, dur = (facts.rank.spans[name].to_numpy()[host_ids] for name in ("start_ns", "dur_ns"))
    waiting = intervals.intersect(stands, intervals.union_of(table.times, rows[table.on_host[rows]]))
    return ShardTraffic(
        ids=table.ids[rows],
        host_ids=host_ids,
        calls=round_half_up(len(inside), used.count),
        bytes=round_half_up(int(sizes.sum()), used.count) if len(sizes) and (sizes >= 0).all() else None,
        ns=round_half_up(running.total, used.count),
        exposed_ns=round_half_up(transfer.total, used.count),
        compared=known is not None,
        on_host=on_host,
        track=host_threads(facts).main,
        waits=intervals.subtract(waiting, intervals.union(Intervals(start, start + dur))),
    )


@dataclass(frozen=True)
class ScatteredRounds:
    """Gradients that FSDP reduces and scatters between two steps of the optimizer."""

    rounds: int
    """That do so for each step of the optimizer (the median); 0 if none does."""
    alike: bool
    """All reduce equally often and as many bytes: the same gradients. Never of a pipeline."""
    early: ShardTraffic
    """Reductions of all rounds but the last."""
    again: ShardTraffic
    """Gathers of all rounds but the first, where parameters stay gathered until the backward pass is over."""
    gradient_bytes: int | None
    """Of one round, before they are scattered; None unknown."""


@fact
def scattered_rounds(facts: Facts) -> ScatteredRounds:
    """Of the whole recording. Raises Missing without ops, and like the table of collectives."""
    found = shards(facts)
    reduces, whole = ~found.gathers, (found.turn > 0) & (found.turn < found.turns)
    last = np.full(found.turns + 1, -1)
    np.maximum.at(last, found.turn[reduces], found.round[reduces])
    first = np.full(found.turns + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, found.turn, found.round)
    seen, place = np.unique(found.round[reduces & whole], return_inverse=True)
    turn = found.turn[reduces & whole]
    calls = np.bincount(place.ravel(), minlength=len(seen))
    carried = np.bincount(place.ravel(), weights=found.bytes[reduces & whole], minlength=len(seen))
    pairs = np.unique(np.stack((turn, found.round[reduces & whole])), axis=1)
    counts = np.unique(pairs[0], return_counts=True)[1]
    kept = not (found.gathers & found.backward).any()
    known = len(seen) > 0 and bool((found.bytes[reduces & whole] >= 0).all())
    return ScatteredRounds(
        rounds=round(float(np.median(counts))) if len(counts) else 0,
        alike=len(seen) > 0
        and bool((calls == calls[0]).all() and (carried == carried[0]).all())
        and not bool((roles(facts) == Role.STAGE).any()),
        early=_traffic(facts, found, reduces & (found.round < last[found.turn])),
        again=_traffic(facts, found, found.gathers & kept & (found.round > first[found.turn])),
        gradient_bytes=round(float(np.median(carried))) if known else None,
    )


@dataclass(frozen=True)
class Regathers:
    """Parameters that FSDP gathers for the backward pass although it had gathered them for the forward pass."""

    traffic: ShardTraffic
    units: int
    """Gathers of a round for the backward pass (the median)."""
    forward_units: int
    """The same for the forward pass."""
    bytes: int | None
    """Of the parameters of these units, all ranks' parts together; None unknown."""


@fact
def regathers(facts: Facts) -> Regathers:
    """Of the whole recording. Raises Missing without ops, and like the table of collectives."""
    found = shards(facts)
    again = found.gathers & found.backward & np.isin(found.round, found.round[found.gathers & ~found.backward])
    forward = found.gathers & ~found.backward & np.isin(found.round, found.round[again])
    seen, place = np.unique(found.round[again], return_inverse=True)
    size = np.bincount(place.ravel(), weights=found.bytes[again], minlength=len(seen))
    copies = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name.startswith(_COPY_OUT))
    copies = copies.where(_in_backward(facts, copies.start_ns, copies.track))
    return Regathers(
        traffic=_traffic(facts, found, again, copies.ids),
        units=_usual(found.round[again]),
        forward_units=_usual(found.round[forward]),
        bytes=round(float(np.median(size))) if len(seen) and (found.bytes[again] >= 0).all() else None,
    )


def _usual(rounds: IntArray) -> int:
    """How many each round has; the median."""
    counts = np.unique(rounds, return_counts=True)[1]
    return round(float(np.median(counts))) if len(counts) else 0


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
        units=_usual(found.round[forward]),
        blocks=_usual(np.unique(np.stack((found.round[forward], block[forward])), axis=1)[0]),
        bytes=None if usual is None else round(usual),
        latency_share=0.0 if usual is None else start_ns / max(start_ns + byte_ns * usual, 1.0),
        needless=_traffic(facts, found, ~kept),
        host=_hooks(facts, found, ~kept),
    )


def _occurrence(found: Shards) -> IntArray:
    """How many of the same unit, pass and kind came before each: in HSDP an all-reduce follows what was scattered."""
    count: dict[tuple[int, ...], int] = {}
    columns = (found.round, found.backward.astype(np.int64), found.gathers.astype(np.int64), found.unit)
    before = []
    for key in zip(*(one.tolist() for one in columns), strict=True):
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
    quick = np.array([np.quantile(takes[size == one], QUICK) for one in sizes])
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
        facts, SpanKind.ANNOTATION, named=lambda name: name.startswith("FSDP::") and _unit(name) in names - others
    )
    rest = host_spans(
        facts, SpanKind.ANNOTATION, named=lambda name: name.startswith("FSDP::") and _unit(name) in others
    )
    return tuple(
        (track, intervals.subtract(own.where(own.track == track).times, rest.where(rest.track == track).times))
        for track in np.unique(own.track).tolist()
    )


@dataclass(frozen=True)
class LateGathers:
    """FSDP's collectives on the device that nothing hides, although compute could. Numbers are per step."""

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
