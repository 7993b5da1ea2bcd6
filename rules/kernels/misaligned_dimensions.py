"""A dimension is misaligned for Tensor Cores.

Tensor Cores take rows of 16 bytes: 8 numbers of 16 bits, or 4 of TF32. Where a size (features, vocabulary, head size)
is no multiple of that, slower kernels run.

Why it costs
    On an H100 products in 16 bits reach 79 % of the peak; 27 % where a size is even, 14 % where it is odd.

How to fix
    Round sizes up: the vocabulary to a multiple of 64, hidden sizes and channels to multiples of 8 or 64; pad batches.

Ignore when
    the odd size is the number of tokens, which changes from step to step, and a padding collator is no option.

Sources
    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication
    https://arxiv.org/abs/2401.14489
"""

from diagnose.facts.device.precision import Roofline
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such kernels that reach less than half of what the GPU could (our choice)

GRAIN, LEAST = 64, 8  # sizes are padded to a multiple of the first, smaller ones of the second (NVIDIA's guide)


@rule("KE03")
def misaligned_dimensions(roofline: Roofline, steps: Steps) -> Verdicts:
    odd, ns = roofline.odd_size, roofline.misaligned_ns
    if roofline.misaligned_floor is None or odd is None or ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"slow kernels with odd sizes take {percent(ns / steps.mean_ns)} of the step")
    else:
        grain = GRAIN if odd.size > GRAIN else LEAST
        even = -(-odd.size // grain) * grain
        yield Finding(
            title=f"A dimension of {odd.size:,} is misaligned for Tensor Cores",
            evidence=(
                Evidence(
                    f"{odd.calls:,} product{'s' * (odd.calls != 1)} a step with a size that is no multiple of 16 bytes"
                    f" take {ms(ns)}; padded, {ms(round(roofline.misaligned_floor * ns))} at best.",
                    ns,
                    "ns",
                ),
            ),
            edits=(Recost(roofline.misaligned_ids, Padded()),),
            fixes=(
                Fix(
                    f"Pad {odd.size} to {even} in the operand of {odd.other} x {odd.size}, and mask what is added.",
                    safety=Safety.ROUNDING,
                    effort=2,
                    link="https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication",
                ),
            ),
            confidence=Confidence(Level.MEDIUM, "sizes and times are recorded; that alignment is to blame is likely"),
            site=odd.site,
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires(  # 2 x 4096 x 4096 x 50257 flops take an H100 2.1 ms at 80 % of its peak
        """
        4 steps of 20
        cpu  aten::mm 0-1 shapes=[[4096,4096],[4096,50257]] types=["c10::BFloat16","c10::BFloat16"] | sync 2-19.5
        gpu  bf16_gemm 0.02-8 @0.01 | pointwise 8.1-19 @0.5
        """
    ),
    Silent(  # odd, but as fast as it gets
        """
        4 steps of 20
        cpu  aten::mm 0-1 shapes=[[4096,4096],[4096,50257]] types=["c10::BFloat16","c10::BFloat16"]
        gpu  bf16_gemm 0.02-2.4 @0.01 | pointwise 8.1-19 @0.5
        """
    ),
    CannotTell(
        """
        4 steps of 20
        cpu  aten::mm 0-1
        gpu  bf16_gemm 0.02-8 @0.01
        """,
        because="shapes",
    ),
]
