"""Training stops while a checkpoint is saved.

The training thread copies the state to CPU memory, serialises it and writes it to disk.

Why it costs
    Nothing trains for seconds to minutes. With several ranks all wait for the slowest.
How to fix
    Save asynchronously: copy to CPU memory, and write from another thread or process. Let each rank save its own part,
    to a local disk first. Or save less often.
Ignore when
    checkpoints are rare: a short recording that happens to hold one overstates their share.
Sources
    https://pytorch.org/blog/reducing-checkpointing-times
    https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

from diagnose.facts.run.pauses import Checkpoints
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on average (our choice)
LEFT = Between(0.5, 0.1, 0.04)  # of the time; only copying must be waited for: 6.3 of 148.8 s were left on a 7B model
RARELY = 1_000  # steps: to tell what a save costs that was seen only once (our choice)


@rule("PA01")
def checkpoint_stalls(checkpoints: Checkpoints, steps: Steps, manifest: RankManifest | None = None) -> Verdicts:
    if checkpoints.host_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"saving takes {percent(checkpoints.host_ns / max(steps.mean_ns, 1))} of the recorded steps")
        return
    total_ns, numbers = checkpoints.host_ns * steps.count, checkpoints.numbers
    alike, timed = seen_again(manifest, checkpoints.longest_ns)
    again = len(numbers) > 1 or alike > 1
    often = (
        f"once in {steps.count} steps; {alike} of {timed} unprofiled steps are as long"
        if again and len(numbers) < 2
        else f"every {(numbers[-1] - numbers[0]) / (len(numbers) - 1):.3g} steps"
        if again
        else f"once in {steps.count} steps ({ms(total_ns / RARELY)}/step if it saves every {RARELY:,} steps)"
    )
    average = f"{ms(checkpoints.host_ns)}/step on average"
    text = f"Saving blocks for up to {ms(checkpoints.longest_ns)}: {average}, {often}."
    yield Finding(
        evidence=(Evidence(text, checkpoints.host_ns, "ns"),),
        edits=(Shorten(checkpoints.ids, LEFT),),
        fixes=(Fix.of(fixes.SaveInBackground()), Fix("Save less often.")),
        confidence=Confidence(Level.HIGH, "the stall and its frequency are recorded")
        if again
        else Confidence(Level.LOW, "how often the run saves is not recorded"),
        site=checkpoints.site,
        basis=Basis.RULE_OF_THUMB,
    )


EXAMPLES = [
    Fires(  # 60 ms, twice in nine steps, of which a half to 4 % are left
        """
        10 steps of 100
        cpu  aten::mm 0-1 | save 40-100 in 4,8
        gpu  sgemm 0.02-40 @0.01 in 4,8 | sgemm 0.02-99.9 @0.01 not in 4,8
        """,
        saving_ms=(6.67, 12.8),
    ),
    # one that was recorded, but in no used step
    Silent("""
        6 steps of 100
        cpu  aten::mm 0-1 | save 30-95 in 0
        gpu  sgemm 0.02-95 @0.01 not in 0 | sgemm 0.02-30 @0.01 in 0
    """),
    # while the GPU has enough to do
    Silent("4 steps of 100\ncpu  aten::mm 0-1 | save 2-90\ngpu  sgemm 0.02-99.9 @0.01"),
    CannotTell("4 steps of 100\ncpu  aten::mm 0-1\ngpu  sgemm 0.02-95 @0.01", because="with_stack"),
]
