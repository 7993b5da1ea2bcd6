"""How far ahead of the device is the host? Launch delay, queue depth, tiny kernels."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, once
from diagnose.facts.core.breakdown import NO_DEVICE, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.steps import steps
from diagnose.trace import enums
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, distinct

TINY_NS = 5_000
"""A launch costs the host 3 to 6 us (medians on H800 and H100): kernels shorter than that cannot
keep the device busy."""


class LaunchTable(Struct, frozen=True):
    """Device work whose launch is known, in order of launch. Arrays of shape (launched,)."""

    work: IntArray  # Span id of the device work.
    call: IntArray  # Span id of the launching call.
    delay_ns: IntArray  # From the start of the call to the start of the work.
    depth: IntArray  # Work launched on the same stream before it and not finished when its call begins.


class Launches(Struct, frozen=True):
    """Launching, summed up over the used steps."""

    per_step: int  # Device operations launched.
    call_ns: int  # Host time in launching calls, per step.
    delay_median_ns: int
    delay_p90_ns: int
    depth_median: int
    depth_max: int
    empty_queue_share: float
    """Share of launches that found nothing outstanding on their stream: the device was waiting for the host."""
    tiny_kernels: int  # Kernels shorter than TINY_NS, per step.
    tiny_kernel_ns: int  # Their time, per step.


@fact
def launch_table(facts: Facts) -> LaunchTable:
    """Every launch of the used steps. Raises Missing without device work that has a recorded launch."""
    used, every = steps(facts), every_launch(facts)
    start = facts.rank.spans["start_ns"].to_numpy()[every.work]
    inside = (start >= used.start_ns) & (start < used.end_ns)
    return LaunchTable(every.work[inside], every.call[inside], every.delay_ns[inside], every.depth[inside])


@once
def every_launch(facts: Facts) -> LaunchTable:
    """Every launch of the recording. Raises Missing like launch_table."""
    work, start = device_work(facts), facts.rank.spans["start_ns"].to_numpy()
    if not len(work.ids):
        raise NO_DEVICE
    linked = np.flatnonzero(work.launch >= 0)
    if not len(linked):
        raise Missing("launches of device work", "Profile with ProfilerActivity.CPU and ProfilerActivity.CUDA.")
    call_start = start[work.launch[linked]]
    depth = np.zeros(len(linked), dtype=np.int64)
    for track in np.unique(work.track[linked]):
        mine = np.flatnonzero(work.track[linked] == track)
        calls, position = np.unique(work.launch[linked][mine], return_inverse=True)
        ends = np.full(len(calls), np.iinfo(np.int64).min)
        np.maximum.at(ends, position, work.end_ns[linked][mine])
        earlier = np.arange(len(calls))  # Spans are in order of start.
        finished = np.searchsorted(np.sort(ends), start[calls], side="right")
        depth[mine] = np.maximum(earlier - finished, 0)[position]
    order = np.argsort(call_start, kind="stable")
    chosen = linked[order]
    return LaunchTable(
        work=work.ids[chosen],
        call=work.launch[chosen],
        delay_ns=np.maximum(work.start_ns[chosen] - start[work.launch[chosen]], 0),
        depth=depth[order],
    )


@fact
def launches(facts: Facts) -> Launches:
    """Launching over the used steps. Raises Missing like launch_table, and if no launch lies in the used steps."""
    table, used = launch_table(facts), steps(facts)
    if not len(table.work):
        raise Missing("launches in the used steps", "Record more steps.")
    dur = facts.rank.spans["dur_ns"].to_numpy()
    kind = facts.rank.spans["kind"].cat.codes.to_numpy()
    kernel_ns = dur[table.work[kind[table.work] == enums.code(SpanKind.KERNEL)]]
    tiny = kernel_ns[kernel_ns < TINY_NS]
    return Launches(
        per_step=round_half_up(len(table.work), used.count),
        call_ns=round_half_up(int(dur[distinct(table.call)].sum()), used.count),
        delay_median_ns=int(np.median(table.delay_ns)),
        delay_p90_ns=int(np.quantile(table.delay_ns, 0.9)),
        depth_median=int(np.median(table.depth)),
        depth_max=int(table.depth.max()),
        empty_queue_share=float((table.depth == 0).mean()),
        tiny_kernels=round_half_up(len(tiny), used.count),
        tiny_kernel_ns=round_half_up(int(tiny.sum()), used.count),
    )
