"""zero_grad writes zeros instead of setting None.

`zero_grad(set_to_none=False)`, the default before PyTorch 2.0, writes zeros to all gradients. The backward pass then
adds to them.

Why it costs
    All gradients are written once more and read once more.
How to fix
    Set gradients to None, as PyTorch 2 does by default.
Ignore when
    CUDA graphs or gradient buckets need tensors that stay in place.
Sources
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
"""

from diagnose.facts.optimizer.optimizer import GradientZeroing
from diagnose.rulekit.vocabulary import *

HOST = Between(0.5, 0.2, 0.1)  # of the host time: setting to None costs a loop over the parameters (our choice)
CPU = Between(0.2, 0.05, 0.0)  # where the CPU writes the zeros itself, which takes longer than the loop (our choice)


@rule("OP02")
def zero_grad_memset(gradient_zeroing: GradientZeroing, steps: Steps) -> Verdicts:
    found = gradient_zeroing
    if not (found.ops if found.on_cpu else found.launches):
        yield Clean("gradients are set to None")
    else:
        yield Finding(
            evidence=(
                Evidence(
                    f"Zeroing gradients takes {found.ops:,} ops per step: {ms(found.host_ns)}.", found.host_ns, "ns"
                )
                if found.on_cpu
                else Evidence(
                    f"Zeroing gradients takes {found.launches:,} launches per step: {ms(found.host_ns)} of CPU time,"
                    f" {ms(found.device_ns)} of GPU time.",
                    found.device_ns,
                    "ns",
                ),
            ),
            edits=(Remove(found.work_ids), Shorten(found.ids, CPU if found.on_cpu else HOST)),
            fixes=(Fix.of(fixes.ZeroGrad()),),
            confidence=Confidence(Level.HIGH, "the ops that write the zeros are recorded"),
            host_bound=True,
        )


EXAMPLES = [
    Fires(
        """
        4 steps of 40
        cpu  zero_grad 0-0.5 | aten::zero_ 0.1-0.4 | aten::mm 0.6-0.7 | sync 1-39.01
        gpu  fill 0.3-4.3 @0.2 | bf16_gemm 4.3-39 @0.65
        """,
        saving_ms=(4, 4),
    ),
    Silent("4 steps of 40\ncpu  zero_grad 0-0.1 | aten::mm 0.6-0.7 | sync 1-39.01\ngpu  bf16_gemm 4.3-39 @0.65"),
]
