"""What takes longer, or more memory, the longer the run lasts, and what does from a moment on."""

from collections.abc import Iterator, Sequence
from statistics import fmean, median, quantiles

from diagnose.contracts.finding import Evidence
from diagnose.contracts.watched_run import RunBasis, RunFinding, RunFindingKind, RunSaving
from diagnose.facts.run.growth import RISE
from diagnose.trace.run_log import RunLog, Window
from diagnose.trace.units import duration, long_duration, number, percent, size
from diagnose.watched.pricing import SHORT, TOO_FEW, CannotTell, cost, counted, finding
from diagnose.watched.series import (
    GROUPS,
    LEAST_GROUPS,
    LEAST_TO_CHANGE,
    MOMENTS,
    REST,
    Stretch,
    changed,
    ends,
    groups,
    grows,
    of_first_steps,
    risen,
    stretches,
)
from diagnose.watched.waiting import steady

LONGER_PAUSES = "Pauses get longer over the run"

STANDS_OUT = 0.3  # Of the rise of a step, from which share on a part is named (our choice).

SLOWER_CLOCK, SLOWED = 0.05, 0.2
"""By so much lower a clock explains slower steps; share of looks at a device that is held back (our choice)."""

AS_MUCH_CPU = 0.5  # Of the rise of steps, below which CPU time per step has not risen along (our choice).

PART_NAMES = {
    "loader": "waiting for data",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
    "collection": "Python garbage collection",
    "compilation": "compilation",
    REST: "other code in the loop",
}

WHAT_TO_DO = {
    "loader": "Check the dataset for a growing list, or for files that it opens again and again.",
    "forward": "Check the forward pass for state that grows: a cache, a list or a buffer.",
    "backward": "Detach tensors that you keep from step to step (.detach(), or .item() for sums): their graph grows.",
    "optimizer": "Check whether the optimizer gets more and more parameters or state.",
    "collection": "Keep fewer objects from step to step, or call gc.freeze() after the set-up.",
    "compilation": "Set TORCH_LOGS=recompiles to find the cause, and mark sizes that vary as dynamic.",
    REST: "Compute metrics and logs over recent steps, not over all steps so far.",
}
PROFILE = "Record early and late steps with `diagnose record`, and compare them."
COOL = "Check the GPU's cooling and power limit: nvidia-smi -q -d CLOCK,TEMPERATURE,POWER,PERFORMANCE."

LEAST_MEMORY_BYTES, LEAST_MEMORY_SHARE = 64_000_000, 0.05
"""By so much memory must rise (our choice): allocators keep some."""

SETTLED = 1 / 3  # Share of the run after which memory may grow no more: caches and pools fill until then (our choice).

MEMORY = {
    "resident_bytes": "Resident memory",
    "children_resident_bytes": "Resident memory of workers",
    "allocated_bytes": "Allocated GPU memory",
}


def growing_steps(log: RunLog) -> list[RunFinding]:
    """Usual steps that take longer and longer, else those with a pause. Raises CannotTell."""
    some = _known(log, GROUPS)
    found = risen([one.step_ns for one in some])
    if found is None or not grows([one.step_ns for one in _known(log, MOMENTS)]):
        return _longer_pauses(log, some)
    first, last = ends(some)
    steps = sum(one.steps for one in some)
    per_step = found.each * (len(some) - 1) / max(steps - some[-1].steps, 1)
    beginning = [one.step_ns for one in first]
    lost = _beyond(_steps(some), median(beginning), found.begin, min(found.begin, *beginning))
    said = (
        f"The typical step rises from {duration(found.first)} to {duration(found.last)}"
        f" (+{duration(1000 * per_step)} per 1,000 steps): {cost(lost.likely_ns, log)}."
    )
    then = f"At this rate, a run twice as long would end at {duration(found.last + per_step * steps)} per step."
    what, why = _what_grows(first, last)
    return finding(
        RunFindingKind.GROWING_STEPS,
        "Step time rises over the run",
        (Evidence(said, 1000 * per_step, "ns per 1,000 steps", primary=True), what, *_device(first, last), then),
        lost,
        COOL if _held_back(first, last) else WHAT_TO_DO.get(why, PROFILE),
    )


def _longer_pauses(log: RunLog, some: Sequence[Stretch]) -> list[RunFinding]:
    pauses = [one.pause_ns for one in some]
    found, usual_ns = risen(pauses), median(one.step_ns for one in some)
    if found is None or found.last - found.first < RISE * usual_ns:
        return []
    lost = _beyond([(one.steps, one.pause_ns) for one in some], *_slow_to_fast(ends(pauses)[0]))
    said = f"Pauses add {duration(found.first)} to the mean step at first, {duration(found.last)} at the end"
    return finding(
        RunFindingKind.GROWING_STEPS,
        LONGER_PAUSES,
        (
            Evidence(f"{said}: {cost(lost.likely_ns, log)}.", found.last - found.first, "ns", primary=True),
            f"The typical step takes {duration(usual_ns)}.",
        ),
        lost,
        "Check what happens there, such as saving or sorting: handle only what is new, not all steps so far.",
    )


def slower_steps(log: RunLog) -> list[RunFinding]:
    """Usual steps that take longer from a moment on. Raises CannotTell."""
    some = _known(log, MOMENTS)
    values = [one.step_ns for one in some]
    if len(values) < LEAST_TO_CHANGE:
        raise CannotTell(TOO_FEW.format(LEAST_TO_CHANGE))
    found = changed(values)
    if found is None or (grows(values) and risen([one.step_ns for one in _known(log, GROUPS)])):
        return []
    before, after = some[: found.at], some[found.at :]
    lost = _beyond(_steps(after), *_slow_to_fast(values[: found.at]))
    when = after[0]
    moment = f" ({long_duration(when.began_ns)} into the run)" if when.began_ns else ""
    said = (
        f"From step {number(when.first_step)} on{moment}, the typical step takes {duration(found.after)} instead of"
        f" {duration(found.before)}: {cost(lost.likely_ns, log)}."
    )
    what, _ = _what_grows(before, after)
    throttled = _held_back(before, after)
    unknown = "" if throttled else "The log does not show the cause."
    return finding(
        RunFindingKind.SLOWER_STEPS,
        "Step time jumps during the run",
        (Evidence(said, found.after / found.before, "times", primary=True), what, *_device(before, after), unknown),
        lost,
        COOL
        if throttled
        else "Check what started then: another process on this machine, or a new phase of the script.",
    )


def growing_evaluation(log: RunLog) -> list[RunFinding]:
    """Raises CannotTell."""
    return _growing_pauses(log, "evaluation", RunFindingKind.GROWING_EVALUATION, "Evaluation")


def growing_checkpoints(log: RunLog) -> list[RunFinding]:
    """Raises CannotTell."""
    return _growing_pauses(log, "save", RunFindingKind.GROWING_CHECKPOINTS, "Checkpoint")


def growing_memory(log: RunLog) -> list[RunFinding]:
    """Memory at the ends of windows, once caches and pools are full. Raises CannotTell."""
    late = [window for window in log.windows if window.ended_ns > SETTLED * log.length_ns]
    known = {name: [one for one in late if name in one.gauges] for name in MEMORY}
    if all(len(list(groups(some, GROUPS))) < LEAST_GROUPS for some in known.values()):
        raise CannotTell(SHORT if any(known.values()) or not late else "this system does not report process memory")
    return [found for name, some in known.items() for found in _growing_memory(log, name, some)]


def _growing_memory(log: RunLog, name: str, windows: Sequence[Window]) -> Iterator[RunFinding]:
    some = list(groups(windows, GROUPS))
    sizes = [group[-1].gauges[name].last for group in some]
    found = risen(sizes, LEAST_MEMORY_SHARE)
    steps = sum(window.steps for window in windows)
    if found is None or sizes[-1] - sizes[0] < LEAST_MEMORY_BYTES or not steps:
        return
    per_step = found.each * (len(some) - 1) / steps
    then = sizes[-1] + per_step * sum(window.steps for window in log.windows)
    said = f"Over the last two thirds of the run, it rises from {size(sizes[0])} to {size(sizes[-1])}"
    yield from finding(
        RunFindingKind.GROWING_MEMORY,
        f"{MEMORY[name]} keeps growing",
        (
            Evidence(f"{said} (+{size(1000 * per_step)} per 1,000 steps).", 1000 * per_step, "B per 1,000 steps"),
            f"At this rate, a run twice as long would reach {size(then)}. A process that runs out of memory dies.",
        ),
        RunSaving(0, 0, 0, RunBasis.NONE),
        "Check what the script keeps from step to step: losses with their graph, outputs, lists, caches.",
    )


def _known(log: RunLog, most: int) -> list[Stretch]:
    """Stretches of the run but of a slow first epoch, or of its first steps if it has no more. Raises CannotTell."""
    some = stretches(steady(log), most)
    if len(some) < LEAST_GROUPS:
        some = of_first_steps(log)
    if len(some) < LEAST_GROUPS:
        raise CannotTell(SHORT)
    return some


def _steps(some: Sequence[Stretch]) -> list[tuple[int, float]]:
    return [(one.steps, one.step_ns) for one in some]


def _slow_to_fast(usual: Sequence[float]) -> tuple[float, float, float]:
    """Of times that are usual: of the slowest quarter the fastest, the median, of the fastest quarter the slowest."""
    lower, middle, upper = quantiles(usual, n=4, method="inclusive")
    return upper, middle, lower


def _beyond(some: Sequence[tuple[int, float]], *usual: float) -> RunSaving:
    """What so many of so long each take beyond the usual time, which is thought to be one of three."""
    low, likely, high = (int(max(sum(count * (ns - one) for count, ns in some), 0)) for one in usual)
    return RunSaving(min(low, likely), likely, high, RunBasis.COMPARED)


def _what_grows(first: Sequence[Stretch], last: Sequence[Stretch]) -> tuple[str, str]:
    rise = median(one.step_ns for one in last) - median(one.step_ns for one in first)
    each = {
        name: (median(one.parts_ns[name] for one in first), median(one.parts_ns[name] for one in last))
        for name in PART_NAMES
    }
    risers = [name for name, (was, now) in each.items() if now - was >= STANDS_OUT * rise]
    risers.sort(key=lambda name: each[name][0] - each[name][1])
    if not risers:
        return "No part of the step stands out.", ""
    told = [f"{PART_NAMES[name]} ({duration(each[name][0])} to {duration(each[name][1])})" for name in risers]
    waits = " These are CPU times: they include waiting for the GPU." if _on_device(last) else ""
    return f"The time rises in {' and '.join(told)}.{waits}", risers[0]


def _on_device(some: Sequence[Stretch]) -> bool:
    return any("device" in window.columns for one in some for window in one.windows)


def _mean(some: Sequence[Stretch], name: str) -> float | None:
    known = [window.gauges[name].mean for one in some for window in one.windows if name in window.gauges]
    return fmean(known) if known else None


def _held_back(before: Sequence[Stretch], after: Sequence[Stretch]) -> bool:
    """Whether the device says that it is, more than before, or its clock is lower."""
    slowed, slowed_before = _mean(after, "slowed"), _mean(before, "slowed")
    clock, clock_before = _mean(after, "sm_clock_mhz"), _mean(before, "sm_clock_mhz")
    by_itself = slowed is not None and slowed - (slowed_before or 0) >= SLOWED
    return by_itself or bool(clock and clock_before and clock < (1 - SLOWER_CLOCK) * clock_before)


def _device(before: Sequence[Stretch], after: Sequence[Stretch]) -> Iterator[str]:
    clocks = _mean(before, "sm_clock_mhz"), _mean(after, "sm_clock_mhz")
    heat = _mean(before, "temperature_c"), _mean(after, "temperature_c")
    if clocks[0] and clocks[1]:
        hot = f", its temperature from {heat[0]:.0f} to {heat[1]:.0f} °C" if heat[0] and heat[1] else ""
        held = "The GPU is throttled" if _held_back(before, after) else "The GPU is not throttled"
        yield f"{held}: its SM clock goes from {clocks[0]:.0f} to {clocks[1]:.0f} MHz{hot}."
    cpu = _cpu_per_step(before), _cpu_per_step(after)
    if cpu[0] and cpu[1]:
        steps = median(one.step_ns for one in before), median(one.step_ns for one in after)
        along = cpu[1] / cpu[0] - 1 >= AS_MUCH_CPU * (steps[1] / steps[0] - 1)
        does = "It does more work" if along else "It waits longer, or other processes use its cores"
        change = f"from {duration(1e9 * cpu[0])} to {duration(1e9 * cpu[1])}"
        yield f"The process's CPU time per step goes {change}. {does}."


def _cpu_per_step(some: Sequence[Stretch]) -> float | None:
    """In seconds, with that of evaluations."""
    known = [window for one in some for window in one.windows if "cpu_s" in window.gauges]
    steps = sum(window.steps for window in known[1:])
    return (known[-1].gauges["cpu_s"].last - known[0].gauges["cpu_s"].last) / steps if steps else None


def _growing_pauses(log: RunLog, column: str, kind: RunFindingKind, what: str) -> list[RunFinding]:
    windows = [window for window in log.windows if window.of(column).count]
    some = list(groups(windows, GROUPS))
    if windows and len(some) < LEAST_GROUPS:
        raise CannotTell(f"the log needs at least {LEAST_GROUPS} windows with one")
    means = [sum(w.of(column).sum_ns for w in group) / counted(group, column) for group in some]
    found = risen(means)
    if found is None:
        return []
    first, _ = ends(means)
    counts = [counted(group, column) for group in some]
    lost = _beyond(list(zip(counts, means, strict=True)), *_slow_to_fast(first))
    more = f"{duration(found.last)} at the end (+{percent(found.last / found.first - 1)})"
    said = f"{what} time rises from {duration(found.first)} to {more}: {cost(lost.likely_ns, log)}."
    return finding(
        kind,
        f"{what} time rises over the run",
        (Evidence(said, found.last / found.first, "times", primary=True),),
        lost,
        "Check what each one iterates over or keeps: results or state of all steps so far.",
    )
