"""Too little was recorded to be sure.

Few steps, or steps that differ much from each other, say little about the run they are taken from.

Why it costs
    Nothing, but each figure of this report may be that of an unusual step.

How to fix
    Record at least five steps of a run that has settled.

Ignore when
    the steps differ because the training does, for instance in sequence lengths.

Sources
    https://docs.pytorch.org/docs/stable/profiler.html
"""

from diagnose.rule import Caution, Clean, Fires, Silent, Steadiness, Verdicts, percent, rule

STEPS = 3  # used steps: with fewer, one unusual step is most of what was seen
VARIATION = 0.10  # standard deviation of the step times over their mean (our choice)


@rule("MQ03")
def incomplete_recording(steadiness: Steadiness) -> Verdicts:
    if steadiness.count < STEPS:
        yield Caution(
            f"only {steadiness.count} {'step was' if steadiness.count == 1 else 'steps were'} measured",
            "An unusual step would not be noticed. Record at least five.",
            lowers_all=True,
        )
    elif steadiness.variation is not None and steadiness.variation > VARIATION:
        yield Caution(
            f"step times vary by {percent(steadiness.variation)} (standard deviation)",
            "Means of other steps would differ as much. Record more steps, or choose steady ones with --steps.",
            lowers_all=True,
        )
    else:
        yield Clean(f"{steadiness.count} steps, varying by {percent(steadiness.variation or 0.0)}")


EXAMPLES = [
    Fires(
        """
        3 steps of 100
        cpu  aten::mm 0-1 | sync 5-99.01
        gpu  sgemm 0.02-99 @0.01
        """
    ),
    Fires(  # every other step is three times as long
        """
        6 steps of 100
        cpu  aten::mm 0-1
        gpu  sgemm 0.02-150 @0.01 in 1,3 | sgemm 51-99 @50 in 2,4,5
        """
    ),
    Silent(
        """
        4 steps of 100
        cpu  aten::mm 0-1 | sync 5-99.01
        gpu  sgemm 0.02-99 @0.01
        """
    ),
]
