"""Convolutions convert between memory formats.

Tensor Cores want channels last (NHWC). In PyTorch's default format (NCHW), each convolution converts its input and its
output.

Why it costs
    The conversions read and write whole images, and compute nothing.
How to fix
    Keep the model and its inputs in channels_last from the start.
Ignore when
    some layers have no channels_last kernel: they convert back and forth.
Sources
    https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

from diagnose.facts.device.layout import LayoutConversions
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in conversions (our choice)


@rule("AT04")
def layout_conversions(layout_conversions: tuple[LayoutConversions, ...], steps: Steps) -> Verdicts:
    taxes = [one for one in layout_conversions if one.convolution]
    total = sum(tax.ns for tax in taxes)
    if total < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"layout conversions for convolutions take {percent(total / steps.mean_ns)} of the step")
    else:
        on_amd, calls = any("miopen" in tax.op for tax in taxes), sum(tax.calls for tax in taxes)
        text = f"{calls} kernels/step convert layouts for convolutions: {ms(total)}."
        yield Finding(
            evidence=(Evidence(text, total, "ns"),),
            edits=tuple(Remove(tax.ids) for tax in taxes),
            fixes=(
                Fix.of(
                    fixes.ChannelsLast(),
                    after="export PYTORCH_MIOPEN_SUGGEST_NHWC=1  # else MIOpen ignores it\n"
                    * on_amd
                    + "model = model.to(memory_format=torch.channels_last)\n"
                    "x = x.to(device, memory_format=torch.channels_last)",
                ),
            ),
            confidence=Confidence(Level.MEDIUM, "MIOpen may lack channels_last kernels here")
            if on_amd
            else Confidence(Level.HIGH, "the conversions are recorded inside the convolutions"),
        )


EXAMPLES = [
    Fires(
        """
        4 steps of 40
        cpu  aten::cudnn_convolution 0-0.5 | sync 1-39.01
        gpu  nchw2nhwc 1-5 @0.05 | bf16_gemm 5-39 @0.2
        """,
        saving_ms=(4, 4),
    ),
    Fires(
        """
        4 steps of 40
        device AMD Instinct MI300X
        cpu  aten::miopen_convolution 0-0.5 | sync 1-39.01
        gpu  batched_transpose_32x32_half 1-5 @0.05 | bf16_gemm 5-39 @0.2
        """,
        saving_ms=(4, 4),
    ),
    Silent("""
        4 steps of 40
        cpu  aten::cudnn_convolution 0-0.5 | sync 1-39.01
        gpu  nchw2nhwc 1-1.3 @0.05 | bf16_gemm 1.3-39 @0.2
    """),
]
