"""Attention is not fused.

The code writes attention out as matmul, softmax and matmul. Each matrix of scores (queries x keys) goes to memory and
back several times, forward and backward.

Why it costs
    The scores grow with the square of the sequence length. Moving them takes longer than computing them.
How to fix
    Call `scaled_dot_product_attention`, which runs a fused kernel that never stores the scores.
Ignore when
    the attention weights themselves are needed, or sequences are short.
Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    https://arxiv.org/abs/2205.14135
"""

from diagnose.facts.device.fusion import AttentionChain
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such attention (our choice)
SDPA = "aten::scaled_dot_product_attention"
LONG = 256  # keys: the scores of shorter sequences stay in the caches (our choice)


@rule("AT01")
def unfused_attention(attention_chains: tuple[AttentionChain, ...], steps: Steps) -> Verdicts:
    # Of what scaled_dot_product_attention asks for, slow_attention_backend speaks.
    long = [chain for chain in attention_chains if chain.keys >= LONG and chain.asked_by != SDPA]
    total = sum(chain.forward_ns + (chain.backward_ns or 0) for chain in long)
    if not attention_chains:
        yield NotApplicable("no attention is written out as matmul, softmax and matmul")
    elif total < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"unfused attention takes {percent(total / steps.mean_ns)} of the step")
    else:
        first, calls = long[0], sum(chain.calls for chain in long)
        runs = f"Matmul, softmax, matmul on {first.queries:,} x {first.keys:,} scores, {calls} times per step"
        yield Finding(
            evidence=(Evidence(f"{runs}: {ms(total)}.", total, "ns"),),
            edits=tuple(attended(chain) for chain in long),
            fixes=(Fix.of(fixes.Attention()),),
            confidence=Confidence(Level.HIGH, "shapes and order of the three ops are recorded"),
            site=first.site,
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires("""
        4 steps of 40
        cpu  aten::bmm 0-0.1 shapes=[[96,1024,64],[96,64,1024]] types=["c10::BFloat16","c10::BFloat16"]
        cpu  aten::_softmax 0.2-0.3 shapes=[[96,1024,1024],[],[]] types=["c10::BFloat16","Scalar","Scalar"]
        cpu  aten::bmm 0.4-0.5 shapes=[[96,1024,1024],[96,1024,64]] types=["c10::BFloat16","c10::BFloat16"]
        cpu  sync 1-39.01
        gpu  bf16_gemm 1-5 @0.05 | softmax 5.1-15 @0.25 | bf16_gemm 15.1-19 @0.45 | bf16_gemm 19.1-39 @0.6
    """),
    # fused already
    Silent("4 steps of 40\ncpu  aten::_scaled_dot_product_flash_attention 0-0.1 | sync 1-39.01\ngpu  flash 1-39 @0.05"),
    CannotTell(  # without shapes, a softmax between two batched products may be something else
        """
        4 steps of 40
        cpu  aten::bmm 0-0.1 | aten::_softmax 0.2-0.3 | aten::bmm 0.4-0.5
        gpu  bf16_gemm 1-5 @0.05 | softmax 5.1-15 @0.25 | bf16_gemm 15.1-19 @0.45
        """,
        because="shapes",
    ),
]
