"""The recording holds outlier steps.

Some recorded steps ran the same ops as the others in three times their time, and none of many steps without the
profiler did: the machine had something else to do, or ran short of memory while it recorded.

Why it costs
    Nothing in the training. Figures that mixed both kinds of steps would stand for neither.

How to fix
    Nothing has to be: the figures are of the longest run of other steps. Record again while the machine has nothing
    else to do for more of them.

Ignore when
    enough steps are left.

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
        yield Clean("no recorded step was held up")
        return
    yield Caution(
        f"{number} of {steps.recorded} recorded steps ran the same ops in three times their time or more, as no step"
        " without the profiler did",
        f"They are not used: figures are of the {steps.count} steps from {steps.numbers[0]} on that follow each other.",
        lowers_all=steps.count < ENOUGH,
    )


EXAMPLES = [
    Fires(
        """
        6 steps of 100
        1 threads, 2 cores
        timed 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20
        cpu  aten::mm 0-20 not in 4 | aten::mm 0-90 in 4
        """
    ),
    Silent(  # one of the timed steps was as long
        """
        6 steps of 100
        1 threads, 2 cores
        timed 20 20 20 20 90 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20
        cpu  aten::mm 0-20 not in 4 | aten::mm 0-90 in 4
        """
    ),
    Silent(  # it has something else to do
        """
        6 steps of 100
        1 threads, 2 cores
        timed 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20
        cpu  aten::mm 0-20 | aten::sort 20-90 in 4
        """
    ),
    Silent(
        """
        4 steps of 100
        1 threads, 2 cores
        timed 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20 20
        cpu  aten::mm 0-20
        """
    ),
]
