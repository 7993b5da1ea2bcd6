"""Profiling slowed the CPU down.

Each recorded op, call and Python frame costs CPU time, more so with shapes and stacks. The profiler also stops threads
to load kernels and to flush its buffers.

Why it costs
    The CPU looks slower than it is: the GPU waits longer for it than in a run without the profiler. Kernel times stay
    valid.
How to fix
    Record with `diagnose profile`. It takes times from a recording without stacks and shapes, source lines from a
    second one. It compares both with unprofiled steps.
Ignore when
    the GPU is busy nearly all the time: then CPU time is hidden anyway.
Sources
    https://docs.pytorch.org/docs/stable/profiler.html
"""

from diagnose.facts.core.breakdown import Breakdown, Launches
from diagnose.facts.run.quality import EVENTS_NS, Distortion
from diagnose.facts.run.timed_steps import Slowdown
from diagnose.rulekit.vocabulary import *

IDLE_SHARE = 0.05  # of the step the GPU is idle: with less the host's time is hidden (our choice)
RECORDING_SHARE = 0.05  # of the step spent on recording, at least (our choice)
OVERHEAD_SHARE = 0.02  # of the step in what the recorder itself calls overhead (our choice)
LAUNCH_NS = 12_000  # median of launching calls: twice the 6 us at most that they take on recent hosts
LAUNCHES = 20  # a step: a few calls may be the first ones (our choice)
FASTER = 0.9  # times: recording makes no step shorter, so the machine was not equally busy (our choice)
INFLATED = 1.3  # times as long as without the profiler: host time is then far from what it is (our choice)


@rule("MQ02")
def profiler_distortion(
    distortion: Distortion,
    slowdown: Slowdown | None = None,
    breakdown: Breakdown | None = None,
    launches: Launches | None = None,
) -> Verdicts:
    idle = 1.0 if breakdown is None else breakdown.idle_ns / max(breakdown.step_ns, 1)
    ratio = None if slowdown is None else slowdown.ratio
    said: dict[str, str] = {}
    if ratio is not None and ratio > INFLATED:
        said["profiling slows the CPU: CPU times in findings are as recorded"] = (
            "Savings are of the unprofiled step; the overhead is subtracted per phase."
            if slowdown is not None and slowdown.by_phase
            else "Savings are of the unprofiled step; a likely overhead per op and call is subtracted."
            if launches is not None
            else "Savings are scaled to the unprofiled step; savings of CPU time are still too high."
        )
    elif ratio is None:
        said |= _by_events(distortion, breakdown, launches)
    if distortion.overhead_share >= OVERHEAD_SHARE:
        longest = distortion.overheads[0].name
        said[f"profiler overhead, mostly `{longest}`, takes {percent(distortion.overhead_share)} of the used steps"] = (
            "Without the profiler it does not occur, or only once. Warm up longer before recording."
        )
    if ratio is not None and ratio < FASTER:
        yield Caution(
            "the median recorded step is faster than the unprofiled one",
            "Other load must have slowed the unprofiled steps. Record again on an idle machine.",
            lowers_all=True,
        )
        return
    if ratio is None and idle < IDLE_SHARE:
        yield Clean(f"the GPU is idle {percent(idle)} of the step: CPU time is hidden")
        return
    if not said:
        took = f"recording takes {percent(distortion.recording_share)} of a step"
        yield Clean(took if ratio is None else f"recorded steps take {ratio:.2f} times as long as unprofiled ones")
    for what, effect in said.items():
        yield Caution(what, effect, lowers_host=True)


def _by_events(distortion: Distortion, breakdown: Breakdown | None, launches: Launches | None) -> dict[str, str]:
    """What was recorded, where no step was timed without the profiler."""
    slowing = " and ".join(one for one in ("shapes", "stacks") if one in distortion.options)
    launch_ns = distortion.launch_ns or 0 if launches is not None and launches.per_step >= LAUNCHES else 0
    if waits := _inflated(distortion, breakdown):
        return {f"profiling likely inflates the {ms(waits)}/step that the GPU waits for launches": _at(distortion)}
    if distortion.recording_share >= RECORDING_SHARE:
        taken = f"{ms(distortion.recording_ns)}/step of CPU time ({percent(distortion.recording_share)})"
        again = f"Record without {slowing} for times." if slowing else "Compare with an unprofiled step."
        what = f"recording{slowing and f' {slowing}'} took {taken}"
        return {what: f"Savings of CPU time are too high. {again}"}
    if launch_ns >= LAUNCH_NS:
        what = f"a launch takes {ms(launch_ns)} of CPU time (usually 3 to 6 us)"
        return {what: "The profiler slows launches, or the CPU is slow or busy. Compare with an unprofiled step."}
    return {}


def _inflated(distortion: Distortion, breakdown: Breakdown | None) -> int:
    """Idle time for launches, if without the likely cost of recording it would be INFLATED times shorter; else 0."""
    waits = distortion.launching_idle_ns or 0
    if breakdown is None or waits < IDLE_SHARE * breakdown.step_ns:
        return 0
    return waits if waits > INFLATED * (waits - EVENTS_NS[1] * distortion.events) else 0


def _at(distortion: Distortion) -> str:
    least, most = (ms(one * distortion.events) for one in (EVENTS_NS[0], EVENTS_NS[-1]))
    return (
        f"{distortion.events:,} ops and calls per step were recorded at 1 to 3 us each: {least} to {most}. Record with"
        " diagnose profile, which also times unprofiled steps."
    )


EXAMPLES = [
    # 2,000 ops and calls a step at 2 us are 4 of the 7 ms that the GPU waits
    Fires("""
        4 steps of 10
        cpu  aten::add 0.1-0.109 x1000 every 0.009
        gpu  pointwise 0.107-0.109 @0.1-0.106 x1000 every 0.009
    """),
    # 2,000 ops on the CPU, 0.35 us each, in steps of 10 ms
    Fires("4 steps of 10\ncpu  aten::add 0.1-0.104 x2000 every 0.0045"),
    Fires('4 steps of 100\ncpu  aten::mm 0-1 | "Lazy Function Loading" 2-5 | aten::mm 60-61\ngpu  sgemm 0.02-50 @0.01'),
    # as many ops, but the GPU is busy all the time
    Silent("""
        4 steps of 10
        cpu  aten::add 0.1-0.109 x1080 every 0.009
        gpu  pointwise 0.107-0.116 @0.1-0.106 x1080 every 0.009
    """),
    Silent("4 steps of 100\ncpu  aten::mm 0-1 | sync 5-50.01\ngpu  sgemm 0.02-50 @0.01"),
]
