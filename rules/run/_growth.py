"""What gets longer over a run: what that costs, and what else changes with it."""

from collections.abc import Iterator, Sequence
from statistics import fmean, median, quantiles

from diagnose.facts.watched.log import counted, groups, total
from diagnose.facts.watched.series import GROUPS, Stretch, ends, risen
from diagnose.rulekit.vocabulary import *

SLOWER_CLOCK, SLOWED = 0.05, 0.2
"""By so much lower a clock explains slower steps; share of looks at a device that is held back (our choice)."""

AS_MUCH_CPU = 0.5  # Of the rise of steps, below which CPU time per step has not risen along (our choice).


def slow_to_fast(usual: Sequence[float]) -> tuple[float, float, float]:
    """Of times that are usual: of the slowest quarter the fastest, the median, of the fastest quarter the slowest."""
    lower, middle, upper = quantiles(usual, n=4, method="inclusive")
    return upper, middle, lower


def beyond(some: Sequence[tuple[int, float]], *usual: float) -> RunSaving:
    """What so many of so long each take beyond the usual time, which is thought to be one of three."""
    low, likely, high = (int(max(sum(count * (ns - one) for count, ns in some), 0)) for one in usual)
    return RunSaving(min(low, likely), likely, high, RunBasis.COMPARED)


def growing_pauses(log: RunLog, column: str, kind: str, what: str) -> Iterator[RunFinding]:
    windows = [window for window in log.windows if window.of(column).count]
    some = list(groups(windows, GROUPS))
    counts = [counted(group, column) for group in some]
    means = [total(group, column) / count for group, count in zip(some, counts, strict=True)]
    found = risen(means)
    if found is None:
        return
    lost = beyond(list(zip(counts, means, strict=True)), *slow_to_fast(ends(means)[0]))
    more = f"{ms(found.last)} at the end (+{percent(found.last / found.first - 1)})"
    said = f"{what} time rises from {ms(found.first)} to {more}: {cost(lost.likely_ns, log)}."
    told = sentences(Evidence(said, found.last / found.first, "times", primary=True))
    change = "Check what each one iterates over or keeps: results or state of all steps so far."
    yield RunFinding(f"{what} time rises over the run", told, lost, change, kind)


def what_grows(first: Sequence[Stretch], last: Sequence[Stretch]) -> tuple[str, str]:
    """A sentence on the parts of a step that are longer, and the one that is longer by most; "" if none stands out."""
    rise = median(one.step_ns for one in last) - median(one.step_ns for one in first)
    each = {
        name: (median(one.parts_ns[name] for one in first), median(one.parts_ns[name] for one in last))
        for name in PART_NAMES
    }
    risers = [name for name, (was, now) in each.items() if now - was >= STANDS_OUT * rise]
    risers.sort(key=lambda name: each[name][0] - each[name][1])
    if not risers:
        return "No part of the step stands out.", ""
    told = [f"{PART_NAMES[name]} ({ms(each[name][0])} to {ms(each[name][1])})" for name in risers]
    on_device = any("device" in window.columns for one in last for window in one.windows)
    waits = " These are CPU times: they include waiting for the GPU." if on_device else ""
    return f"The time rises in {' and '.join(told)}.{waits}", risers[0]


def held_back(before: Sequence[Stretch], after: Sequence[Stretch]) -> bool:
    """Whether the device says that it is, more than before, or its clock is lower."""
    slowed, slowed_before = _mean(after, "slowed"), _mean(before, "slowed")
    clock, clock_before = _mean(after, "sm_clock_mhz"), _mean(before, "sm_clock_mhz")
    by_itself = slowed is not None and slowed - (slowed_before or 0) >= SLOWED
    return by_itself or bool(clock and clock_before and clock < (1 - SLOWER_CLOCK) * clock_before)


def device_and_cpu(before: Sequence[Stretch], after: Sequence[Stretch]) -> Iterator[str]:
    clocks = _mean(before, "sm_clock_mhz"), _mean(after, "sm_clock_mhz")
    heat = _mean(before, "temperature_c"), _mean(after, "temperature_c")
    if clocks[0] and clocks[1]:
        hot = f", its temperature from {heat[0]:.0f} to {heat[1]:.0f} °C" if heat[0] and heat[1] else ""
        held = "The GPU is throttled" if held_back(before, after) else "The GPU is not throttled"
        yield f"{held}: its SM clock goes from {clocks[0]:.0f} to {clocks[1]:.0f} MHz{hot}."
    cpu = _cpu_per_step(before), _cpu_per_step(after)
    if cpu[0] and cpu[1]:
        steps = median(one.step_ns for one in before), median(one.step_ns for one in after)
        along = cpu[1] / cpu[0] - 1 >= AS_MUCH_CPU * (steps[1] / steps[0] - 1)
        does = "It does more work" if along else "It waits longer, or other processes use its cores"
        yield f"The process's CPU time per step goes from {ms(1e9 * cpu[0])} to {ms(1e9 * cpu[1])}. {does}."


def _mean(some: Sequence[Stretch], name: str) -> float | None:
    known = [window.gauges[name].mean for one in some for window in one.windows if name in window.gauges]
    return fmean(known) if known else None


def _cpu_per_step(some: Sequence[Stretch]) -> float | None:
    """In seconds, with that of evaluations."""
    known = [window for one in some for window in one.windows if "cpu_s" in window.gauges]
    steps = sum(window.steps for window in known[1:])
    return (known[-1].gauges["cpu_s"].last - known[0].gauges["cpu_s"].last) / steps if steps else None
