"""Where the device's time goes: parts that do not overlap and add up to the step exactly."""

from __future__ import annotations

from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.core.unrecorded_work import unrecorded_work
from diagnose.trace import intervals
from diagnose.trace.intervals import Intervals

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
