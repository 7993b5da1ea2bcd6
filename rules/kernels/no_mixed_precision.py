"""Mixed precision is off.

Matmuls, convolutions and attention run in fp32 or TF32. This GPU is several times as fast with 16 bits.

Why it costs
    16-bit Tensor Cores do 2 to 16 times the work, and activations take half the memory traffic.
How to fix
    Use autocast to bfloat16. On GPUs before Ampere, use float16 with a GradScaler.
Ignore when
    the model is known to diverge in 16 bits. On a CPU without 16-bit units, fp32 is 10 to 50 times as fast.
Sources
    https://docs.pytorch.org/docs/stable/amp.html
    https://github.com/pytorch/pytorch/issues/118499
    https://pytorch.org/blog/what-every-user-should-know-about-mixed-precision-training-in-pytorch
"""

from diagnose.facts.core.base import Facts
from diagnose.facts.device import precision as precisions
from diagnose.facts.run.program import Program
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in 32-bit matrix work (our choice)
WEIGHTS = Fix(
    "Convert the model's weights to 16 bits.",
    after="model = model.to(torch.bfloat16)  # torch.float16 before Ampere",
    safety=Safety.PRECISION,
    link="https://docs.pytorch.org/docs/stable/amp.html",
)
SCALER = "scaler = torch.amp.GradScaler()  # once; with older PyTorch use torch.cuda.amp for both\n"
SCALED = "\nscaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()  # unscale_() before clipping"


@rule("KE02")
def no_mixed_precision(facts: Facts, manifest: RankManifest | None = None, program: Program | None = None) -> Verdicts:
    if slower := precisions.half_on_cpu(facts):
        half, ns = slower
        lacks = f"a CPU without {', '.join(sorted(precisions.UNITS[half]))}"
        yield NotApplicable(f"{half} matmuls and convolutions take {ms(ns)}/step on {lacks}; fp32 is faster there")
        return
    precision = precisions.precision(facts)
    half = {"bf16": "bfloat16", "fp16": "float16"}[precision.half_dtype]
    entered = manifest.flags.autocast.get("cuda") if manifest else None
    entered = entered if entered in (half, "float16") else None  # bfloat16 gains nothing on a GPU without it
    if precision.half_left is None:
        slow = f"{precision.device} is no faster in 16 bits"
        yield NotApplicable(slow if precision.full_ns else "no matmul or convolution runs in 32 bits")
    elif precision.full_share < WORTH_SHARE:
        yield Clean(f"32-bit matmuls take {percent(precision.full_share)} of the step")
    else:
        infers, level = program is not None and program.infers, Level.MEDIUM if precision.rates_known else Level.LOW
        narrow, ns = InPrecision(precision.half_dtype, autocast=not infers), precision.full_ns
        at_best = f"in 16 bits, {about(precision.half_left * ns)} at best"
        yield Finding(
            evidence=(
                Evidence(f"32-bit matmuls, convolutions and attention take {ms(ns)}/step; {at_best}.", ns, "ns"),
                *([] if precision.rates_known else [Evidence(f"Rates are of other GPUs like {precision.device}.")]),
                *([Evidence(f"The 32-bit work runs outside the script's autocast to {entered}.")] if entered else []),
            ),
            edits=(Recost(precision.full_ids, narrow), Recost(precision.pointwise_ids, narrow)),
            fixes=(WEIGHTS if infers else _fix(entered or half, bool(entered)),),
            confidence=Confidence(level, "the precision is recorded; the speed of 16-bit kernels is estimated"),
            kind=Kind.OPTION,
            basis=Basis.RULE_OF_THUMB,
        )


def _fix(dtype: str, entered: bool) -> Fix:
    scales = dtype != "bfloat16"
    if not (entered or scales):
        return Fix.of(fixes.Autocast())
    return Fix(
        f"Run the {'whole ' * entered}forward pass and the loss under autocast.",
        after=SCALER * scales
        + f'with torch.autocast("cuda", dtype=torch.{dtype}): loss = criterion(model(x), y)'
        + SCALED * scales,
        safety=Safety.PRECISION,
        link="https://docs.pytorch.org/docs/stable/amp.html",
    )


EXAMPLES = [
    Fires("""
        4 steps of 100
        device A100
        cpu  aten::mm 0-1 | sync 1.1-99.5
        gpu  sgemm 0.02-60 @0.01 | pointwise 60.1-99 @0.5
    """),
    # 16 bits already
    Silent("4 steps of 100\ndevice A100\ncpu  aten::mm 0-1\ngpu  bf16_gemm 0.02-99 @0.01"),
    # memory-bound work in fp32 is no matrix work
    Silent("4 steps of 100\ndevice A100\ncpu  aten::add 0-1\ngpu  pointwise 0.02-99 @0.01"),
    # 16 bits that the processor has no units for
    Silent("""
        4 steps of 100
        1 threads, 2 cores, flags avx2 avx512_fp16
        cpu  aten::mm 0-80 shapes=[[300,300],[300,300]] types=["c10::BFloat16","c10::BFloat16"]
    """),
]
