"""What is copied, who asks for it at which line, and for how long do the host and the device wait for it?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import BLOCKING, api_calls, enclosing_op
from diagnose.facts.core.inputs import grouped, name_codes, name_of
from diagnose.facts.core.spans import HostSpans, host_spans, in_used_steps, launched_in
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.core.work import sole_ops, work_table
from diagnose.trace import intervals
from diagnose.trace.enums import Direction, HostMemory, SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

TINY_BYTES = 64 * 1024  # Copies under this size cost their launch, not their bytes: 64 KiB take 1 to 3 us (our choice).

OFFLOAD_BYTES = 1_000_000_000
"""A step from which on copies are of what is kept on the host: batches are seldom as large (our choice)."""

OFFLOAD_COPIES = 8  # The same: a batch comes in fewer tensors, and a model has more layers (our choice).

_FILLS = ["aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::random_"]
_MAKES = ["zeros", "ones", "full", "rand", "randn", "randint", "arange", "randperm", "eye", "linspace"]
MAKERS = [*_FILLS, *(f"aten::{name}{like}" for name in _MAKES for like in ("", "_like"))]
"""Ops that make or fill a tensor out of nothing."""

_LIFTS = ["aten::lift_fresh", "aten::detach_"]
"""`torch.tensor(data)` ends with them. With a device it is an empty on the host, a move, and these."""

_TO_OR_FROM_HOST = (Direction.H2D.value, Direction.D2H.value)
_OPS = (SpanKind.OP, SpanKind.COLLECTIVE)


class Transfer(Struct, frozen=True):
    """Copies of one kind, asked for by one op at one line, at least one of them in the used steps."""

    direction: Direction
    host_memory: HostMemory
    asked_by: str  # The outermost op around the calls; "" if none.
    site: Site | None
    ids: IntArray  # The copies.
    call_ids: IntArray  # The calls that start them.
    sync_ids: IntArray  # Synchronisations that wait for them.
    op_ids: IntArray  # The outermost ops around the calls that start nothing but such copies: what goes if they go.
    total_copies: int  # In all used steps.
    copies: int  # Per step.
    bytes: int | None  # Per step, of the copies whose size was recorded; None if of none.
    largest_bytes: int | None  # Of one copy.
    ns: int  # Device time, per step.
    exposed_ns: int  # Of it, while neither compute nor communication ran, per step.
    call_idle_ns: int  # Idle time of the device while the host was in these calls and synchronisations, per step.
    host_ns: int  # Host time in these calls, synchronisations and `op_ids`, per step.
    host_idle_ns: int  # Idle time of the device while the host was in these, per step.
    bandwidth_bytes_per_s: float | None  # Bytes over device time, of the copies whose size was recorded.
    most_bytes_per_s: tuple[float, float] | None  # Rates of most copies of TINY_BYTES and more: p10 and p90.

    @property
    def offloads(self) -> bool:
        """Whether these are so many bytes in so many copies a step that they are hardly a batch."""
        return (self.bytes or 0) >= OFFLOAD_BYTES and self.copies >= OFFLOAD_COPIES


@fact
def transfers(facts: Facts) -> tuple[Transfer, ...]:
    """Copies between host and device, longest first; empty if there are none. Raises Missing without device work."""
    copies = _copies(facts)
    found = _groups(facts, copies[copies["direction"].isin(_TO_OR_FROM_HOST)])
    return tuple(sorted(found, key=lambda one: -one.ns))


@fact
def tiny_copies(facts: Facts) -> tuple[Transfer, ...]:
    """Copies of less than TINY_BYTES in any direction, most first. Raises Missing without device work or any size."""
    copies = _copies(facts)
    if len(copies) and (copies["bytes"] < 0).all():
        raise Missing("sizes of copies", "Record with a current PyTorch; older ROCm versions omit the sizes.")
    found = _groups(facts, copies[(copies["bytes"] >= 0) & (copies["bytes"] < TINY_BYTES)])
    return tuple(sorted(found, key=lambda one: -one.total_copies))


def _copies(facts: Facts) -> pd.DataFrame:
    """The table `copies` of the whole recording in order of their calls, with columns of `work_table`.

    `call` starts the copy; `op` and `asked` are the innermost and outermost op around it; each -1 if unknown.
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


def _groups(facts: Facts, copies: pd.DataFrame) -> list[Transfer]:
    """Copies by direction, memory, asking op and line; only groups with a copy inside a used step."""
    codes = (copies[name].cat.codes.to_numpy().astype(np.int64) for name in ("direction", "host_memory"))
    groups = grouped(facts, copies["call"].to_numpy(), *codes, name_codes(facts, copies["asked"].to_numpy()))
    calls = api_calls(facts)
    syncs = calls.ids[calls.of(*BLOCKING)]
    sync_of = np.full(len(facts.rank.spans) + 1, -1, dtype=np.int64)
    sync_of[copy_before(facts, syncs)] = syncs
    copies = copies.assign(sync=sync_of[copies.index.to_numpy()], sole_op=sole_ops(facts, copies["call"].to_numpy()))
    return [_transfer(facts, copies.iloc[rows], site) for rows, site in groups if copies["in_steps"].iloc[rows].any()]


def _transfer(facts: Facts, every: pd.DataFrame, site: Site | None) -> Transfer:
    """One group of copies per step. `every` includes copies outside of used steps, whose ids an edit needs."""
    used, time, inside = steps(facts), device_time(facts), every[every["in_steps"]]
    start, end, sizes = (inside[name].to_numpy() for name in ("start_ns", "end_ns", "bytes"))
    size, timed = sizes[sizes >= 0], int((end - start)[sizes >= 0].sum())
    in_calls, in_ops = _times(facts, every[["call", "sync"]]), _times(facts, every[["call", "sync", "sole_op"]])
    running, on_host = intervals.union(Intervals(start, end)), _times(facts, inside[["call", "sync", "sole_op"]])
    if used.measure is Measure.WINDOW:
        on_host = intervals.clip(on_host, used.start_ns, used.end_ns)
    return Transfer(
        direction=Direction(every["direction"].iloc[0]),
        host_memory=HostMemory(every["host_memory"].iloc[0]),
        asked_by=name_of(facts, int(every["asked"].iloc[0])),
        site=site,
        ids=np.sort(every.index.to_numpy()),
        call_ids=_known(every["call"]),
        sync_ids=_known(every["sync"]),
        op_ids=_known(every["sole_op"]),
        total_copies=len(inside),
        copies=round_half_up(len(inside), used.count),
        bytes=round_half_up(int(size.sum()), used.count) if len(size) else None,
        largest_bytes=int(size.max()) if len(size) else None,
        ns=round_half_up(int((end - start).sum()), used.count),
        exposed_ns=round_half_up(int(intervals.covered(running, time.exposed_copies).sum()), used.count),
        call_idle_ns=round_half_up(int(intervals.covered(in_calls, time.idle).sum()), used.count),
        host_ns=round_half_up(on_host.total, used.count),
        host_idle_ns=round_half_up(int(intervals.covered(in_ops, time.idle).sum()), used.count),
        bandwidth_bytes_per_s=int(size.sum()) / timed * 1e9 if timed else None,
        most_bytes_per_s=_most_bytes_per_s(sizes, end - start),
    )


def _most_bytes_per_s(sizes: IntArray, dur_ns: IntArray) -> tuple[float, float] | None:
    """10 and 90 % quantiles of the rates of large copies, in bytes/s; None without large copies."""
    large = (sizes >= TINY_BYTES) & (dur_ns > 0)
    if not large.any():
        return None
    slow, fast = np.quantile(sizes[large] / dur_ns[large] * 1e9, [0.1, 0.9]).tolist()
    return slow, fast


def _known(ids: pd.DataFrame | pd.Series[int]) -> IntArray:
    """The distinct ids that are not -1."""
    found = np.unique(ids.to_numpy())
    return found[found >= 0].astype(np.int64)


def _times(facts: Facts, ids: pd.DataFrame) -> Intervals:
    start, dur = (facts.rank.spans[name].to_numpy()[_known(ids)] for name in ("start_ns", "dur_ns"))
    return intervals.union(Intervals(start, start + dur))


def copy_before(facts: Facts, ids: IntArray) -> IntArray:
    """The copy that each host call starts, else the last one to or from the host that its innermost op started before.

    Span ids of copies, -1 where there is none. Shape (ids,).
    """
    result, copies = np.full(len(ids), -1, dtype=np.int64), optional(_copies, facts)
    if copies is None or not len(copies := copies[copies["call"] >= 0]):
        return result
    op, spans = enclosing_op(facts, ids), len(facts.rank.spans)
    inside = copies[copies["direction"].isin(_TO_OR_FROM_HOST) & (copies["op"] >= 0)]
    key = (inside["op"] * spans + inside["call"]).to_numpy()
    order = np.argsort(key, kind="stable")
    before = np.searchsorted(key[order], op * spans + ids) - 1
    found = np.flatnonzero((op >= 0) & (before >= 0))
    rows = order[before[found]]
    same = inside["op"].to_numpy()[rows] == op[found]
    result[found[same]] = inside.index.to_numpy()[rows[same]]
    call = copies["call"].to_numpy()
    last = np.searchsorted(call, ids, side="right") - 1
    return np.where((last >= 0) & (call[last] == ids), copies.index.to_numpy()[last], result)


class HostBorn(Struct, frozen=True):
    """Tensors made on the host by one op at one line, and copied to the device by the next op."""

    made_by: str  # The op, or `torch.tensor`, which is none.
    site: Site | None
    ids: IntArray  # The ops that make them.
    move_ids: IntArray  # The ops that copy them. Shape as `ids`.
    total_calls: int  # In all used steps.


@fact
def host_born(facts: Facts) -> tuple[HostBorn, ...]:
    """Tensors that could have been made on the device, most first. Raises Missing without device work."""
    ops, copies = host_spans(facts, *_OPS), _copies(facts)
    ops = ops.where(np.argsort(ops.track, kind="stable"))
    to = host_spans(facts, SpanKind.OP, named=lambda name: name == "aten::to")
    copied = np.isin(device_work(facts).ids, copies.index[copies["direction"] == Direction.H2D.value])
    inside = intervals.distinct(launched_in(facts, to)[copied])
    move = np.flatnonzero(np.isin(ops.ids, to.ids[inside[inside >= 0]]))
    name = np.append(facts.rank.spans["name"].iloc[ops.ids].astype(object), "")
    before, after = _neighbours(ops)
    by_tensor = (name[before] == "aten::empty") & np.isin(name[after], _LIFTS) | np.isin(name[before], _LIFTS)
    move = move[((np.isin(name[before], MAKERS) | by_tensor) & (before >= 0))[move]]
    move = move[_untouched(facts, ops.where(before[move])) & _same_shape(facts, ops, move)]
    ids, moved, found = ops.ids[before[move]], ops.ids[move], []
    seen = in_used_steps(facts, ids)
    for rows, site in grouped(facts, moved, name_codes(facts, ids)):
        made_by = "torch.tensor" if by_tensor[move[rows[0]]] else name_of(facts, int(ids[rows[0]]))
        if seen[rows].any():
            found.append(HostBorn(made_by, site, ids[rows], moved[rows], int(seen[rows].sum())))
    return tuple(sorted(found, key=lambda one: -one.total_calls))


def _neighbours(ops: HostSpans) -> tuple[IntArray, IntArray]:
    """Positions of the op before and after each one, within the same op or in none on the same thread; -1 for none."""
    up = ops.parents
    before, after = np.full((2, len(up)), intervals.NONE, dtype=np.int64)
    order = np.lexsort((up, ops.track))
    first, second = order[:-1], order[1:]
    same = (up[first] == up[second]) & (ops.track[first] == ops.track[second])
    before[second[same]], after[first[same]] = first[same], second[same]
    return before, after


def _untouched(facts: Facts, makers: HostSpans) -> npt.NDArray[np.bool_]:
    """Whether each op that makes a tensor lies in no data loading and launches no device work. Shape (makers,)."""
    loaders = host_spans(facts, SpanKind.LOADER)
    loading = intervals.innermost_at(makers.start_ns, makers.track, loaders.track, loaders.start_ns, loaders.end_ns)
    return (loading < 0) & ~np.isin(np.arange(len(makers.ids)), launched_in(facts, makers))


def _same_shape(facts: Facts, ops: HostSpans, move: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each move has the shape of the op before it on the thread; also if that fills nothing, or if unknown."""
    shapes = [facts.rank.ops["shapes"].reindex(ops.ids[at]).astype(str) for at in (move - 1, move)]
    filled, moved = (text.str.extract(r"^\[\[([^\]]*)\]", expand=False).to_numpy() for text in shapes)
    fills = facts.rank.spans["name"].iloc[ops.ids[move - 1]].isin([*_FILLS, *_LIFTS, "detach_"]).to_numpy()
    return np.array((filled == moved) | pd.isna(filled) | pd.isna(moved) | ~fills, dtype=bool)


class Copies(Struct, frozen=True):
    """Copies of one direction and kind of host memory."""

    direction: Direction
    host_memory: HostMemory
    calls: int  # In all used steps.
    bytes: int | None  # Per step, of the copies whose size was recorded; None if of none.
    ns: int  # Device time, per step.
    exposed_ns: int  # Of it, while neither compute nor communication ran.
    host_ns: int  # Host time in the calls that started them, per step.
    bandwidth_bytes_per_s: float | None  # Bytes over device time, of the copies whose size was recorded.


@fact
def copies(facts: Facts) -> tuple[Copies, ...]:
    """Copies in the used steps, longest first; empty if there are none. Raises Missing without device work."""
    used, exposed, dur = steps(facts), device_time(facts).exposed_copies, facts.rank.spans["dur_ns"].to_numpy()
    table, found = _copies(facts), []
    for (direction, memory), mine in table[table["in_steps"]].groupby(["direction", "host_memory"], observed=True):
        start, end, size = (mine[name].to_numpy() for name in ("start_ns", "end_ns", "bytes"))
        known, took = size >= 0, end - start
        together = intervals.clip(intervals.union(Intervals(start, end)), used.start_ns, used.end_ns)
        timed = int(took[known].sum())
        found.append(
            Copies(
                direction=Direction(direction),
                host_memory=HostMemory(memory),
                calls=len(mine),
                bytes=round_half_up(int(size[known].sum()), used.count) if known.any() else None,
                ns=round_half_up(int(took.sum()), used.count),
                exposed_ns=round_half_up(intervals.intersect(together, exposed).total, used.count),
                host_ns=round_half_up(int(dur[_known(mine["call"])].sum()), used.count),
                bandwidth_bytes_per_s=float(size[known].sum()) / timed * 1e9 if timed else None,
            )
        )
    return tuple(sorted(found, key=lambda copy: -copy.ns))
