"""Data-dependent shapes make the CPU wait for the GPU.

Only the GPU knows the size of a boolean mask's result, or that of `nonzero`, `unique` and `masked_select`.

Why it costs
    The CPU waits until the GPU has finished all queued work, and launches nothing in that time.
How to fix
    Keep sizes fixed: multiply by the mask or use `torch.where`; pass `output_size` to `repeat_interleave`.
Ignore when
    the sizes are needed, as when routing tokens to experts without a fixed capacity.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://github.com/pytorch/pytorch/issues/12461
"""

from diagnose.facts.host.waits import HostWait, WaitReason
from diagnose.rulekit.vocabulary import *

EVERY_STEPS = 2  # seen in less than every second step it is an occasional one


@rule("SY02")
def data_dependent_shapes(host_waits: tuple[HostWait, ...], steps: Steps) -> Verdicts:
    waits = [wait for wait in host_waits if wait.reason is WaitReason.DATA_DEPENDENT_SHAPE]
    frequent = [wait for wait in waits if wait.steps_seen * EVERY_STEPS >= steps.count]
    if not frequent:
        yield Clean(f"{sum(wait.total_calls for wait in waits)} syncs for sizes in {steps.count} steps")
    for wait in frequent:
        yield Finding(
            evidence=(Evidence(waited(wait, steps), wait.drained_idle_ns, "ns"),),
            edits=(Detach(wait.ids), Remove(wait.work_ids)),
            fixes=(
                Fix(
                    "Use an op whose result has a fixed size.",
                    after="loss = (losses * mask).sum() / mask.sum()",
                    safety=Safety.ROUNDING,
                    effort=2,
                    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
                ),
            ),
            confidence=Confidence(Level.HIGH, "the wait and the GPU's idle time are recorded"),
            site=wait.site,
            host_bound=True,
        )


EXAMPLES = [
    Fires(
        """
        4 steps of 100
        cpu  aten::mm 40-41 | aten::nonzero 42-100 | sync 43-99
        gpu  sgemm 40.01-98 @40 | d2h 98.5-98.51 @42.5 8B
        """,
        saving_ms=(41.3, 41.7),  # the kernel's 58 ms are left
    ),
    Silent("""
        4 steps of 100
        cpu  aten::mm 0.01-0.03 | aten::nonzero 0.1-99.95 | sync 0.12-99.94
        gpu  sgemm 0.04-99.9 @0.02 | d2h 99.91-99.92 @0.11 8B
    """),
]
