"""The training stands still while a checkpoint is written.

State is copied to the host and written to disk by the thread that trains.

Why it costs
    Copying and writing take seconds to minutes, and nothing is trained meanwhile; with several ranks all wait.

How to fix
    Write asynchronously: copy to the host, and let another thread or process write. Write to a local disk first.

Ignore when
    checkpoints are rare: what counts is their time over the time between two of them, not seen in a short recording.

Sources
    https://pytorch.org/blog/reducing-checkpointing-times
    https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

from diagnose.rule import (
    Basis,
    Between,
    CannotTell,
    Checkpoints,
    Clean,
    Confidence,
    Evidence,
    Finding,
    Fires,
    Fix,
    Level,
    Shorten,
    Silent,
    Steps,
    Verdicts,
    ms,
    rule,
)  # fmt: skip

LEFT = Between(0.5, 0.25, 0.1)  # of the time: copying to the host stays (148.8 s became 6.3 s in PyTorch's own example)


@rule("PA01")
def checkpoint_stalls(checkpoints: Checkpoints, steps: Steps) -> Verdicts:
    inside = int(checkpoints.in_steps.sum())
    if not inside:
        yield Clean(f"no checkpoint was written in these {steps.count} steps")
    else:
        yield Finding(
            evidence=(
                Evidence(
                    f"{inside} checkpoints in {steps.count} steps take {ms(checkpoints.host_ns)} a step.",
                    checkpoints.host_ns,
                    "ns",
                ),
                Evidence("The saving is for this recording; in the run it is per step between two checkpoints."),
            ),
            edits=(Shorten(checkpoints.ids, LEFT),),
            fixes=(
                Fix(
                    "Save asynchronously.",
                    before="torch.save(state, path)",
                    after="torch.distributed.checkpoint.async_save(state, checkpoint_id=path)",
                    effort=2,
                    link="https://pytorch.org/blog/reducing-checkpointing-times",
                    trial="patch:torch.save",
                ),
            ),
            confidence=Confidence(Level.MEDIUM, "how often the run saves is not known from a few steps"),
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires(
        """
        6 steps of 100
        cpu  aten::mm 0-1 | save 30-95 in 3
        gpu  sgemm 0.02-30 @0.01 in 3 | sgemm 0.02-95 @0.01 not in 3
        """
    ),
    Silent(  # one that was recorded, but in no used step
        """
        6 steps of 100
        cpu  aten::mm 0-1 | save 30-95 in 0
        gpu  sgemm 0.02-95 @0.01 not in 0 | sgemm 0.02-30 @0.01 in 0
        """
    ),
    CannotTell(
        """
        4 steps of 100
        cpu  aten::mm 0-1
        gpu  sgemm 0.02-95 @0.01
        """,
        because="with_stack",
    ),
]
