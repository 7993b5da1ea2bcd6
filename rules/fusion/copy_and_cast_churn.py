"""Copies and dtype casts take GPU time.

`contiguous`, `clone`, `cat`, `.to(dtype)` and autocast's casts move data through memory and compute nothing.

Why it costs
    Each copy reads and writes a whole tensor. The next op could often read the original.
How to fix
    Create tensors in the layout and dtype in which they are used. Write into preallocated tensors. Keep weights in 16
    bits.
Ignore when
    the copies are the point: sharding, checkpoints, gradient buckets.
Sources
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.device.layout import CopyChurn
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such copies (our choice)
KEPT = Between(0.9, 0.6, 0.2)  # share of them that is needed after all: which, a trace does not tell (our choice)


@rule("AT05")
def copy_and_cast_churn(copy_churn: tuple[CopyChurn, ...], steps: Steps) -> Verdicts:
    total = sum(one.ns for one in copy_churn)
    if total < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"copies and casts on the GPU take {percent(total / steps.mean_ns)} of the step")
    else:
        known_ns = sum(one.ns for one in copy_churn if not one.cast and (one.asked_by or one.op))
        most = [
            f"{one.asked_by or one.op or 'unknown'} {'casts' if one.cast else 'copies'} {ms(one.ns)}"
            for one in copy_churn
        ]
        yield Finding(
            title=f"Copy and cast kernels take {ms(total)}",
            evidence=(Evidence(f"{ms(total)}/step; the largest: {'; '.join(most[:4])}.", total, "ns"),),
            edits=tuple(Shorten(one.ids, KEPT) for one in copy_churn),
            fixes=(
                Fix(
                    "Create tensors in the layout and dtype in which they are used.",
                    safety=Safety.ROUNDING,
                    effort=2,
                    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
                ),
            ),
            confidence=Confidence(Level.LOW, "some of the copies may be needed"),
            kind=Kind.FAULT if 2 * known_ns > total else Kind.WHERE_TO_LOOK,
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires("""
        4 steps of 40
        cpu  aten::contiguous 0-0.2 | aten::copy_ 0.01-0.19 | sync 1-39.01
        gpu  "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda()>" 1-9 @0.05
        gpu  bf16_gemm 9-39 @0.3
    """),
    Silent("""
        4 steps of 40
        cpu  aten::contiguous 0-0.2 | aten::copy_ 0.01-0.19 | sync 1-39.01
        gpu  "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda()>" 1-1.3 @0.05
        gpu  bf16_gemm 1.3-39 @0.3
    """),
]
