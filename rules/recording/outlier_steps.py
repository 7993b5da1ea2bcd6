"""The recording holds outlier steps.

Some recorded steps took three times as long as others with the same ops, and no unprofiled step did. The machine was
busy, or short of memory, while it recorded.

Why it costs
    Nothing in the training. The outliers are dropped, as figures over both kinds of steps would describe neither.
How to fix
    Nothing to fix: the figures use the longest run of other steps. For more of them, record again on an idle machine.
Ignore when
    enough steps remain.
Sources
    https://docs.pytorch.org/docs/stable/profiler.html
"""

from diagnose.rulekit.vocabulary import *

ENOUGH = 3  # steps: fewer do not stand for the run (our choice)


@rule("MQ05")
def outlier_steps(steps: Steps) -> Verdicts:
    number = len(steps.held_up)
    if steps.count + number < 2:
        yield NotApplicable("a single step was measured")
        return
    if not number:
        yield Clean("no recorded step is an outlier")
        return
    yield Caution(
        f"dropped {number} of {steps.recorded} recorded steps: at least 3x slower, unlike any unprofiled step",
        f"Figures use the {steps.count} consecutive steps from {steps.numbers[0]} on.",
        lowers_all=steps.count < ENOUGH,
    )


EXAMPLES = [
    Fires("""
        6 steps of 100
        1 threads, 2 cores
        timed 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20
        cpu  aten::mm 0-20 not in 4 | aten::mm 0-90 in 4
    """),
    # one of the timed steps was as long
    Silent("""
        6 steps of 100
        1 threads, 2 cores
        timed 20 20 20 20 90 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20
        cpu  aten::mm 0-20 not in 4 | aten::mm 0-90 in 4
    """),
    # it has something else to do
    Silent("""
        6 steps of 100
        1 threads, 2 cores
        timed 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20
        cpu  aten::mm 0-20 | aten::sort 20-90 in 4
    """),
    Silent("""
        4 steps of 100
        1 threads, 2 cores
        timed 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20
        cpu  aten::mm 0-20
    """),
]
