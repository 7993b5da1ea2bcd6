"""The recording missed the long steps.

Some timed steps take far longer than others: they collect experience, validate, or write. The
recording missed them all.

Why it costs
    These steps may be most of the run. The mean step time counts them, but the recording cannot show what they do.
How to fix
    Record enough steps to include one: `diagnose profile --steps N`.
Ignore when
    such steps are rare or accidental.
Sources
    https://docs.pytorch.org/docs/stable/profiler.html
"""

from diagnose.facts.run.timed_steps import UNRECORDED_SHARE, Unrecorded
from diagnose.rulekit.vocabulary import *


@rule("MQ04")
def unrecorded_steps(unrecorded: Unrecorded) -> Verdicts:
    if unrecorded.share < UNRECORDED_SHARE:
        yield Clean(f"long steps that the recording missed take {percent(unrecorded.share)} of the time")
        return
    steps = (unrecorded.every or unrecorded.timed) + 1
    yield Caution(
        f"long steps that were not recorded take {percent(unrecorded.share)} of the time,"
        f" {unrecorded.ratio:.0f}x as long each",
        f"Savings count only their waits for data and checkpoints. To see them: diagnose profile --steps {steps}.",
        lowers_all=True,
    )


EXAMPLES = [
    # two of twelve steps, ten apart, take most of the time
    Fires("4 steps of 2\n1 threads, 2 cores\ntimed 2 50 2 2 2 2 2 2 2 2 2 50\ncpu  aten::mm 0-2"),
    # one that is twice as long is like the others
    Silent("4 steps of 2\n1 threads, 2 cores\ntimed 2 2 2 2 2 5 2 2 2 2 2 2\ncpu  aten::mm 0-2"),
]
