"""fp32 matmuls do not use Tensor Cores (TF32 is off).

Since PyTorch 1.12, fp32 matmuls do not use Tensor Cores by default. With TF32 they do: inputs are rounded to 10 bits of
mantissa, sums and outputs stay fp32. Convolutions use TF32 by default.

Why it costs
    TF32 is 7 to 8 times as fast as fp32 on an A100, H100 or H200. On other GPUs since Ampere: 1 to 2 times.
How to fix
    Allow TF32 with one line before training. Mixed precision (no_mixed_precision, KE02) saves more.
Ignore when
    the training needs full fp32: the relative error of a product of two 10,000-wide matrices is about 0.002.
Sources
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
"""

from diagnose.facts.device.precision import Precision
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such kernels (our choice)
LINK = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
ALLOW = Fix.of(fixes.Tf32())
UNSET = Fix.of(fixes.Tf32(value=True))


@rule("KE01")
def tf32_off(
    precision: Precision, steps: Steps, manifest: RankManifest | None = None, environment: dict[str, str] | None = None
) -> Verdicts:
    allowed, forbidden = _allowed(manifest), (environment or {}).get("NVIDIA_TF32_OVERRIDE") == "0"
    ns = precision.fp32_ns
    if not ns:
        yield Clean("no matmul runs in fp32 without Tensor Cores")
    elif precision.tf32_left is None:
        yield NotApplicable(f"{precision.device} has no TF32")
    elif ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"fp32 matmuls take {percent(ns / steps.mean_ns)} of the step")
    elif allowed and not forbidden:
        yield Clean(f"TF32 is already allowed; fp32 kernels take {ms(ns)}/step for another reason")
    else:
        off = "TF32 is not allowed, and " if allowed is False else ""
        known = "NVIDIA_TF32_OVERRIDE=0 forbids TF32, and " if forbidden else off
        at_best = f"{about(precision.tf32_left * ns)} at best with TF32"
        yield Finding(
            evidence=(Evidence(f"fp32 matmuls run without Tensor Cores: {ms(ns)}/step, {at_best}.", ns, "ns"),),
            edits=(Recost(precision.fp32_ids, InPrecision("tf32")),),
            fixes=((UNSET,) if forbidden else ()) + (() if allowed else (ALLOW,)),
            confidence=Confidence(Level.HIGH, f"{known}kernel names show the precision"),
            kind=Kind.OPTION,
            basis=Basis.RULE_OF_THUMB,
        )


def _allowed(manifest: RankManifest | None) -> bool | None:
    """Whether matrix multiplications may use TF32; None if that is not known."""
    if manifest is None:
        return None
    allowed, precision = manifest.flags.cuda_matmul_allow_tf32, manifest.flags.float32_matmul_precision
    return precision != "highest" if allowed is None and precision is not None else allowed


EXAMPLES = [
    Fires("""
        4 steps of 100
        device A100
        cpu  aten::mm 0-1 shapes=[[8192,8192],[8192,8192]] types=["float","float"] | sync 1.1-99.9
        gpu  sgemm 0.02-60 @0.01 | pointwise 60.1-99.8 @0.5
    """),
    # convolutions: TF32 is on for them by default, and where it is not, that is another setting
    Silent("4 steps of 100\ndevice A100\ncpu  aten::cudnn_convolution 0-1\ngpu  conv 0.02-99 @0.01"),
    # Volta has no TF32
    Silent("4 steps of 100\ndevice V100\ncpu  aten::mm 0-1\ngpu  sgemm 0.02-99 @0.01"),
    # bound by memory: a product with a vector reads its matrix once, in TF32 as in fp32
    Silent("""
        4 steps of 100
        device A100
        cpu  aten::mm 0-1 shapes=[[1,16384],[16384,16384]] types=["float","float"]
        gpu  sgemm 0.02-0.64 @0.01 | pointwise 0.7-99 @0.5
    """),
]
