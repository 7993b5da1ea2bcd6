"""What autocast leaves in fp32, and what it casts.

Source: https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32, and ATen's
autocast_mode.h. Other ops take the widest type of what they are given.
"""

from __future__ import annotations

_ONCE = """
binary_cross_entropy_with_logits cdist cosine_embedding_loss cosine_similarity cumprod cumsum dist hinge_embedding_loss
huber_loss kl_div kl_div_forward kl_div_backward l1_loss _log_softmax margin_ranking_loss mse_loss nll_loss_forward
nll_loss2d_forward native_layer_norm native_group_norm linalg_vector_norm norm prod renorm smooth_l1_loss
soft_margin_loss sum triplet_margin_loss
"""
_NO_CASTS = "acos asin cosh erfinv exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh softplus softmin tan"

CASTS: dict[str, int] = {**dict.fromkeys(_ONCE.split(), 1), **dict.fromkeys(_NO_CASTS.split(), 0), "_softmax": 2}
"""Ops that stay in fp32, and how often what they work on is cast for them: on one side, or, as softmax lies between
products, on both. What is written out of several of them is cast around the whole, which is not known: 0."""


def casts(op: str) -> int | None:
    """How often autocast casts what an op, or its backward, works on; None if it does not stay in fp32."""
    name = op.removeprefix("aten::").rstrip("_")
    for end in ("_backward_data", "_backward"):
        name = name.removesuffix(end)
    return CASTS.get(name)
