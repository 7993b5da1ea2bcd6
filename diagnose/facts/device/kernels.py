"""Which kernels take the device's time, what are they, and which op asked for them?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import NO_DEVICE, breakdown, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.inputs import SHORTEST_NS, Work, inputs_of, name_codes, peaks, work_of
from diagnose.facts.core.spans import HostSpans, host_spans, launched_in, names_of
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import work_table
from diagnose.facts.device.memory import memory
from diagnose.trace import enums, intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import KernelKind


class Kernel(Struct, frozen=True):
    """All kernels of one name in the used steps."""

    name: str
    kind: KernelKind
    op: str  # The op that most of its time was launched from; "" if none is known.
    calls: int  # In all used steps.
    ns: int  # Sum of durations, per step.
    share: float  # `ns` over the step; over all kernels it may exceed 1 where streams run side by side.
    tensor_cores: bool | None
    dtype: str | None  # What a matmul-like kernel multiplies in.
    occupancy: float | None  # The recorder's estimate, weighted by time, 0..1; None if not recorded.


@fact
def kernels(facts: Facts) -> tuple[Kernel, ...]:
    """Kernels of the used steps by name, longest first. Raises Missing without device work."""
    frame, used, labels = _in_steps(facts), steps(facts), names_of(facts)
    step_ns = breakdown(facts).step_ns
    grouped = frame.groupby("name", sort=False)
    totals = grouped["dur"].agg(["size", "sum"])
    by_op = frame.groupby(["name", "op"], sort=False)["dur"].sum().sort_values().reset_index()
    op_of = dict(zip(by_op["name"], by_op["op"], strict=True))
    occupancy = (frame["occupancy"] * frame["dur"]).groupby(frame["name"]).sum(min_count=1)
    weight = frame["dur"].where(frame["occupancy"].notna()).groupby(frame["name"]).sum()
    found = [
        Kernel(
            name=labels[code],
            kind=kinds.kernel_kind(labels[code]),
            op=labels[op_of[code]] if op_of[code] >= 0 else "",
            calls=int(count),
            ns=round_half_up(int(total), used.count),
            share=float(total) / used.count / step_ns if step_ns else 0.0,
            tensor_cores=kinds.uses_tensor_cores(labels[code]),
            dtype=kinds.math_dtype(labels[code]),
            occupancy=float(occupancy[code] / weight[code]) if weight[code] > 0 else None,
        )
        for code, count, total in zip(totals.index, totals["size"], totals["sum"], strict=True)
    ]
    return tuple(sorted(found, key=lambda kernel: (-kernel.ns, kernel.name)))


class KernelGroup(Struct, frozen=True):
    """Kernels of the used steps of one kind, or launched by one op."""

    label: str  # The kind of kernel, or the op that launched it ("" unknown).
    calls: int  # In all used steps.
    ns: int  # Sum of durations, per step.
    share: float  # `ns` over the step.


@fact
def kernel_kinds(facts: Facts) -> tuple[KernelGroup, ...]:
    """Kernel time of the used steps by kind of kernel, longest first. Raises Missing without device work."""
    frame, labels = _in_steps(facts), names_of(facts)
    kind_of = {code: kinds.kernel_kind(labels[code]).value for code in frame["name"].unique()}
    return _grouped(facts, frame["dur"], frame["name"].map(kind_of))


@fact
def kernel_ops(facts: Facts) -> tuple[KernelGroup, ...]:
    """Kernel time of the used steps by the op that launched it, longest first. Raises Missing without device work."""
    frame, labels = _in_steps(facts), names_of(facts)
    op_of = {code: labels[code] if code >= 0 else "" for code in frame["op"].unique()}
    return _grouped(facts, frame["dur"], frame["op"].map(op_of))


def _grouped(facts: Facts, dur: pd.Series[int], label: pd.Series[str]) -> tuple[KernelGroup, ...]:
    """By label, calls in all used steps and device time per step, longest first. `label`: of each kernel."""
    count, step_ns = steps(facts).count, breakdown(facts).step_ns
    totals = dur.groupby(label, sort=False).agg(["size", "sum"])
    found = [
        KernelGroup(str(name), int(calls), round_half_up(int(ns), count), int(ns) / count / step_ns if step_ns else 0.0)
        for name, calls, ns in totals.itertuples()
    ]
    return tuple(sorted(found, key=lambda group: (-group.ns, group.label)))


def _in_steps(facts: Facts) -> pd.DataFrame:
    """A row per kernel that starts in the used steps: name codes of it and its op (-1 none), dur in ns, occupancy."""
    table = work_table(facts)
    is_kernel = facts.rank.spans["kind"].cat.codes.to_numpy()[table.ids] == enums.code(SpanKind.KERNEL)
    rows = is_kernel & table.in_steps
    return pd.DataFrame(
        {
            "name": name_codes(facts, table.ids[rows]),
            "op": name_codes(facts, table.op[rows]),
            "dur": table.dur_ns[rows],
            "occupancy": facts.rank.kernels["occupancy"].reindex(table.ids[rows]).to_numpy(),
        }
    )


class GridFilling(Struct, frozen=True):
    """How well kernels fill the device; times per step."""

    underfilled_ids: IntArray
    """Compute kernels of the whole recording with fewer blocks than the device has multiprocessors, less those that a
    communication kernel beside them takes."""
    underfilled_ns: int
    underfilled_share: float  # Of compute.
    filled_share: float  # Of these multiprocessors, those that their blocks fill, mean over time; 1 without any.
    free_memory_share: float | None  # Of the fullest device's, never reserved by the allocator; None if not known.


@fact
def filling(facts: Facts) -> GridFilling:
    """How full the device is. Raises Missing without device work, or if its size or the kernels' was not recorded."""
    work, count = work_table(facts), steps(facts).count
    sizes = {device.index: device for device in facts.rank.provenance.devices}
    grid = facts.rank.kernels
    if not any(device.multiprocessors for device in sizes.values()) or not len(grid):
        raise Missing("number of multiprocessors", "Record with torch.profiler of PyTorch 1.12 or newer on a GPU.")
    blocks = (grid["grid_x"].astype(np.int64) * grid["grid_y"] * grid["grid_z"]).to_numpy()
    room = np.array([sizes[one].multiprocessors if one in sizes else 0 for one in grid["device"].tolist()])
    ids = grid.index.to_numpy()
    room -= _taken_beside(facts, ids, blocks)
    compute = np.isin(ids, work.ids[~work.of(KernelKind.COMMUNICATION, KernelKind.MEMORY)])
    under = compute & (blocks > 0) & (blocks < room)
    dur = facts.rank.spans["dur_ns"].to_numpy()[ids]
    inside = np.isin(ids, work.ids[work.in_steps])
    filled = (dur * blocks / np.maximum(room, 1))[under & inside].sum()
    compute_ns = int(dur[compute & inside].sum())
    under_ns = int(dur[under & inside].sum())
    free = [one.free_share for one in optional(memory, facts) or () if one.free_share is not None]
    return GridFilling(
        underfilled_ids=ids[under],
        underfilled_ns=round_half_up(under_ns, count),
        underfilled_share=under_ns / compute_ns if compute_ns else 0.0,
        filled_share=float(filled / under_ns) if under_ns else 1.0,
        free_memory_share=min(free, default=None),
    )


def _taken_beside(facts: Facts, ids: IntArray, blocks: IntArray) -> IntArray:
    """Blocks of the communication kernel that runs when each kernel starts; 0 if none does. Shape (kernels,)."""
    work, spans = work_table(facts), facts.rank.spans
    own = np.flatnonzero(np.isin(ids, work.ids[work.of(KernelKind.COMMUNICATION)]))
    if not len(own):
        return np.zeros(len(ids), dtype=np.int64)
    start, dur = (spans[name].to_numpy()[ids] for name in ("start_ns", "dur_ns"))
    own = own[np.argsort(start[own], kind="stable")]
    last = np.searchsorted(start[own], start, side="right") - 1
    runs = (last >= 0) & ((start + dur)[own[last]] > start)
    return np.where(runs, blocks[own[last]], 0)


STREAMS = 3  # Adding rows reads them and what they are added to, and writes that.
REACHED = 0.6  # Of the memory's rate, with accesses that are scattered (our choice).
_PUTS = ("aten::index_put_", "aten::_index_put_impl_", "aten::index_put")
_ADDS = ("aten::index_add", "aten::index_add_", "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce_")


class SortedIndexing(Struct, frozen=True):
    """Additions at indices that sort them first, so that each row is added to in one fixed order; per step."""

    deterministic: bool
    """They stand in for index_add or scatter_add: use_deterministic_algorithms(True) asks for that. Otherwise they are
    what `x[indices]` runs in the backward pass."""
    calls: float
    work: Work
    call: IntArray  # The call, 0.., that each of `work.work_ids` is launched in.
    moved_bytes: IntArray  # What each call reads and writes without sorting; 0 unknown. Shape (calls,).
    floor: float | None  # Least share of the device time left without sorting; None if sizes or device are unknown.


@fact
def sorted_indexing(facts: Facts) -> tuple[SortedIndexing, ...]:
    """By what asks for them, longest first. Raises Missing without device work."""
    work, names = device_work(facts), facts.rank.spans["name"].cat.categories
    if not len(work.ids):
        raise NO_DEVICE
    sums = np.array(["indexing_backward_kernel" in name for name in names], dtype=bool)[name_codes(facts, work.ids)]
    puts = host_spans(facts, SpanKind.OP, named=lambda name: name in _PUTS).outermost()
    held = launched_in(facts, puts)[sums]
    puts = puts.where(np.unique(held[held >= 0]))
    adds = host_spans(facts, SpanKind.OP, named=lambda name: name in _ADDS)
    asked = intervals.innermost_at(puts.start_ns, puts.track, adds.track, adds.start_ns, adds.end_ns) >= 0
    found = [_sorted(facts, puts.where(asked == one), one) for one in (False, True) if (asked == one).any()]
    return tuple(sorted(found, key=lambda one: -one.work.device_ns))


def _sorted(facts: Facts, puts: HostSpans, deterministic: bool) -> SortedIndexing:
    """Additions at indices of one kind, deterministic or not, and the share of their time that not sorting needs."""
    used, count, device_peaks = puts.in_steps(facts), max(steps(facts).count, 1), optional(peaks, facts)
    work = work_of(facts, puts.ids)
    sizes = [given[2][0].bytes if len(given) > 2 and given[2] else None for given in inputs_of(facts, puts.ids)]
    moved_bytes = np.array([STREAMS * (size or 0) for size in sizes], dtype=np.int64)
    used_bytes, floor = moved_bytes[np.isin(puts.ids, used.ids)], None
    if device_peaks is not None and work.device_ns and (used_bytes > 0).all():
        least_ns = np.maximum(used_bytes / (device_peaks.memory_gbps * REACHED), SHORTEST_NS).sum() / count
        floor = min(float(least_ns) / work.device_ns, 1.0)
    call = launched_in(facts, puts)[np.isin(device_work(facts).ids, work.work_ids)]
    return SortedIndexing(deterministic, len(used.ids) / count, work, call, moved_bytes, floor)
