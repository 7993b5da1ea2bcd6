"""The measured steps include warm-up.

The first steps load kernels, try algorithms, fill the allocator's cache, compile and set up communication.

Why it costs
    Nothing in the long run, but every figure of this report mixes both kinds of steps.

How to fix
    Record later steps: `schedule(wait=5, warmup=3, active=5)`; or analyse only the later ones with `--steps`.

Ignore when
    the job is so short that its first steps are most of it.

Sources
    https://docs.pytorch.org/docs/stable/profiler.html
"""

from diagnose.rule import Caution, Clean, Fires, Silent, Verdicts, WarmUp, rule


@rule("MQ01")
def warm_up_steps(warm_up: WarmUp) -> Verdicts:
    cold = [step for step in warm_up.steps if step.number in warm_up.warm_up]
    if not cold:
        yield Clean("no used step looks like warm-up")
    else:
        signs = sorted({sign.value.replace("_", " ") for step in cold for sign in step.signs})
        numbers = ", ".join(str(step.number) for step in cold)
        rest = f" Analyse the others with --steps {warm_up.clean[0]}-{warm_up.clean[-1]}." if warm_up.clean else ""
        yield Caution(
            f"used steps look like warm-up ({numbers}: {', '.join(signs)})",
            f"Means and savings are too high.{rest} Or record with schedule(wait=5, warmup=3, active=5).",
            lowers_all=True,
        )


EXAMPLES = [
    Fires(
        """
        6 steps of 100
        cpu  aten::mm 0-1 | aten::add 1-2 | sync 5-60.01 in 1 | "Runtime Triggered Module Loading" 60.1-90 in 1
        gpu  sgemm 0.02-40 @0.01 not in 1 | sgemm 1-60 @0.5 in 1 | pointwise 91-99 @90.5 in 1
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
