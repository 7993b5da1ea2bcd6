"""What is copied between host and device, who asks for it where, and what would change if it were done differently?"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from diagnose.facts.base import Facts, Missing, fact, optional
from diagnose.facts.breakdown import device_time, round_half_up
from diagnose.facts.device import WorkClass, device_work
from diagnose.facts.dispatch import HostSpans, host_spans
from diagnose.facts.host import BLOCKING, api_calls, enclosing_op
from diagnose.facts.source_lines import sites_of
from diagnose.facts.steps import steps
from diagnose.facts.work import work_table
from diagnose.trace import enums, intervals, nesting
from diagnose.trace.enums import Direction, HostMemory, SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Site

TINY_BYTES = 64 * 1024
"""Copies under this size cost their launch, not their bytes: 64 KiB take 1 to 3 us (rule catalogue HD03)."""

LARGE_BYTES = 1024 * 1024
"""Copies from this size on run at the link's full speed."""

MAKERS = frozenset(
    f"aten::{name}"
    for name in ("zeros", "ones", "full", "arange", "rand", "randn", "randint", "randperm", "eye", "linspace", "tensor")
) | {"aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::rand_like", "aten::randn_like"}
"""Ops that make a tensor out of nothing."""

FILLERS = frozenset({"aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::random_"})
"""Ops that fill a tensor with what needs no input (torch's profiler pattern ExtraCUDACopy)."""


@dataclass(frozen=True)
class Transfer:
    """Copies between host and device of one kind, asked for by one op at one line, at least one in the used steps."""

    direction: Direction
    host_memory: HostMemory
    asked_by: str
    """The outermost op around the calls; "" if none."""
    site: Site | None
    ids: IntArray
    """The copies."""
    call_ids: IntArray
    """The calls that start them."""
    sync_ids: IntArray
    """Synchronisations that wait for them."""
    total_copies: int
    """In all used steps."""
    copies: int
    """Per step."""
    bytes: int | None
    """Per step, of the copies whose size was recorded; None if of none."""
    largest_bytes: int | None
    """Of one copy."""
    ns: int
    """Device time, per step."""
    exposed_ns: int
    """Of it, while neither compute nor communication ran, per step."""
    host_idle_ns: int
    """Idle time of the device while the host was in these calls or synchronisations, per step."""
    on_compute_stream: bool
    """Whether any of them ran on the stream that does most of its device's computing."""
    bandwidth_bytes_per_s: float | None
    """Bytes over device time, of the copies whose size was recorded."""


def _copies(facts: Facts) -> pd.DataFrame:
    """The `copies` of the whole recording, in order of their calls, with columns of `work_table`: `call` (the call that
    starts it), `op` and `asked` (innermost and outermost op around that), each -1 if unknown; times, track, in_steps.
    """
    table, copies = work_table(facts), facts.rank.copies
    row = np.searchsorted(table.ids, copies.index.to_numpy())
    return copies.assign(
        start_ns=table.start_ns[row],
        end_ns=table.end_ns[row],
        call=table.launch[row],
        op=table.op[row],
        asked=table.asked_by[row],
        track=table.track[row],
        in_steps=table.in_steps[row],
    ).sort_values("call", kind="stable")


def _between(copies: pd.DataFrame, *directions: Direction) -> pd.DataFrame:
    """Those that go in one of these directions."""
    chosen: pd.DataFrame = copies[copies["direction"].isin([one.value for one in directions])]
    return chosen


@fact
def transfers(facts: Facts) -> tuple[Transfer, ...]:
    """Copies between host and device, longest first; empty if there are none. Raises Missing without device work."""
    table = copy_table(facts)
    table = table.where(table.of(Direction.H2D, Direction.D2H))
    groups = grouped(facts, table.call, table.direction, table.memory, name_codes(facts, table.asked))
    found = [_transfer(facts, table.where(rows), site) for rows, site in groups if table.in_steps[rows].any()]
    return tuple(sorted(found, key=lambda one: -one.ns))


def _transfer(facts: Facts, every: CopyTable, site: Site | None) -> Transfer:
    """One group; `every` holds its copies in the whole recording."""
    used, time, seen = steps(facts), device_time(facts), every.where(every.in_steps)
    took, known = seen.end_ns - seen.start_ns, seen.bytes >= 0
    size, timed = seen.bytes[known], int(took[known].sum())
    calls, syncs = np.unique(every.call[every.call >= 0]), _syncs_of(facts, every.ids)
    waiting = intervals.intersect(_times(facts, np.append(calls, syncs)), time.idle)
    running = intervals.union(Intervals(seen.start_ns, seen.end_ns))
    return Transfer(
        direction=list(Direction)[int(every.direction[0])],
        host_memory=list(HostMemory)[int(every.memory[0])],
        asked_by=name_of(facts, int(every.asked[0])),
        site=site,
        ids=np.sort(every.ids),
        call_ids=calls,
        sync_ids=syncs,
        total_copies=len(seen.ids),
        copies=round_half_up(len(seen.ids), used.count),
        bytes=round_half_up(int(size.sum()), used.count) if len(size) else None,
        largest_bytes=int(size.max()) if len(size) else None,
        ns=round_half_up(int(took.sum()), used.count),
        exposed_ns=round_half_up(intervals.intersect(running, time.exposed_copies).total, used.count),
        host_idle_ns=round_half_up(waiting.total, used.count),
        on_compute_stream=bool(np.isin(seen.track, _compute_streams(facts)).any()),
        bandwidth_bytes_per_s=int(size.sum()) / timed * 1e9 if timed else None,
    )


def _syncs_of(facts: Facts, copies: IntArray) -> IntArray:
    """Synchronisations that wait for one of the copies."""
    calls = api_calls(facts)
    syncs = calls.ids[calls.of(*BLOCKING)]
    return syncs[np.isin(copy_before(facts, syncs), copies)]


def _times(facts: Facts, ids: IntArray) -> Intervals:
    """Normal set of the time in at least one of the spans."""
    start, dur = (facts.rank.spans[name].to_numpy()[ids] for name in ("start_ns", "dur_ns"))
    return intervals.union(Intervals(start, start + dur))


def _compute_streams(facts: Facts) -> IntArray:
    """Of each device the track on which compute kernels took the most time."""
    work, tracks = device_work(facts), facts.rank.tracks
    computing = work.work_class == WorkClass.COMPUTE
    busy = np.zeros(len(tracks), dtype=np.int64)
    np.add.at(busy, work.track[computing], (work.end_ns - work.start_ns)[computing])
    device = tracks["device"].to_numpy()
    best = [np.flatnonzero(device == one)[busy[device == one].argmax()] for one in np.unique(device[busy > 0])]
    return np.array(best, dtype=np.int64)


def copy_before(facts: Facts, ids: IntArray) -> IntArray:
    """The copy that each host call starts, else the last one between host and device that its innermost op has started.

    Span ids of copies, -1 where there is none. Shape (ids,).
    """
    table, result = optional(copy_table, facts), np.full(len(ids), -1, dtype=np.int64)
    if table is None or not (table.call >= 0).any():
        return result
    table, op, spans = table.where(table.call >= 0), enclosing_op(facts, ids), len(facts.rank.spans)
    inside = table.where(table.of(Direction.H2D, Direction.D2H) & (table.op >= 0))
    key = inside.op * spans + inside.call
    order = np.argsort(key, kind="stable")
    before = np.searchsorted(key[order], op * spans + ids) - 1
    found = np.flatnonzero((op >= 0) & (before >= 0))
    rows = order[before[found]]
    same = inside.op[rows] == op[found]
    result[found[same]] = inside.ids[rows[same]]
    last = np.searchsorted(table.call, ids, side="right") - 1
    return np.where((last >= 0) & (table.call[last] == ids), table.ids[last], result)


def name_codes(facts: Facts, ids: IntArray) -> IntArray:
    """The number of each span's name, -1 where the id is -1. Shape (ids,)."""
    return np.where(ids >= 0, facts.rank.spans["name"].cat.codes.to_numpy()[ids], -1).astype(np.int64)


def name_of(facts: Facts, span: int) -> str:
    """A span's name; "" for -1."""
    return str(facts.rank.spans["name"].iloc[span]) if span >= 0 else ""


def grouped(facts: Facts, calls: IntArray, *columns: IntArray) -> list[tuple[IntArray, Site | None]]:
    """Rows that agree in all columns and in the line of the user's code that led to their host call (-1: unknown)."""
    if not len(calls):
        return []
    known = np.flatnonzero(calls >= 0)
    sites = dict(zip(known.tolist(), sites_of(facts, calls[known]), strict=True))
    numbers: dict[Site | None, int] = {}
    site = [numbers.setdefault(sites.get(row), len(numbers)) for row in range(len(calls))]
    _, group = np.unique(np.stack([*columns, np.array(site, dtype=np.int64)]), axis=1, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(group.reshape(-1)))[:-1])
    return [(mine, sites.get(int(mine[0]))) for mine in rows]


@fact
def pinned_bandwidth(facts: Facts) -> float | None:
    """Median bytes/s of copies from pinned memory of LARGE_BYTES or more; None without. Raises Missing like copy_table."""
    table = copy_table(facts)
    took = table.end_ns - table.start_ns
    pinned = table.of(Direction.H2D) & (table.memory == enums.code(HostMemory.PINNED))
    chosen = pinned & (table.bytes >= LARGE_BYTES) & (took > 0)
    return float(np.median(table.bytes[chosen] / took[chosen])) * 1e9 if chosen.any() else None


@dataclass(frozen=True)
class TinyPlace:
    """Tiny copies of one direction, asked for by one op at one line."""

    direction: Direction
    asked_by: str
    """The outermost op around the calls; "" if none."""
    site: Site | None
    total_copies: int
    """In all used steps."""


@dataclass(frozen=True)
class TinyCopies:
    """Copies of less than TINY_BYTES, in any direction."""

    ids: IntArray
    call_ids: IntArray
    op_ids: IntArray
    """The outermost ops around them that start nothing but tiny copies."""
    copies: int
    """Per step."""
    host_ns: int
    """Host time in these calls and ops, per step."""
    host_idle_ns: int
    """Idle time of the device while the host was in them, per step."""
    places: tuple[TinyPlace, ...]
    """Where they come from, most copies first."""


@fact
def tiny_copies(facts: Facts) -> TinyCopies:
    """Tiny copies. Raises Missing without device work, or if the sizes of all copies are unknown."""
    table, used = copy_table(facts), steps(facts)
    if len(table.ids) and (table.bytes < 0).all():
        raise Missing("sizes of copies", "Record with a current PyTorch: older ones on ROCm leave them out.")
    table = table.where((table.bytes >= 0) & (table.bytes < TINY_BYTES))
    calls = np.unique(table.call[table.call >= 0])
    ops = _ops_of_only(facts, calls)
    times = _times(facts, np.append(calls, ops))
    seen = table.where(table.in_steps)
    groups = grouped(facts, seen.call, seen.direction, name_codes(facts, seen.asked))
    places = [
        TinyPlace(list(Direction)[int(seen.direction[rows[0]])], name_of(facts, int(seen.asked[rows[0]])), site, len(rows))
        for rows, site in groups
    ]
    return TinyCopies(
        ids=np.sort(table.ids),
        call_ids=calls,
        op_ids=ops,
        copies=round_half_up(len(seen.ids), used.count),
        host_ns=round_half_up(intervals.clip(times, used.start_ns, used.end_ns).total, used.count),
        host_idle_ns=round_half_up(intervals.intersect(times, device_time(facts).idle).total, used.count),
        places=tuple(sorted(places, key=lambda place: -place.total_copies)),
    )


def _ops_of_only(facts: Facts, calls: IntArray) -> IntArray:
    """The outermost ops around these calls that start no other device work."""
    ops, launch = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE), device_work(facts).launch
    up = nesting.parents(ops.track, ops.start_ns, ops.end_ns)

    def around(spans: IntArray) -> IntArray:
        found = np.unique(enclosing_op(facts, spans))
        return np.searchsorted(ops.ids, found[found >= 0])

    mixed = np.zeros(len(up) + 1, dtype=bool)
    at = around(np.setdiff1d(launch[launch >= 0], calls))
    while len(at):
        mixed[at] = True
        at = np.unique(up[at])
        at = at[(at >= 0) & ~mixed[at]]
    mixed[-1] = True
    at = around(calls)
    at = at[~mixed[at]]
    while (climbing := ~mixed[up[at]]).any():
        at = np.where(climbing, up[at], at)
    return ops.ids[np.unique(at)]


@dataclass(frozen=True)
class HostBorn:
    """Tensors made on the host by one op at one line and copied to the device at once."""

    made_by: str
    site: Site | None
    ids: IntArray
    """The ops that make them."""
    move_ids: IntArray
    """The ops that copy them. Shape as `ids`."""
    copy_ids: IntArray
    """The copies. Shape as `ids`."""
    total_calls: int
    """In all used steps."""
    bytes: int | None
    """Per step; None if no size was recorded."""
