"""Matmuls run far below the GPU's peak rate.

Their sizes are friendly, and still they, or convolutions, take more than twice the time that the GPU's rate or its
memory would allow.

Why it costs
    The GPU is busy, but with a kernel or a layout that does not suit these sizes.

How to fix
    Let the compiler or the library choose by measuring; make operands contiguous; batch small products together.

Ignore when
    communication runs at the same time on the same GPU and takes part of it.

Sources
    https://docs.pytorch.org/docs/stable/torch.compiler.html
    https://docs.pytorch.org/docs/stable/cuda.tunable.html
"""

from diagnose.facts.device.precision import Roofline
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such kernels (our choice)
MOSTLY = 0.5  # of the slow time in convolutions: then it is about them (our choice)
TRY = Fix.of(fixes.CudnnBenchmark(), "Let cuDNN or MIOpen try its kernels once for each size, if sizes stay the same.")


@rule("KE05")
def slow_matmul(roofline: Roofline, steps: Steps, manifest: RankManifest | None = None) -> Verdicts:
    convolutions = roofline.slow_conv_share >= MOSTLY
    known = manifest is not None and manifest.flags.cudnn_benchmark is not None
    measure = _measure(manifest is not None and manifest.flags.compiled is True)
    if roofline.slow_floor is None or roofline.slow_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"of {ms(roofline.known_ns)} a step in products of known size {ms(roofline.slow_ns)} are slow")
    else:
        yield Finding(
            title="Convolutions run far below what the GPU can do" if convolutions else "",
            evidence=(
                Evidence(
                    f"{'Convolutions' if convolutions else 'Products'} that reach less than half of what the GPU could"
                    f" take {ms(roofline.slow_ns)} a step; at peak rate they would take"
                    f" {ms(round(roofline.slow_floor * roofline.slow_ns))}.",
                    roofline.slow_ns,
                    "ns",
                ),
            ),
            edits=(Recost(roofline.slow_ids, WellChosen(certain=False)),),
            fixes=(TRY, measure) if convolutions and not known else (measure,),
            confidence=Confidence(Level.LOW, "what a better kernel reaches on these sizes is not known"),
            basis=Basis.RULE_OF_THUMB,
        )


def _measure(compiled: bool) -> Fix:  # by the script itself: then its own calls change
    kind = fixes.CompileArgument if compiled else fixes.Compile
    return Fix.of(kind("mode", "max-autotune"), "Let the compiler choose the kernels by measuring them.")


EXAMPLES = [
    Fires(  # 2 x 8192^3 flops take an H100 1.4 ms at 80 % of its peak
        """
        4 steps of 20
        cpu  aten::mm 0-1 shapes=[[8192,8192],[8192,8192]] types=["c10::BFloat16","c10::BFloat16"] | sync 2-19.5
        gpu  bf16_gemm 0.02-8 @0.01 | pointwise 8.1-19 @0.5
        """
    ),
    Silent(  # at two thirds of what is reached at best
        """
        4 steps of 20
        cpu  aten::mm 0-1 shapes=[[8192,8192],[8192,8192]] types=["c10::BFloat16","c10::BFloat16"]
        gpu  bf16_gemm 0.02-2.1 @0.01 | pointwise 8.1-19 @0.5
        """
    ),
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
