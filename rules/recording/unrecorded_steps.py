"""Outlier steps were timed, but none of them was recorded.

Some steps take far longer than others: they collect experience, validate, or write. Those that were recorded are all of
the other kind.

Why it costs
    What they do may be most of the run. The mean step counts them, but what they do there was not recorded.

How to fix
    Record so many steps that one of them is among them: `diagnose profile --steps N`.

Ignore when
    they are rare, or came by chance.

Sources
    https://docs.pytorch.org/docs/stable/profiler.html
"""

from diagnose.facts.run.timed_steps import UNRECORDED_SHARE, Unrecorded
from diagnose.rulekit.vocabulary import *


@rule("MQ04")
def unrecorded_steps(unrecorded: Unrecorded) -> Verdicts:
    if unrecorded.share < UNRECORDED_SHARE:
        yield Clean(f"long steps that were not recorded take {percent(unrecorded.share)} of the time")
        return
    steps = (unrecorded.every or unrecorded.timed) + 1
    yield Caution(
        f"{unrecorded.long} of {unrecorded.timed} steps without the profiler took {unrecorded.ratio:.0f} times as long"
        f" as the others, {percent(unrecorded.share)} of the time, and none of these was recorded",
        "What they wait for is known by phase only, and savings of other work are of the other steps."
        f" Record more: diagnose profile --steps {steps}.",
        lowers_all=True,
    )


EXAMPLES = [
    Fires(  # two of twelve steps, ten apart, take most of the time
        """
        4 steps of 2
        1 threads, 2 cores
        timed 2 50 2 2 2 2 2 2 2 2 2 50
        cpu  aten::mm 0-2
        """
    ),
    Silent(  # one that is twice as long is like the others
        """
        4 steps of 2
        1 threads, 2 cores
        timed 2 2 2 2 2 5 2 2 2 2 2 2
        cpu  aten::mm 0-2
        """
    ),
]
