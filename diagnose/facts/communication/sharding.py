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

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.held import standing
from diagnose.facts.communication.peers import waits
from diagnose.facts.communication.roles import Role, asked_by, roles
from diagnose.facts.core.base import Facts, once
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

Mask = npt.NDArray[np.bool_]

_FORWARD = re.compile(r"FSDP::pre_forward|FullyShardedDataParallel\._pre_forward\Z")
_BACKWARD = re.compile(
    r"FSDP::(pre_backward|post_backward|root_post_backward|backward_prefetch)|"
    r"FullyShardedDataParallel\._(pre|post)_backward"
)
_OWN = re.compile(r"FSDP::(all_gather|post_backward_reduce)(?!_)")
"""Ranges that hold all that one collective needs: copies into and out of its buffer, and waiting for it."""
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
    unit_of = [unit_name(str(names[k])) if k >= 0 else "" for k in around.tolist()]
    units = tuple(dict.fromkeys(unit_of))
    ended = np.sort(updates(facts).end_ns)
    return Shards(
        rows=rows,
        gathers=role[rows] == Role.SHARD_GATHER,
        backward=in_backward(facts, at, track),
        turn=np.searchsorted(ended, at, side="right"),
        turns=len(ended),
        round=_rounds(facts, at),
        unit=np.array([units.index(one) for one in unit_of], dtype=np.int64),
        units=units,
        host_ids=np.where(around >= 0, np.append(ranges.ids, -1)[around], by),
        bytes=_bytes(facts, table.bytes[rows], by),
    )


def _ranges(facts: Facts, named: re.Pattern[str]) -> HostSpans:
    return host_spans(facts, SpanKind.ANNOTATION, named=lambda name: bool(named.match(name)))


def unit_name(name: str) -> str:
    """The unit that a range is about; "" if it tells none."""
    found = _UNIT.search(name)
    return found[1] if found else ""


def _innermost(some: HostSpans, at: IntArray, track: IntArray) -> IntArray:
    return nesting.innermost_at(at, track, some.track, some.start_ns, some.end_ns)


def in_backward(facts: Facts, at: IntArray, track: IntArray) -> Mask:
    """Which moments of threads are in a backward pass."""
    ops = host_spans(facts, SpanKind.OP, named=lambda name: name.startswith(BACKWARD))
    found: Mask = (_innermost(ops, at, track) >= 0) | (_innermost(_ranges(facts, _BACKWARD), at, track) >= 0)
    return found


def _rounds(facts: Facts, at: IntArray) -> IntArray:
    """How many forward passes have begun after a backward pass, or as the first, until each moment.

    Without any backward pass each recorded step is a round.
    """
    forward, backward = _ranges(facts, _FORWARD), _ranges(facts, _BACKWARD)
    forward = forward.where(~in_backward(facts, forward.start_ns, forward.track))
    if not len(backward.ids):
        return np.searchsorted([step.start_ns for step in facts.rank.steps], at, side="right").astype(np.int64)
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


def traffic(facts: Facts, found: Shards, chosen: Mask, more: IntArray | None = None) -> ShardTraffic:
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


def each_round(rounds: IntArray) -> int:
    """How many each round has, given the rounds of some; the median."""
    counts = np.unique(rounds, return_counts=True)[1]
    return round(float(np.median(counts))) if len(counts) else 0
