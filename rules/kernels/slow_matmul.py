"""Matmuls run far below the GPU's peak rate.

Their sizes suit the GPU. Still these matmuls or convolutions take more than twice the time that its rate or memory
bandwidth allows.

Why it costs
    The GPU is busy, but with a kernel or a layout that does not suit these sizes.
How to fix
    Let the compiler or the library benchmark its kernels. Make operands contiguous. Batch small matmuls together.
Ignore when
    communication runs on the same GPU at the same time and takes part of it.
Sources
    https://docs.pytorch.org/docs/stable/torch.compiler.html
    https://docs.pytorch.org/docs/stable/cuda.tunable.html
"""

from diagnose.facts.device.precision import Roofline
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such kernels (our choice)
MOSTLY = 0.5  # of the slow time in convolutions: then it is about them (our choice)
TRY = Fix.of(fixes.CudnnBenchmark(), "Let cuDNN or MIOpen benchmark its kernels, if input sizes are fixed.")


@rule("KE05")
def slow_matmul(roofline: Roofline, steps: Steps, manifest: RankManifest | None = None) -> Verdicts:
    convolutions = roofline.slow_conv_share >= MOSTLY
    known = manifest is not None and manifest.flags.cudnn_benchmark is not None
    measure = _measure(manifest is not None and manifest.flags.compiled is True)
    ns = roofline.slow_ns
    if roofline.slow_floor is None or ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"{ms(ns)} of {ms(roofline.known_ns)}/step in matmuls and convolutions is slow")
    else:
        takes = f"{'Convolutions' if convolutions else 'Matmuls'} below half of the GPU's rate take {ms(ns)}/step"
        yield Finding(
            title="Convolutions run far below the GPU's peak rate" if convolutions else "",
            evidence=(Evidence(f"{takes}; at peak rate, {about(roofline.slow_floor * ns)}.", ns, "ns"),),
            edits=(Recost(roofline.slow_ids, WellChosen(certain=False)),),
            fixes=(TRY, measure) if convolutions and not known else (measure,),
            confidence=Confidence(Level.LOW, "the speed of a better kernel on these sizes is not known"),
            basis=Basis.RULE_OF_THUMB,
        )


def _measure(compiled: bool) -> Fix:  # by the script itself: then its own calls change
    kind = fixes.CompileArgument if compiled else fixes.Compile
    return Fix.of(kind("mode", "max-autotune"), "Let torch.compile benchmark and choose the kernels.")


EXAMPLES = [
    # 2 x 8192^3 flops take an H100 1.4 ms at 80 % of its peak
    Fires("""
        4 steps of 20
        cpu  aten::mm 0-1 shapes=[[8192,8192],[8192,8192]] types=["c10::BFloat16","c10::BFloat16"] | sync 2-19.5
        gpu  bf16_gemm 0.02-8 @0.01 | pointwise 8.1-19 @0.5
    """),
    # at two thirds of what is reached at best
    Silent("""
        4 steps of 20
        cpu  aten::mm 0-1 shapes=[[8192,8192],[8192,8192]] types=["c10::BFloat16","c10::BFloat16"]
        gpu  bf16_gemm 0.02-2.1 @0.01 | pointwise 8.1-19 @0.5
    """),
    CannotTell(
        """
        4 steps of 20
        device 1080
        cpu  aten::mm 0-1 shapes=[[8192,8192],[8192,8192]] types=["c10::BFloat16","c10::BFloat16"]
        gpu  bf16_gemm 0.02-8 @0.01
        """,
        because="peak rates",
    ),
]
