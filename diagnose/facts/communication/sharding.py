"""What does FSDP communicate more often, in smaller pieces, or later than it has to?

A *unit* is what `fully_shard` or FullyShardedDataParallel wraps: its parameters are gathered by one collective. FSDP2
names it in its ranges, as in `FSDP::all_gather (layers.1)`; FSDP1 does not, so that units are told by their turn in a
pass. A *round* is a forward pass and the backward passes that follow it: a micro-batch.
"""

import re

import numpy as np
import pandas as pd
from msgspec import Struct

from diagnose.facts.communication.collectives import SMALL_BYTES, bytes_of_inputs, collective_table
from diagnose.facts.communication.host_collectives import standing
from diagnose.facts.communication.overlap import HIDING_SHARE
from diagnose.facts.communication.peers import waits
from diagnose.facts.communication.roles import Role, asked_by, of_roles, roles
from diagnose.facts.core.base import Facts, fact, once
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import BACKWARD, Mask, name_codes, named
from diagnose.facts.core.spans import NO_SPANS, HostSpans, host_spans, members, names_of, require_ops, spans_of
from diagnose.facts.core.steps import steps
from diagnose.facts.optimizer.optimizer import updates
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals

OPEN_SHARE = 0.1  # Of a collective's own time, from which on it is exposed (our choice).
QUICK = 0.25  # Quantile of what equal collectives take: one in ten of gloo loses a slice of the scheduler (4 ms seen).

_FORWARD = re.compile(r"FSDP::pre_forward|FullyShardedDataParallel\._pre_forward\Z")
_BACKWARD = re.compile(r"(FSDP::((root_)?post_|pre_)?|FullyShardedDataParallel\._(pre|post)_)backward")
_OWN = re.compile(r"FSDP::(all_gather|post_backward_reduce)(?!_)")  # With copies to and from its buffer, and the wait.
_COPY_OUT = re.compile("FSDP::all_gather_copy_out")
_UNIT = re.compile(r"\(([^)]*)\)")
_BLOCK = re.compile(r"([^.]+\.)*?\d+(?=\.|\Z)")


class Shards(Struct, frozen=True):
    """FSDP's collectives, in the order in which they are asked for. Arrays of shape (collectives,)."""

    rows: IntArray  # Of the table of collectives.
    gathers: Mask  # Of parameters; else they reduce and scatter gradients.
    backward: Mask  # Asked for in a backward pass.
    turn: IntArray  # Steps of the optimizer before it.
    turns: int  # Steps of the optimizer.
    round: IntArray  # Numbered over the recording.
    unit: IntArray  # Position in `units`.
    units: tuple[str, ...]  # Names; "" is the root, or any of FSDP1.
    host_ids: IntArray  # The range, or else the op, that does nothing but this.
    bytes: IntArray  # All ranks' parts together; -1 unknown.


class ShardTraffic(Struct, frozen=True):
    """Some of FSDP's collectives. Numbers are per step."""

    ids: IntArray
    host_ids: IntArray  # What the host does for nothing but these.
    calls: int
    ns: int  # Time in which one at least was running.
    exposed_ns: int  # While nothing was computed (on the host: the main thread stood); without known waiting for ranks.
    on_host: bool
    track: int  # Of the main thread.
    waits: Intervals  # When it only waited for those that threads of the host carry out, and not in `host_ids`.


class Sharding(Struct, frozen=True):
    """FSDP's collectives, and which of them could be left out or hidden. Numbers are per step."""

    compared: bool  # Waiting for other ranks is known.
    rounds: int  # That reduce gradients for each step of the optimizer (the median); 0 if none does.
    alike: bool  # All reduce equally often and as many bytes: the same gradients. Never of a pipeline.
    early: ShardTraffic  # Reductions of all rounds but the last.
    kept: ShardTraffic  # Gathers of all rounds but the first, where parameters stay gathered until the pass is over.
    gradient_bytes: int | None  # Of one round, before they are scattered; None unknown.
    again: ShardTraffic  # Gathers for the backward pass of what had been gathered for the forward pass.
    units_again: int  # These of a round (the median).
    bytes_again: int | None  # Of the parameters of these units, all ranks' parts together; None unknown.
    units: int  # Gathered in a forward pass.
    blocks: int  # That would be if each block were one: `layers.1` of `layers.1.mlp` and `layers.1.attention`.
    unit_bytes: int | None  # Of a unit, in the median.
    latency_share: float  # Of what collectives take, what they would take without any bytes; 0 unknown.
    needless: ShardTraffic  # Collectives that would be left out if the units of a block were one.
    hooks: tuple[tuple[int, Intervals], ...]  # By thread, when it was in FSDP's hooks of these units.
    late_ids: IntArray  # Exposed collectives on the device that compute could hide.
    late_ns: int  # That compute before gathers, or behind reductions, could hide; without known waiting for ranks.
    late_share: float  # The same of the time of `late_ids`.


@fact
def sharding(facts: Facts) -> Sharding:
    """Of the whole recording. Raises Missing without ops, and like the table of collectives."""
    found = shards(facts)
    forward = found.gathers & ~found.backward
    again = found.gathers & found.backward & np.isin(found.round, found.round[forward])
    early, kept = _of_other_rounds(found)
    reduces = ~found.gathers & (found.turn > 0) & (found.turn < found.turns)
    copies = _ranges(facts, _COPY_OUT)
    copies = copies.where(_in_backward(facts, copies))
    block, (start_ns, byte_ns), sizes = _blocks(facts, found), _cost(facts, found), found.bytes[found.gathers]
    usual = float(np.median(sizes)) if len(sizes) and (sizes >= 0).all() else None
    needless = _needless(found, block, start_ns, byte_ns)
    late, late_ns, late_share = _late(facts, found)
    return Sharding(
        compared=waits(facts) is not None,
        rounds=_median_count(np.unique(np.stack((found.turn, found.round))[:, reduces], axis=1)[0]),
        alike=_alike(found, reduces) and not bool(of_roles(facts, Role.STAGE).any()),
        early=_traffic(facts, found, early),
        kept=_traffic(facts, found, kept),
        gradient_bytes=_bytes_of_a_round(found, reduces),
        again=_traffic(facts, found, again, copies.ids),
        units_again=_median_count(found.round[again]),
        bytes_again=_bytes_of_a_round(found, again),
        units=_median_count(found.round[forward]),
        blocks=_median_count(np.unique(np.stack((found.round, block))[:, forward], axis=1)[0]),
        unit_bytes=None if usual is None else round(usual),
        latency_share=0.0 if usual is None else start_ns / max(start_ns + byte_ns * usual, 1.0),
        needless=_traffic(facts, found, needless),
        hooks=_hooks(facts, found, needless),
        late_ids=late,
        late_ns=late_ns,
        late_share=late_share,
    )


@once
def shards(facts: Facts) -> Shards:
    """Of the whole recording; none if FSDP is not used. Raises Missing without ops, and like the table."""
    require_ops(facts)
    table, by = collective_table(facts), asked_by(facts, collective_table(facts))
    rows = np.flatnonzero(of_roles(facts, Role.SHARD_GATHER, Role.SHARD_REDUCE) & (by >= 0))
    rows = rows[np.argsort(facts.rank.spans["start_ns"].to_numpy()[by[rows]], kind="stable")]
    asking, ranges = spans_of(facts, by[rows]), _ranges(facts, _OWN)
    around = np.append(ranges.ids, intervals.NONE)[ranges.around(asking)]
    names = [*names_of(facts), ""]
    unit_of = [_unit_name(names[code]) for code in name_codes(facts, around).tolist()]
    units: dict[str, int] = {}
    ended = np.sort(updates(facts).end_ns)
    return Shards(
        rows=rows,
        gathers=roles(facts)[rows] == Role.SHARD_GATHER,
        backward=_in_backward(facts, asking),
        turn=np.searchsorted(ended, asking.start_ns, side="right"),
        turns=len(ended),
        round=_rounds(facts, asking.start_ns),
        unit=np.array([units.setdefault(one, len(units)) for one in unit_of], dtype=np.int64),
        units=tuple(units),
        host_ids=np.where(around >= 0, around, asking.ids),
        bytes=_bytes(facts, table.bytes[rows], asking.ids),
    )


def _ranges(facts: Facts, named: re.Pattern[str]) -> HostSpans:
    return host_spans(facts, SpanKind.ANNOTATION, named=lambda name: bool(named.match(name)))


def _unit_name(name: str) -> str:
    found = _UNIT.search(name)
    return found[1] if found else ""


def _in_backward(facts: Facts, spans: HostSpans) -> Mask:
    ops = host_spans(facts, SpanKind.OP, named=lambda name: name.startswith(BACKWARD))
    return (ops.around(spans) >= 0) | (_ranges(facts, _BACKWARD).around(spans) >= 0)


def _rounds(facts: Facts, at: IntArray) -> IntArray:
    """The round that each moment is in: how many forward passes, the first or after a backward pass, have begun.

    Without any backward pass each recorded step is a round.
    """
    forward, backward = _ranges(facts, _FORWARD), _ranges(facts, _BACKWARD)
    forward = forward.where(~_in_backward(facts, forward))
    if not len(backward.ids):
        return np.searchsorted([step.start_ns for step in facts.rank.steps], at, side="right").astype(np.int64)
    moments = np.concatenate((forward.start_ns, backward.start_ns))
    order = np.argsort(moments, kind="stable")
    begins = (np.arange(len(moments)) < len(forward.ids))[order]
    new = begins & ~np.concatenate(([False], begins[:-1]))[: len(begins)]
    return np.searchsorted(moments[order][new], at, side="right")


def _bytes(facts: Facts, table_bytes: IntArray, op_ids: IntArray) -> IntArray:
    """Bytes of each collective: as the table says, else on the host by the inputs of the op that asked for it."""
    input_bytes = bytes_of_inputs(facts, op_ids, lambda sizes: max(sizes) or -1)
    world = max(facts.rank.provenance.world_size or 0, 1)
    only_own_part = named(facts, op_ids, "c10d::allgather_") & (input_bytes > 0)  # Only a rank's own part is recorded.
    return np.where(table_bytes >= 0, table_bytes, input_bytes * np.where(only_own_part, world, 1))


def _traffic(facts: Facts, found: Shards, chosen: Mask, more: IntArray = NO_SPANS.ids) -> ShardTraffic:
    """Time and calls per step of the chosen collectives; `more`: host spans that an edit removes with them."""
    table, used, peer_waits = collective_table(facts), steps(facts), waits(facts)
    rows = found.rows[chosen]
    inside = rows[table.in_steps[rows]]
    running = intervals.clip(intervals.union_of(table.times, inside), used.start_ns, used.end_ns)
    on_host = bool(table.on_host[rows].any())
    blocked = standing(facts) if on_host else intervals.EMPTY
    without_compute = blocked if on_host or not len(rows) else device_time(facts).exposed_communication
    exposed = intervals.intersect(running, without_compute)
    transfer = exposed if peer_waits is None else intervals.subtract(exposed, peer_waits)
    host = spans_of(facts, np.union1d(found.host_ids[chosen], more))
    waiting = intervals.intersect(blocked, intervals.union_of(table.times, rows[table.on_host[rows]]))
    return ShardTraffic(
        ids=table.ids[rows],
        host_ids=host.ids,
        calls=round_half_up(len(inside), used.count),
        ns=round_half_up(running.total, used.count),
        exposed_ns=round_half_up(transfer.total, used.count),
        on_host=on_host,
        track=host_threads(facts).main,
        waits=intervals.subtract(waiting, host.times),
    )


def _median_count(groups: IntArray) -> int:
    counts = np.unique(groups, return_counts=True)[1]
    return round(float(np.median(counts))) if len(counts) else 0


def _bytes_of_a_round(found: Shards, chosen: Mask) -> int | None:
    """Bytes of the chosen ones of a round together, median of rounds; None if there are none, or some are unknown."""
    carried = np.bincount(np.unique(found.round[chosen], return_inverse=True)[1].ravel(), found.bytes[chosen])
    return round(float(np.median(carried))) if len(carried) and (found.bytes[chosen] >= 0).all() else None


def _alike(found: Shards, reduces: Mask) -> bool:
    """Whether all rounds reduce equally often and as many bytes; False if none does."""
    _, round_row, calls = np.unique(found.round[reduces], return_inverse=True, return_counts=True)
    round_bytes = np.bincount(round_row.ravel(), weights=found.bytes[reduces])
    return len(calls) > 0 and bool(np.ptp(calls) == 0 and np.ptp(round_bytes) == 0)


def _of_other_rounds(found: Shards) -> tuple[Mask, Mask]:
    """Masks: reductions before their turn's last round, and gathers after its first if parameters are kept."""
    reduces, kept = ~found.gathers, not (found.gathers & found.backward).any()
    last = np.full(found.turns + 1, -1)
    np.maximum.at(last, found.turn[reduces], found.round[reduces])
    first = np.full(found.turns + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, found.turn, found.round)
    return reduces & (found.round < last[found.turn]), found.gathers & kept & (found.round > first[found.turn])


def _blocks(facts: Facts, found: Shards) -> IntArray:
    """A number for the block of each row: equal for units whose names up to the first number, and groups, are equal."""
    table, numbers = collective_table(facts), dict[tuple[object, ...], int]()
    block = [one[0] if (one := _BLOCK.match(unit)) else unit for unit in found.units]
    keys = [  # Without a name (the root, units of FSDP1) each is a block of its own.
        (block[unit], table.group_ranks[row], table.group_description[row]) if found.units[unit] else (number,)
        for number, (unit, row) in enumerate(zip(found.unit.tolist(), found.rows.tolist(), strict=True))
    ]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _cost(facts: Facts, found: Shards) -> tuple[float, float]:
    """(ns to start a gather, ns per byte), from the fastest quarter of the gathers of each size.

    Where all are of one size, one of SMALL_BYTES is taken to need as long for its bytes as to start.
    """
    table, waiting = collective_table(facts), waits(facts)
    chosen = found.gathers & (found.bytes > 0) & table.in_steps[found.rows]
    times, size = table.times.where(found.rows[chosen]), found.bytes[chosen].astype(np.float64)
    takes = times.ends - times.starts - (0 if waiting is None else intervals.covered(times, waiting))
    sizes = np.unique(size)
    if not len(sizes):
        return 0.0, 0.0
    quick_ns = np.array([np.quantile(takes[size == one_size], QUICK) for one_size in sizes])
    low, high = np.triu_indices(len(sizes), 1)
    far_apart = sizes[high] >= 2 * sizes[low]
    if far_apart.any():  # Theil and Sen's estimate: the median slope of all pairs.
        byte_ns = max(float(np.median(((quick_ns[high] - quick_ns[low]) / (sizes[high] - sizes[low]))[far_apart])), 0.0)
    else:
        byte_ns = float(np.median(quick_ns / (sizes + SMALL_BYTES)))
    return float(np.clip(np.median(quick_ns - byte_ns * sizes), 0.0, quick_ns.min())), byte_ns


def _needless(found: Shards, block: IntArray, start_ns: float, byte_ns: float) -> Mask:
    """Mask: collectives that one unit per block would spare; as many stay as take the time of one with all the bytes.

    In HSDP an all-reduce follows what was scattered, so that the first of a unit is not joined with its second.
    """
    needless = np.zeros(len(found.rows), dtype=bool)
    keys = pd.DataFrame({"round": found.round, "backward": found.backward, "gathers": found.gathers})
    keys["occurrence"] = keys.assign(unit=found.unit).groupby([*keys, "unit"]).cumcount()
    group = keys.assign(block=block).groupby([*keys, "block"]).ngroup().to_numpy().astype(np.int64)
    for same in members(group, int(group.max(initial=-1)) + 1):
        mine = same[np.argsort(found.unit[same], kind="stable")]  # In the order of the forward pass.
        each = start_ns + byte_ns * found.bytes[mine]
        if len(mine) > 1 and (found.bytes[mine] >= 0).all() and each.sum() > 0:
            whole = start_ns + byte_ns * found.bytes[mine].sum()
            needless[mine[max(round(float(whole / each.mean())), 1) :]] = True
    return needless


def _hooks(facts: Facts, found: Shards, chosen: Mask) -> tuple[tuple[int, Intervals], ...]:
    """By thread, the time in FSDP2's ranges of units all of whose collectives are chosen, less that in other units'."""
    others = {found.units[unit] for unit in found.unit[~chosen].tolist()}
    alone = {found.units[unit] for unit in found.unit[chosen].tolist()} - others

    def of(units: set[str]) -> HostSpans:
        return host_spans(
            facts, SpanKind.ANNOTATION, named=lambda one: one[:6] == "FSDP::" and _unit_name(one) in units
        )

    own, rest = of(alone), of(others)
    return tuple(
        (track, intervals.subtract(own.where(own.track == track).times, rest.where(rest.track == track).times))
        for track in np.unique(own.track).tolist()
    )


def _late(facts: Facts, found: Shards) -> tuple[IntArray, int, float]:
    """Exposed collectives of used steps that compute could hide, how much of them per step, and what share of their
    time; none on the host, where nothing runs beside."""
    table, known, used = collective_table(facts), waits(facts), steps(facts)
    chosen = ~table.on_host[found.rows] & table.in_steps[found.rows]
    rows = found.rows[chosen]
    if not len(rows):
        return rows, 0, 0.0
    times, compute = table.times.where(rows), device_time(facts).compute
    waited = 0 if known is None else intervals.covered(times, known)  # Waiting comes first.
    transfer = Intervals(times.starts + waited, times.ends)
    lasted = transfer.ends - transfer.starts
    idle_links = intervals.subtract(compute, intervals.union(times))
    could_ns = HIDING_SHARE * _hiding_ns(found, chosen, times, idle_links)
    hidden = np.minimum(lasted - intervals.covered(transfer, compute), could_ns).astype(np.int64)
    late = hidden >= OPEN_SHARE * lasted
    total = int(hidden[late].sum())
    return table.ids[rows[late]], round_half_up(total, used.count), float(total / max(lasted[late].sum(), 1))


def _hiding_ns(found: Shards, chosen: Mask, times: Intervals, compute: Intervals) -> IntArray:
    """ns of compute that could hide each: since the gather before in its pass, or until the reduction behind it.

    `compute` is what ran while none of them did, as a link carries one after the other. In a round with one unit all of
    it could, as that unit could be in pieces.
    """
    rounds, gathers, backward = found.round[chosen], found.gathers[chosen], found.backward[chosen]
    kind = np.where(gathers, backward, 2)
    order = np.lexsort((times.starts, kind, rounds))
    same = (np.diff(rounds[order]) == 0) & (np.diff(kind[order]) == 0)
    before, behind = order[:-1][same], order[1:][same]
    hides = np.where(gathers[behind], behind, before)
    begin, end = np.zeros((2, len(order)), dtype=np.int64)
    begin[hides], end[hides] = times.ends[before], np.maximum(times.starts[behind], times.ends[before])
    forward, counts = np.unique(rounds[gathers & ~backward], return_counts=True)
    each = compute.total // max(len(np.unique(rounds)), 1)
    return np.where(np.isin(rounds, forward[counts == 1]), each, intervals.covered(Intervals(begin, end), compute))
