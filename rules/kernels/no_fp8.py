"""Large matmuls run in 16 bits on a GPU with fp8.

Matmuls of some thousand rows and columns take much of the step. The GPU multiplies 8-bit numbers at twice the rate.

Why it costs
    fp8 has twice the rate of 16 bits. Computing scales and casting take part of that back.
How to fix
    Train linear layers in fp8, with torchao's float8 or TransformerEngine. Compile the model to fuse the casts.
Ignore when
    the training is short or numerically delicate. Only a long run shows whether the loss holds.
Sources
    https://github.com/pytorch/torchtitan/blob/main/docs/float8.md
    https://pytorch.org/blog/training-using-float8-fsdp2
"""

from diagnose.facts.device.precision import LargeProducts
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such products (our choice)


@rule("KE06")
def no_fp8(large_products: LargeProducts | None, steps: Steps) -> Verdicts:
    if large_products is None:
        yield NotApplicable("the GPU has no fp8")
        return
    ns = large_products.ns
    share = f"{percent(ns / steps.mean_ns)} of the step"
    if ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"large 16-bit matmuls take {share}")
    else:
        yield Finding(
            evidence=(
                Evidence(f"16-bit matmuls with dimensions of 2,048 and more take {ms(ns)}/step, {share}.", ns, "ns"),
                Evidence(f"{large_products.device} multiplies fp8 at twice the rate, before scaling and casts."),
            ),
            edits=(Recost(large_products.ids, InPrecision("fp8")),),
            fixes=(
                Fix(
                    "Train linear layers in fp8, and watch the loss over a long run.",
                    after="from torchao.float8 import convert_to_float8_training\n"
                    "convert_to_float8_training(model)\nmodel = torch.compile(model)",
                    effort=2,
                    safety=Safety.PRECISION,
                    link="https://github.com/pytorch/ao/tree/main/torchao/float8",
                ),
            ),
            confidence=Confidence(Level.LOW, "the cost of casts and the effect on the loss are not recorded"),
            kind=Kind.OPTION,
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires(  # it takes longer than an H100 needs; so it will in fp8
        """
        4 steps of 20
        cpu  aten::mm 0-0.1 shapes=[[16384,4096],[4096,4096]] types=["c10::BFloat16","c10::BFloat16"]
        cpu  sync 2-19.81
        gpu  bf16_gemm 0.06-10.06 @0.05 | pointwise 10.06-19.8 @1.2
        """,
        saving_ms=(3.8, 5.0),
    ),
    # too small: casting would take as long
    Silent("""
        4 steps of 20
        cpu  aten::mm 0-0.1 shapes=[[16384,1024],[1024,1024]] types=["c10::BFloat16","c10::BFloat16"]
        cpu  sync 2-19.81
        gpu  bf16_gemm 0.06-10.06 @0.05 | pointwise 10.06-19.8 @1.2
    """),
    # an A100 has no fp8
    Silent("""
        4 steps of 20
        device A100
        cpu  aten::mm 0-0.1 shapes=[[16384,4096],[4096,4096]] types=["c10::BFloat16","c10::BFloat16"]
        cpu  sync 2-19.81
        gpu  fp16_gemm 0.06-10.06 @0.05 | pointwise 10.06-19.8 @1.2
    """),
    CannotTell("4 steps of 20\ncpu  aten::mm 0-0.1 | sync 2-19.81\ngpu  bf16_gemm 0.06-10.06 @0.05", because="shapes"),
]
