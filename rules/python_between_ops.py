"""Python code between the operations keeps the GPU waiting.

The thread that launches work runs Python for so long that the GPU runs dry: preparing arguments, looping over
parameters or samples, bookkeeping, logging.

Why it costs
    The GPU is idle until the next launch.

How to fix
    Move the work out of the step: cache it, vectorise it, or do it on another thread or process.

Ignore when
    the recording has call stacks: they slow exactly this down, so compare with a recording without.

Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.rule import (
    Basis,
    Between,
    Clean,
    Confidence,
    Evidence,
    Finding,
    Fires,
    Fix,
    Level,
    PythonPause,
    Shorten,
    Silent,
    Times,
    Verdicts,
    ms,
    percent,
    rule,
)  # fmt: skip

WORTH_SHARE = 0.05  # of the step idle for Python, all places together (our choice)
PLACE_SHARE = 0.01  # at one place, to be named by itself
GAPS = 3  # at one place, in all used steps: a single one is start-up, not a loop
LEFT = Between(0.8, 0.5, 0.1)  # of the Python time: code rarely vanishes as a whole (our choice)


@rule("LB02")
def python_between_ops(python_pauses: tuple[PythonPause, ...]) -> Verdicts:
    total = sum(pause.share for pause in python_pauses)
    if total < WORTH_SHARE:
        yield Clean(f"the GPU waits {percent(total)} of the step for Python between ops")
        return
    for pause in python_pauses:
        if pause.share >= PLACE_SHARE and pause.gaps >= GAPS:
            where = f" in `{pause.site.function}`" if pause.site else ""
            yield Finding(
                evidence=(
                    Evidence(
                        f"The GPU is idle {ms(pause.idle_ns)} a step while Python runs between ops{where}"
                        f" ({pause.gaps:,} gaps).",
                        pause.idle_ns,
                        "ns",
                    ),
                ),
                edits=(Shorten(Times(pause.track, pause.times), LEFT),),
                fixes=(Fix("Move this work out of the step, or vectorise it.", effort=2),),
                confidence=Confidence(
                    Level.MEDIUM if pause.site else Level.LOW,
                    "the line is recorded; how much of it can go is not" if pause.site else "no source line is known",
                ),
                site=pause.site,
                basis=Basis.RULE_OF_THUMB,
                host_bound=True,
            )


EXAMPLES = [
    Fires(
        """
        4 steps of 100
        cpu  "train.py(30): make_mask" 0-40 | aten::mm 40-41 | "train.py(40): log" 41-100
        gpu  sgemm 40.02-60 @40.01
        """
    ),
    Silent(  # while the GPU works
        """
        4 steps of 100
        cpu  aten::mm 0-1 | "train.py(30): make_mask" 2-40 | sync 42-99.51
        gpu  sgemm 0.02-99.5 @0.01
        """
    ),
]
