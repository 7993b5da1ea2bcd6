"""Attention runs on a slower backend than the GPU has.

`scaled_dot_product_attention` picks a backend by its inputs and by what is installed. Its math backend stores the
scores. Memory-efficient attention is made for any GPU. FlashAttention 2 lacks what Hopper and Blackwell added.

Why it costs
    On an A100, memory-efficient attention takes up to 2.6 times as long as FlashAttention 2. On an H100, FlashAttention
    2 takes 1.5 to 2 times as long as FlashAttention 3 or cuDNN. The math backend moves all scores through memory.
How to fix
    Pass `is_causal=True` instead of a causal mask. Use 16 bits, and head sizes that are multiples of 8. On Hopper and
    Blackwell, allow cuDNN's backend, or install FlashAttention 3 or 4.
Ignore when
    the mask is neither causal nor padding, or results must be bit-identical from run to run.
Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html
    https://arxiv.org/abs/2407.08608
"""

from diagnose.facts.device.fusion import AttentionChain, Backend, SlowAttention
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such attention (our choice)
SDPA = "aten::scaled_dot_product_attention"
LONG = 256  # keys: the scores of shorter sequences stay in the caches (our choice)
LINK = "https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html"
CUDNN = Fix(
    "Prefer cuDNN's attention, or install FlashAttention 3 or 4.",
    after="from torch.nn.attention import SDPBackend, sdpa_kernel\n"
    "with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):\n"
    "    loss = criterion(model(x), y)",
    safety=Safety.ROUNDING,
    link=LINK,
)
FLASH = Fix(
    "Allow only FlashAttention: PyTorch then warns why it cannot run.",
    after="from torch.nn.attention import SDPBackend, sdpa_kernel\n"
    "with sdpa_kernel(SDPBackend.FLASH_ATTENTION):\n    loss = criterion(model(x), y)",
    safety=Safety.ROUNDING,
    link=LINK,
)
NO_MASK = Fix(
    "Replace a causal mask by is_causal=True, a padding mask by packed sequences.",
    before="F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
    after="F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    safety=Safety.ROUNDING,
    effort=2,
    link=LINK,
)


@rule("AT02")
def slow_attention_backend(
    slow_attention: tuple[SlowAttention, ...], attention_chains: tuple[AttentionChain, ...], steps: Steps
) -> Verdicts:
    math = [
        attention_chain
        for attention_chain in attention_chains
        if attention_chain.asked_by == SDPA and attention_chain.keys >= LONG
    ]
    math_ns = sum(one.forward_ns + (one.backward_ns or 0) for one in math)
    least = WORTH_SHARE * steps.mean_ns
    slow = [one for one in slow_attention if one.ns >= least]
    if not slow and math_ns < least:
        ns = math_ns + sum(one.ns for one in slow_attention)
        yield Clean(f"attention on a slower backend takes {percent(ns / steps.mean_ns)} of the step")
    if math_ns >= least:
        yield Finding(
            title="scaled_dot_product_attention uses its math backend",
            evidence=(
                Evidence(
                    f"Matmul, softmax, matmul on {math[0].queries:,} x {math[0].keys:,} scores,"
                    f" {sum(one.calls for one in math)} times per step: {ms(math_ns)}.",
                    math_ns,
                    "ns",
                ),
            ),
            edits=tuple(attended(one) for one in math),
            fixes=(FLASH, NO_MASK),
            confidence=Confidence(Level.MEDIUM, "the reason for the math backend is not recorded"),
            basis=Basis.RULE_OF_THUMB,
        )
    for one in slow:
        newer = one.backend is Backend.FLASH_2
        with_mask = ", with a mask" if one.masked else ""
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.backend.value[0].upper()}{one.backend.value[1:]}{with_mask}: {ms(one.ns)}/step in"
                    f" {one.calls:,} calls, the longest on {one.queries:,} x {one.keys:,} scores.",
                    one.ns,
                    "ns",
                ),
                Evidence(
                    "FlashAttention 3 and cuDNN use new features of this GPU."
                    if newer
                    else f"FlashAttention supports 16 bits and heads of {one.head_dim}, but only causal masks."
                ),
            ),
            edits=(Shorten(one.ids, Between(*one.left)) if one.left else Recost(one.ids, WellChosen(not one.masked)),),
            fixes=(CUDNN,) if newer else (NO_MASK,) if one.masked else (FLASH,),
            confidence=Confidence(Level.LOW, "the mask may be needed")
            if one.masked
            else Confidence(Level.MEDIUM, "the work that a causal mask saves is not recorded"),
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires(  # 6.9e10 operations need 0.4 ms, not 10 ms: then what comes next waits for its launch
        """
        4 steps of 20
        device A100
        cpu  aten::_efficient_attention_forward 0-1 types=["c10::Half"] shapes=[[4,8192,8,8],[4,8192,8,8],[4,8192,8,8]]
        cpu  sync 2-19.81
        gpu  fmha_cutlassF_f16_aligned_64x64_rf_sm80 0.06-10.06 @0.05 | pointwise 10.06-19.8 @1.2
        """,
        saving_ms=(8.85, 8.85),
    ),
    Fires(  # FlashAttention 2 on an H100: a tenth to twice as fast
        """
        4 steps of 20
        cpu  aten::_flash_attention_forward 0-1 types=["c10::Half"] shapes=[[4,8192,8,64],[4,8192,8,64],[4,8192,8,64]]
        cpu  sync 2-19.81
        gpu  flash 0.06-10.06 @0.05 | pointwise 10.06-19.8 @1.2
        """,
        saving_ms=(0.91, 5),
    ),
    # FlashAttention 2 is what an A100 has
    Silent("""
        4 steps of 20
        device A100
        cpu  aten::_flash_attention_forward 0-1 types=["c10::Half"] shapes=[[4,8192,8,64],[4,8192,8,64],[4,8192,8,64]]
        cpu  sync 2-19.81
        gpu  flash 0.06-10.06 @0.05 | pointwise 10.06-19.8 @1.2
    """),
    # a V100 has no FlashAttention
    Silent("""
        4 steps of 20
        device V100
        cpu  aten::_efficient_attention_forward 0-1 types=["c10::Half"] shapes=[[4,8192,8,8],[4,8192,8,8],[4,8192,8,8]]
        cpu  sync 2-19.81
        gpu  fmha_cutlassF_f16_aligned_64x64_rf_sm70 0.06-10.06 @0.05 | pointwise 10.06-19.8 @1.2
    """),
    CannotTell(
        """
        4 steps of 20
        cpu  aten::_flash_attention_forward 0-0.1 | sync 2-19.81
        gpu  flash 2-12 @0.05
        """,
        because="shapes",
    ),
]
