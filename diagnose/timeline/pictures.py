"""What a page draws besides the timeline: bounded samples of single launches, copies, collectives, ops and memory."""

import numpy as np

from diagnose.contracts.pictures import (
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
    """The curve over the timeline. Raises Missing like `launch_table`."""
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
    """Copies whose size was recorded. Raises Missing without device work."""
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
        for (direction, memory, size), (calls, median, _) in zip(
            largest.index, largest.itertuples(index=False), strict=True
        )
    )
    return CopySizes(sizes, _link(facts))


def _link(facts: Facts) -> float | None:
    known = {hardware.peaks(device) for device in facts.rank.provenance.devices}
    found = known.pop() if len(known) == 1 else None
    if found is None or found.pcie_generation is None:
        return None
    return PCIE_GBPS[found.pcie_generation] * 1e9


def collective_bars(facts: Facts) -> tuple[CollectiveBar, ...]:
    """Communication kernels of the used steps in order of start; the longest MOST_POINTS. Raises Missing as theirs."""
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
    """The dominant ops. Raises Missing without shapes, or if the device's rates are not known."""
    found, used, device = op_roofline(facts), steps(facts), peaks(facts)
    table, math = found.table, found.math_dtype
    rows = np.flatnonzero(table.in_steps & (table.flops > 0) & (table.bytes > 0) & (table.dur_ns > 0))
    if not len(rows):
        raise Missing("ops whose cost is known", "Record with record_shapes=True and a current PyTorch.")
    keys = np.column_stack((table.name[rows], table.dims[rows], math[rows], table.flops[rows], table.bytes[rows]))
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    calls = np.bincount(group, minlength=len(distinct))
    total = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(total, group, table.dur_ns[rows])
    order: IntArray = np.argsort(-total, kind="stable")[:MOST_POINTS]
    ops = tuple(
        RooflineOp(
            name=table.names[distinct[k][0]] if distinct[k][0] >= 0 else "",
            dims=(int(distinct[k][1]), int(distinct[k][2]), int(distinct[k][3])),
            dtype=DTYPES[distinct[k][4]] if distinct[k][4] >= 0 else "",
            calls=int(calls[k]),
            ns=round_half_up(int(total[k]), used.count),
            flops=int(distinct[k][5]),
            bytes=int(distinct[k][6]),
            flops_per_s=float(distinct[k][5]) * int(calls[k]) / int(total[k]) * 1e9,
        )
        for k in order.tolist()
    )
    rates = {dtype: device.tflops(dtype) for dtype in dict.fromkeys(op.dtype for op in ops)}
    return RooflinePicture(
        ops=ops,
        device=device.name,
        bytes_per_s=device.memory_gbps * 1e9,
        flops_per_s={dtype: rate * 1e12 for dtype, rate in rates.items() if rate is not None},
        kinds=_roofline_kinds(table, rows, used.count),
    )


def _roofline_kinds(table: MatmulOps, rows: IntArray, count: int) -> tuple[RooflineKind, ...]:
    found = []
    for code in np.unique(table.kind[rows]).tolist():
        mine = rows[table.kind[rows] == code]
        ns, flops, moved = (int(column[mine].sum()) for column in (table.dur_ns, table.flops, table.bytes))
        per_step = round_half_up(ns, count)
        found.append(RooflineKind(KERNEL_KINDS[code], len(mine), per_step, flops, moved, flops / ns * 1e9))
    return tuple(sorted(found, key=lambda one: -one.ns))


def memory_curves(facts: Facts) -> tuple[MemoryCurve, ...]:
    """Memory over the whole recording. Raises Missing if no device memory with totals was recorded."""
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
        pieces = rows.groupby("piece")[["allocated_bytes", "reserved_bytes"]]
        most, least = pieces.max(), pieces.min()
        found.append(
            MemoryCurve(
                device=int(str(device)),
                moment_ns=tuple(zero + int(piece) * width for piece in most.index),
                allocated_bytes=tuple(most["allocated_bytes"].tolist()),
                reserved_bytes=tuple(most["reserved_bytes"].tolist()),
                allocated_least_bytes=tuple(least["allocated_bytes"].tolist()),
            )
        )
    return tuple(found)


@once
def pictures(facts: Facts) -> Pictures:
    """All of them. Raises Missing if no step can be measured.

    Why one of them is missing is said by the facts that reports have as tables.
    """
    window(facts)
    return Pictures(
        launches=optional(launch_curve, facts),
        copies=optional(copy_sizes, facts),
        collectives=optional(collective_bars, facts),
        roofline=optional(roofline_picture, facts),
        memory=optional(memory_curves, facts),
    )
