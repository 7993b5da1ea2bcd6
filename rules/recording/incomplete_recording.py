"""The recording has too few steps, or very unequal ones.

A few steps, or steps that differ a lot, say little about the run.

Why it costs
    Nothing, but every figure may describe an unusual step.
How to fix
    Record at least five steps of a settled run: `schedule(wait=5, warmup=3, active=5)`.
Ignore when
    the steps differ because the training does, for instance in sequence length.
Sources
    https://docs.pytorch.org/docs/stable/profiler.html
"""

from diagnose.facts.run.quality import Steadiness
from diagnose.facts.run.timed_steps import Slowdown
from diagnose.rulekit.vocabulary import *

STEPS = 3  # with fewer, one unusual step is most of what was seen (our choice)
VARIATION = 0.10  # standard deviation of the step times over their mean (our choice)
UNSURE = 0.05  # by which the mean is off on average: with enough steps it is sure even if they differ (our choice)
UNEVEN = 1.3  # times as much work, or as little: savings are of other steps then (our choice)


@rule("MQ03")
def incomplete_recording(steadiness: Steadiness, steps: Steps, slowdown: Slowdown | None = None) -> Verdicts:
    variation, size = steadiness.variation or 0.0, 1.0 if slowdown is None else slowdown.size
    error = variation / steadiness.count**0.5
    if not 1 / UNEVEN < size < UNEVEN:
        yield Caution(
            f"recorded steps do {size:.2g} times the work of unprofiled steps (by autograd nodes)",
            "Savings are scaled to the mean step. Record more steps: diagnose profile --steps 20.",
            lowers_all=True,
        )
    if steadiness.count < STEPS:
        one = "one step" if steps.recorded else "one stretch of time"
        yield Caution(
            f"all findings rest on {one if steadiness.count == 1 else 'two steps'}",
            "Confidence is one level lower. Record more steps: diagnose profile --steps 20.",
            lowers_all=True,
        )
    elif variation > VARIATION and error > UNSURE:
        yield Caution(
            f"step times vary: their mean may be off by {percent(error)}",
            "Savings may be off by as much. Record more steps, or choose steady ones with --steps.",
            lowers_all=True,
            noise_share=error,
        )
    elif steadiness.quicker_ns is not None:
        yield Caution(
            f"the first recorded step took {ms(steadiness.quicker_ns)}, the used ones {ms(steadiness.mean_ns)} for as"
            " much work",
            "The recording itself may have slowed them: compare with an unprofiled step.",
            lowers_all=True,
        )
    elif 1 / UNEVEN < size < UNEVEN:
        yield Clean(f"{steadiness.count} steps, which vary by {percent(variation)}")


EXAMPLES = [
    # of three steps two are used
    Fires("3 steps of 100\ncpu  aten::mm 0-1 | sync 5-99.01\ngpu  sgemm 0.02-99 @0.01"),
    # steps of 150 and 50 ms
    Fires("6 steps of 100\ncpu  aten::mm 0-1\ngpu  sgemm 0.02-149 @0.01 in 1,3 | sgemm 51-99 @50 in 2,4,5"),
    Silent("4 steps of 100\ncpu  aten::mm 0-1 | sync 5-99.01\ngpu  sgemm 0.02-99 @0.01"),
]
