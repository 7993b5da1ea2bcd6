"""Where the device's time goes, by parts that add up to the step exactly; and how far ahead of it the host is."""

from enum import Enum

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, once
from diagnose.facts.core.device import WorkClass, device_work, unrecorded_work
from diagnose.facts.core.steps import Measure, steps
from diagnose.trace import enums, intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals, distinct


class TimeCause(str, Enum):
    """What goes on, or what is waited for."""

    GARBAGE_COLLECTION = "garbage_collection"
    COMPILE = "compile"
    CHECKPOINT = "checkpoint"
    ALLOCATION = "allocation"  # In cudaMalloc, cudaFree, cudaHostAlloc and the like.
    SYNC = "sync"
    """The host is blocked until the device has done something; before an idle gap, so that nothing was queued."""
    LOADER = "loader"  # Fetching the next batch.
    OTHER_RANK = "other_rank"
    """In a collective on the host, which mostly waits for other ranks; or in no op while another thread is in one."""
    HOST_COPY = "host_copy"  # In a call that starts a copy; from pageable memory the call does the copying.
    LAUNCH = "launch"
    """In a call that starts a kernel, graph or memset; on the critical path also on to the start of its work."""
    HOST_COMPUTE = "host_compute"
    """In an op that starts nothing on the device and takes longer than dispatching: the CPU computes."""
    OPTIMIZER = "optimizer"
    """In the optimizer's step or its zeroing of gradients, in its ops, launches and Python, outside the calls above."""
    BLOCKED = "blocked"
    """In a long call of the operating system, or off the processor: waits for another thread, a file, a timer."""
    OPS = "ops"  # In framework ops, outside the calls above: the host dispatches slower than the device works.
    PYTHON = "python"  # Between ops: Python code, or nothing the recording shows.
    DEVICE_WAIT = "device_wait"  # Queued work waits: for an event, another stream, another rank.
    BETWEEN_KERNELS = "between_kernels"  # Turn-around of work that was queued on one stream.
    HOST_NOT_RECORDED = "host_not_recorded"
    """Before the first or after the last record of the host: it may have done anything."""
    UNKNOWN = "unknown"  # The recording does not show who launched the next work, or what that waited for.
    UNEXPLAINED = "unexplained"  # The recording does not show what is waited for.
    OTHER_STEPS = "other_steps"  # In steps of a kind that was not recorded, beyond what recorded ones take.
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"


LAUNCHING = (TimeCause.OPS, TimeCause.LAUNCH)
"""What the host does for each kernel, and does less of where fewer are launched."""
ON_DEVICE = (TimeCause.COMPUTE, TimeCause.COMMUNICATION, TimeCause.COPY)
IDLE_CAUSES = tuple(cause for cause in TimeCause if cause not in (*ON_DEVICE, TimeCause.UNEXPLAINED))
"""Why the device had nothing to do."""
PATH_CAUSES = (*ON_DEVICE, *(cause for cause in TimeCause if cause not in (*ON_DEVICE, TimeCause.UNKNOWN)))
"""What a stretch of the critical path goes to: on the device, between both, or on a thread."""


NO_DEVICE = Missing("device work", "Profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] on a GPU.")


class DeviceTime(Struct, frozen=True):
    """When the device did what within the used steps; each set is normal, and only the last two are not busy."""

    busy: Intervals  # Any work, over all streams and devices of the rank.
    compute: Intervals
    communication: Intervals  # All of it, also while something else ran.
    copies: Intervals
    exposed_communication: Intervals  # Communication while no compute ran.
    exposed_copies: Intervals  # Copies and memsets while neither compute nor communication ran.
    idle: Intervals
    work_not_recorded: Intervals  # While work ran that was not recorded, in graphs or not: neither busy nor idle.


@fact
def device_time(facts: Facts) -> DeviceTime:
    """The device's time over the used steps. Raises Missing without device work."""
    work, used = device_work(facts), steps(facts)
    if not len(work.ids):
        raise NO_DEVICE

    def within(*classes: WorkClass) -> Intervals:
        return intervals.clip(work.of(*classes), used.start_ns, used.end_ns)

    busy, compute = within(), within(WorkClass.COMPUTE)
    communication, copies = within(WorkClass.COMMUNICATION), within(WorkClass.COPY)
    holes = intervals.clip(unrecorded_work(facts), used.start_ns, used.end_ns)
    before_copies = within(WorkClass.COMPUTE, WorkClass.COMMUNICATION)
    return DeviceTime(
        busy=busy,
        compute=compute,
        communication=communication,
        copies=copies,
        exposed_communication=intervals.subtract(communication, compute),
        exposed_copies=intervals.subtract(copies, before_copies),
        idle=intervals.subtract(intervals.gaps(busy, used.start_ns, used.end_ns), holes),
        work_not_recorded=holes,
    )


class Breakdown(Struct, frozen=True):
    """Mean of the used steps, ns per step. busy = compute + the exposed parts; step = busy + idle + not recorded."""

    step_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    measure: Measure
    work_not_recorded_ns: int = 0  # While work ran that was not recorded, in graphs or not.


@fact
def breakdown(facts: Facts) -> Breakdown:
    """The parts of the mean step, rounded so that they still add up. Raises Missing without device work."""
    used, time = steps(facts), device_time(facts)
    parts = (time.compute, time.exposed_communication, time.exposed_copies, time.idle, time.work_not_recorded)
    compute, communication, copy, idle, missing = shared_out([part.total for part in parts], used.count)
    return Breakdown(
        step_ns=compute + communication + copy + idle + missing,
        busy_ns=compute + communication + copy,
        idle_ns=idle,
        compute_ns=compute,
        exposed_communication_ns=communication,
        exposed_copy_ns=copy,
        measure=used.measure,
        work_not_recorded_ns=missing,
    )


def shared_out(totals: list[int], count: int) -> list[int]:
    """Each total divided by count, rounded so that the results add up to the rounded quotient of the sum.

    Every result is within 1 of its exact quotient: differences of the rounded running sums.
    """
    running = 0
    results = []
    for total in totals:
        before = round_half_up(running, count)
        running += total
        results.append(round_half_up(running, count) - before)
    return results


def round_half_up(numerator: int, denominator: int) -> int:
    """The quotient of two ints, rounded to the nearest int, exactly."""
    return (2 * numerator + denominator) // (2 * denominator)


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
