"""Steps get slower during the run.

They take longer and longer, or longer from a moment on, or the pauses in them do.

Why it costs
    The longer the run lasts, the more each step costs.
How to fix
    Compute over recent steps, not over all steps so far. Detach tensors that are kept from step to step.
    If the GPU is throttled, check its cooling and power limit.
Ignore when
    steps are meant to change, as with a curriculum or a growing batch.
Sources
    https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
"""

from statistics import median

from diagnose.facts.run.growth import RISE
from diagnose.facts.watched import series
from diagnose.rulekit.vocabulary import *

from ._growth import beyond, device_and_cpu, held_back, slow_to_fast, what_grows

WHAT_TO_DO = {
    "loader": "Check the dataset for a growing list, or for files that it opens again and again.",
    "forward": "Check the forward pass for state that grows: a cache, a list or a buffer.",
    "backward": "Detach tensors that you keep from step to step (.detach(), or .item() for sums): their graph grows.",
    "optimizer": "Check whether the optimizer gets more and more parameters or state.",
    "collection": "Keep fewer objects from step to step, or call gc.freeze() after the set-up.",
    "compilation": "Set TORCH_LOGS=recompiles to find the cause, and mark sizes that vary as dynamic.",
    OTHER_CODE: "Compute metrics and logs over recent steps, not over all steps so far.",
}
PROFILE = "Record early and late steps with `diagnose record`, and compare them."
COOL = "Check the GPU's cooling and power limit: nvidia-smi -q -d CLOCK,TEMPERATURE,POWER,PERFORMANCE."


@run_rule("RU05")
def slower_steps(log: RunLog, stretches: tuple[list[series.Stretch], list[series.Stretch]]) -> Verdicts:
    some, many = stretches
    along, values = series.risen([one.step_ns for one in some]), [one.step_ns for one in many]
    steadily = along is not None and series.grows(values)
    if along is not None and steadily:
        yield _growing(log, some, along)
    else:
        yield from _growing_pauses(log, some)
    if len(values) < series.LEAST_TO_CHANGE and not steadily:
        raise Missing(series.TOO_FEW.format(series.LEAST_TO_CHANGE))
    found = series.changed(values)
    if found is not None and not steadily:
        yield _from_a_moment_on(log, many, found)


def _growing(log: RunLog, some: list[series.Stretch], found: series.Risen) -> RunFinding:
    first, last = series.ends(some)
    steps = sum(one.steps for one in some)
    per_step = found.each * (len(some) - 1) / max(steps - some[-1].steps, 1)
    beginning = [one.step_ns for one in first]
    lost = beyond(_steps(some), median(beginning), found.begin, min(found.begin, *beginning))
    said = (
        f"The typical step rises from {ms(found.first)} to {ms(found.last)}"
        f" (+{ms(1000 * per_step)} per 1,000 steps): {cost(lost.likely_ns, log)}."
    )
    then = f"At this rate, a run twice as long would end at {ms(found.last + per_step * steps)} per step."
    what, why = what_grows(first, last)
    rate = Evidence(said, 1000 * per_step, "ns per 1,000 steps", primary=True)
    told = sentences(rate, what, *device_and_cpu(first, last), then)
    change = COOL if held_back(first, last) else WHAT_TO_DO.get(why, PROFILE)
    return RunFinding("Step time rises over the run", told, lost, change, "growing_steps")


def _growing_pauses(log: RunLog, some: list[series.Stretch]) -> Verdicts:
    pauses = [one.pause_ns for one in some]
    found, usual_ns = series.risen(pauses), median(one.step_ns for one in some)
    if found is None or found.last - found.first < RISE * usual_ns:
        return
    lost = beyond([(one.steps, one.pause_ns) for one in some], *slow_to_fast(series.ends(pauses)[0]))
    said = f"Pauses add {ms(found.first)} to the mean step at first, {ms(found.last)} at the end"
    more = Evidence(f"{said}: {cost(lost.likely_ns, log)}.", found.last - found.first, "ns", primary=True)
    told = sentences(more, f"The typical step takes {ms(usual_ns)}.")
    change = "Check what happens there, such as saving or sorting: handle only what is new, not all steps so far."
    yield RunFinding("Pauses get longer over the run", told, lost, change, "growing_pauses")


def _from_a_moment_on(log: RunLog, some: list[series.Stretch], found: series.Changed) -> RunFinding:
    before, after = some[: found.at], some[found.at :]
    lost = beyond(_steps(after), *slow_to_fast([one.step_ns for one in before]))
    when = after[0]
    moment = f" ({long_duration(when.began_ns)} into the run)" if when.began_ns else ""
    said = (
        f"From step {number(when.first_step)} on{moment}, the typical step takes {ms(found.after)} instead of"
        f" {ms(found.before)}: {cost(lost.likely_ns, log)}."
    )
    throttled = held_back(before, after)
    ratio = Evidence(said, found.after / found.before, "times", primary=True)
    unknown = "" if throttled else "The log does not show the cause."
    told = sentences(ratio, what_grows(before, after)[0], *device_and_cpu(before, after), unknown)
    other = "Check what started then: another process on this machine, or a new phase of the script."
    return RunFinding("Step time jumps during the run", told, lost, COOL if throttled else other, "slower_steps")


def _steps(some: list[series.Stretch]) -> list[tuple[int, float]]:
    return [(one.steps, one.step_ns) for one in some]


EXAMPLES = [
    Fires("400 steps of 50\n400 steps of 75", saving_ms=(10_000, 10_000)),
    Silent("800 steps of 50"),
    CannotTell("6 steps of 50", because="at least 7 windows"),
]
