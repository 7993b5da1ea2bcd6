"""A dimension is misaligned for Tensor Cores.

Tensor Cores take rows of 16 bytes: 8 numbers of 16 bits, or 4 of TF32. A size that is no multiple (features,
vocabulary, head size) runs slower kernels.

Why it costs
    On an H100, 16-bit matmuls reach 79 % of the peak. Misaligned even sizes reach 27 %, odd sizes 14 %.
How to fix
    Round sizes up: the vocabulary to a multiple of 64, hidden sizes and channels to multiples of 8 or 64. Pad batches.
Ignore when
    the size is the number of tokens, which changes from step to step, and the collator cannot pad.
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
        yield Clean(f"matmuls with misaligned dimensions take {percent(ns / steps.mean_ns)} of the step")
    else:
        grain = GRAIN if odd.size > GRAIN else LEAST
        even = -(-odd.size // grain) * grain
        many = f"{odd.calls:,} matmul{'s' * (odd.calls != 1)} per step with misaligned dimensions"
        text = f"{many}: {ms(ns)}; padded, {about(roofline.misaligned_floor * ns)} at best."
        yield Finding(
            title=f"A dimension of {odd.size} is misaligned for Tensor Cores",
            evidence=(Evidence(text, ns, "ns"),),
            edits=(Recost(roofline.misaligned_ids, Padded()),),
            fixes=(
                Fix(
                    f"Pad {odd.size} to {even} in the {odd.other} x {odd.size} operand, and mask the padding.",
                    safety=Safety.ROUNDING,
                    effort=2,
                    link="https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication",
                ),
            ),
            confidence=Confidence(Level.MEDIUM, "sizes and times are recorded; alignment is the likely cause"),
            site=odd.site,
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    # 2 x 4096 x 4096 x 50257 flops take an H100 2.1 ms at 80 % of its peak
    Fires("""
        4 steps of 20
        cpu  aten::mm 0-1 shapes=[[4096,4096],[4096,50257]] types=["c10::BFloat16","c10::BFloat16"] | sync 2-19.5
        gpu  bf16_gemm 0.02-8 @0.01 | pointwise 8.1-19 @0.5
    """),
    # odd, but as fast as it gets
    Silent("""
        4 steps of 20
        cpu  aten::mm 0-1 shapes=[[4096,4096],[4096,50257]] types=["c10::BFloat16","c10::BFloat16"]
        gpu  bf16_gemm 0.02-2.4 @0.01 | pointwise 8.1-19 @0.5
    """),
    CannotTell("4 steps of 20\ncpu  aten::mm 0-1\ngpu  bf16_gemm 0.02-8 @0.01", because="shapes"),
]
