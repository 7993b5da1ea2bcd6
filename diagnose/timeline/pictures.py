"""What a page draws besides the timeline: bounded samples of single launches, copies, collectives, ops and memory."""

import numpy as np

from diagnose.contracts.timeline import (
    CollectiveBar,
    CopySize,
    CopySizes,
    LaunchCurve,
    MemoryCurve,
    Pictures,
    RooflineKind,
    RooflineOp,
    RooflinePicture,
)
from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.core.base import Facts, Missing, once, optional
from diagnose.facts.core.breakdown import NO_DEVICE, device_time, launch_table, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.inputs import peaks
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import KERNEL_KINDS
from diagnose.facts.device.roofline import MatmulOps, op_roofline
from diagnose.timeline.marks import window
from diagnose.trace import hardware, intervals
from diagnose.trace.costs import DTYPES
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.intervals import IntArray, Intervals

MOST_POINTS = 300  # Points of a curve, bars of a chart.

PCIE_GBPS = {3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}
"""Nominal rate of 16 lanes in one direction, by generation (PCI-SIG; about 88 % of it is reached, nvbandwidth)."""


def launch_curve(facts: Facts) -> LaunchCurve:
    """Queue depth and launch delay per piece of the timeline that has launches. Raises Missing like `launch_table`."""
    table, (zero, end) = launch_table(facts), window(facts)
    moment = facts.rank.spans["start_ns"].to_numpy()[table.call] - zero
    width = (end - zero) // MOST_POINTS + 1
    kept = (moment >= 0) & (moment < end - zero)
    piece, depth, delay = moment[kept] // width, table.depth[kept], table.delay_ns[kept]
    chosen = [np.flatnonzero(piece == one) for one in np.unique(piece)]
    return LaunchCurve(
        moment_ns=tuple(int(piece[rows[0]]) * width + width // 2 for rows in chosen),
        depth_least=tuple(int(depth[rows].min()) for rows in chosen),
        depth_median=tuple(int(np.median(depth[rows])) for rows in chosen),
        delay_median_ns=tuple(int(np.median(delay[rows])) for rows in chosen),
    )


def copy_sizes(facts: Facts) -> CopySizes:
    """Copies of the used steps by direction, host memory and size. Raises Missing without device work."""
    table, used, work = facts.rank.copies, steps(facts), device_work(facts)
    if not len(work.ids):
        raise NO_DEVICE
    start = facts.rank.spans["start_ns"].to_numpy()[table.index]
    dur = facts.rank.spans["dur_ns"].to_numpy()[table.index]
    inside = (start >= used.start_ns) & (start < used.end_ns) & (table["bytes"].to_numpy() > 0) & (dur > 0)
    frame = table[inside].assign(ns=dur[inside])
    groups = frame.groupby(["direction", "host_memory", "bytes"], observed=True)["ns"].agg(["size", "median", "sum"])
    largest = groups.sort_values("sum", ascending=False).head(MOST_POINTS)
    sizes = tuple(
        CopySize(Direction(direction), HostMemory(memory), int(size), int(calls), round(median))
        for direction, memory, size, calls, median, _ in largest.reset_index().itertuples(index=False, name=None)
    )
    kinds = {hardware.peaks(device) for device in facts.rank.provenance.devices}
    generation = found.pcie_generation if len(kinds) == 1 and (found := kinds.pop()) is not None else None
    return CopySizes(sizes, None if generation is None else PCIE_GBPS[generation] * 1e9)


def collective_bars(facts: Facts) -> tuple[CollectiveBar, ...]:
    """The longest communication kernels of the used steps, by start. Raises Missing like `collective_table`."""
    table, time, (zero, _) = collective_table(facts), device_time(facts), window(facts)
    chosen = np.flatnonzero(table.in_steps & ~table.on_host)
    start, end = table.times.starts[chosen], table.times.ends[chosen]
    longest = np.sort(np.argsort(start - end, kind="stable")[:MOST_POINTS])
    order = longest[np.argsort(start[longest], kind="stable")]
    exposed = intervals.covered(Intervals(start, end), time.exposed_communication)
    return tuple(
        CollectiveBar(
            operation=str(table.operation[chosen[k]]),
            start_ns=int(start[k]) - zero,
            dur_ns=int(end[k] - start[k]),
            exposed_ns=int(exposed[k]),
            bytes=int(table.bytes[chosen[k]]) if table.bytes[chosen[k]] >= 0 else None,
        )
        for k in order.tolist()
    )


def roofline_picture(facts: Facts) -> RooflinePicture:
    """The longest ops, by name, sizes, type and cost. Raises Missing without shapes or rates of the device."""
    found, used, device = op_roofline(facts), steps(facts), peaks(facts)
    table, math = found.table, found.math_dtype
    rows = np.flatnonzero(table.in_steps & (table.flops > 0) & (table.bytes > 0) & (table.dur_ns > 0))
    if not len(rows):
        raise Missing("ops whose cost is known", "Record with record_shapes=True and a current PyTorch.")
    keys = np.column_stack((table.name[rows], table.dims[rows], math[rows], table.flops[rows], table.bytes[rows]))
    distinct, group, calls = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    total = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(total, group.reshape(-1), table.dur_ns[rows])
    order: IntArray = np.argsort(-total, kind="stable")[:MOST_POINTS]
    ops = []
    for k in order.tolist():
        name, *dims, dtype, flops, moved = map(int, distinct[k])
        ops.append(
            RooflineOp(
                name=table.names[name] if name >= 0 else "",
                dims=(dims[0], dims[1], dims[2]),
                dtype=DTYPES[dtype] if dtype >= 0 else "",
                calls=int(calls[k]),
                ns=round_half_up(int(total[k]), used.count),
                flops=flops,
                bytes=moved,
                flops_per_s=float(flops) * int(calls[k]) / int(total[k]) * 1e9,
            )
        )
    rates = {op.dtype: device.tflops(op.dtype) for op in ops}
    return RooflinePicture(
        ops=tuple(ops),
        device=device.name,
        bytes_per_s=device.memory_gbps * 1e9,
        flops_per_s={dtype: rate * 1e12 for dtype, rate in rates.items() if rate is not None},
        kinds=_roofline_kinds(table, rows, used.count),
    )


def _roofline_kinds(table: MatmulOps, rows: IntArray, count: int) -> tuple[RooflineKind, ...]:
    """Calls, time per step, FLOPs and bytes of the ops in `rows` by kernel kind, the longest first; `count`: steps."""
    found = []
    for code in np.unique(table.kind[rows]).tolist():
        of_kind = rows[table.kind[rows] == code]
        ns, flops, moved = (int(column[of_kind].sum()) for column in (table.dur_ns, table.flops, table.bytes))
        per_step = round_half_up(ns, count)
        found.append(RooflineKind(KERNEL_KINDS[code], len(of_kind), per_step, flops, moved, flops / ns * 1e9))
    return tuple(sorted(found, key=lambda one: -one.ns))


def memory_curves(facts: Facts) -> tuple[MemoryCurve, ...]:
    """Memory over the whole recording, per device. Raises Missing if no device memory with totals was recorded."""
    events = facts.rank.memory
    events = events[(events["device_type"] > 0) & (events["allocated_bytes"] >= 0)]
    if not len(events):
        raise Missing("memory events", "Record with profile_memory=True, or diagnose profile --memory.")
    start = facts.rank.spans["start_ns"].to_numpy()[events.index]
    width = int(start.max() - start.min()) // MOST_POINTS + 1
    frame = events.assign(piece=(start - start.min()) // width)
    zero = int(start.min()) - window(facts)[0]
    found = []
    for device, rows in frame.groupby("device"):
        pieces = rows.groupby("piece")
        most, reserved = pieces["allocated_bytes"].max(), pieces["reserved_bytes"].max()
        moments = tuple(zero + int(piece) * width for piece in most.index)
        columns = (tuple(one.tolist()) for one in (most, reserved, pieces["allocated_bytes"].min()))
        found.append(MemoryCurve(int(str(device)), moments, *columns))
    return tuple(found)


@once
def pictures(facts: Facts) -> Pictures:
    """All pictures, None for one without facts: tables in reports say why. Raises Missing without a step to measure."""
    window(facts)
    return Pictures(
        launches=optional(launch_curve, facts),
        copies=optional(copy_sizes, facts),
        collectives=optional(collective_bars, facts),
        roofline=optional(roofline_picture, facts),
        memory=optional(memory_curves, facts),
    )
