"""The measured steps include warm-up.

The first steps load kernels, autotune, fill the allocator's cache, compile and set up communication.

Why it costs
    Nothing in the long run, but the figures of this report mix both kinds of steps.
How to fix
    Record later steps: `schedule(wait=5, warmup=3, active=5)`, or analyse only later ones with `--steps`.
Ignore when
    the job is so short that warm-up is most of it.
Sources
    https://docs.pytorch.org/docs/stable/profiler.html
"""

from diagnose.facts.run.quality import Sign, WarmUp
from diagnose.rulekit.vocabulary import *

ENOUGH = 3  # steps that are no warm-up: fewer do not stand for the run (our choice)
START_UP = {Sign.ALLOCATION, Sign.COMPILE, Sign.COMMUNICATOR}  # what later steps hardly do, where there is only one


@rule("MQ01")
def warm_up_steps(warm_up: WarmUp) -> Verdicts:
    single = len(warm_up.steps) == 1
    cold = [step for step in warm_up.steps if (step.signs & START_UP if single else step.number in warm_up.warm_up)]
    clean = [step for step in warm_up.steps if step not in cold]
    if single and not cold:
        raise Missing("three steps or more", "Raise `active` in torch.profiler.schedule, and call prof.step().")
    if not cold:
        yield Clean("no used step is warm-up")
        return
    signs = ", ".join(sorted({sign.value.replace("_", " ") for step in cold for sign in step.signs}))
    numbers = ", ".join(str(step.number) for step in cold)
    all_ns, clean_ns = (sum(step.ns for step in some) / max(len(some), 1) for some in (warm_up.steps, clean))
    yield Caution(
        f"the recording looks like start-up ({signs})"
        if single
        else f"the used steps include warm-up ({numbers}: {signs})",
        f"A step takes {ms(all_ns)} with warm-up, {ms(clean_ns)} without: use --steps"
        f" {clean[0].number}-{clean[-1].number}."
        if len(clean) >= ENOUGH
        else "The figures do not represent the run. Record later steps: schedule(wait=5, warmup=3, active=5).",
        lowers_all=True,
    )


EXAMPLES = [
    # step 1 loads kernels and takes 1.9 times as long as the later ones
    Fires("""
        6 steps of 100
        cpu  aten::mm 0-1 | "Runtime Triggered Module Loading" 1-90 in 1
        gpu  sgemm 0.02-10 @0.01 not in 1 | sgemm 91-99 @90.5 in 1
    """),
    # no steps are marked, and the window is full of first allocations
    Fires("cpu  malloc 1-2 x5 every 10 | aten::mm 60-61\ngpu  fill 0.5-1 @0 | sgemm 61-99 @60.5"),
    Silent("4 steps of 100\ncpu  aten::mm 0-1 | sync 5-99.01\ngpu  sgemm 0.02-99 @0.01"),
    CannotTell("cpu  aten::mm 0-1 | sync 5-99.01\ngpu  sgemm 0.02-99 @0.01", because="three steps"),
]
