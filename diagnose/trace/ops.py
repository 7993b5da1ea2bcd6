"""Torch's ops by what they compute, by names without `aten::`, and the shapes of what they make."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Shape = tuple[int, ...]

# Not fills: what is filled is mostly written to at places next, and no code fuses that. Not random numbers:
# an encoder with dropout, compiled, took 1.4 to 1.9 times as long (without dropout 1.2 times; torch 2.13).
FUSIBLE = (
    *("add", "sub", "rsub", "mul", "div", "neg", "abs", "sign", "pow", "square", "sqrt", "rsqrt", "reciprocal"),
    *("exp", "expm1", "log", "log1p", "log2", "sin", "cos", "tanh", "sigmoid", "erf", "lerp", "addcmul", "addcdiv"),
    *("relu", "gelu", "silu", "elu", "leaky_relu", "hardtanh", "hardswish", "softplus", "log_sigmoid_forward"),
    *("clamp", "clamp_min", "clamp_max", "maximum", "minimum", "where", "masked_fill", "copy_"),
    *("eq", "ne", "lt", "le", "gt", "ge", "bitwise_not", "bitwise_and", "logical_not", "logical_and"),
    *("tanh_backward", "sigmoid_backward", "gelu_backward", "silu_backward", "elu_backward", "threshold_backward"),
    *("hardtanh_backward", "leaky_relu_backward", "hardswish_backward", "softplus_backward", "native_dropout_backward"),
    *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
)
"""Ops on elements, and softmax, that a compiler joins in one kernel."""

POINTWISE = (
    *(name for name in FUSIBLE if "softmax" not in name),
    *("acos", "asin", "atan", "atan2", "tan", "floor", "round"),
)
"""Ops that compute each element by itself."""

PRODUCTS = ("matmul", "mm", "bmm", "addmm", "baddbmm")
"""Products of matrices."""

_BROADCAST = frozenset((*POINTWISE, *(f"{name}_" for name in POINTWISE)))


def result_shape(name: str, shapes: Sequence[Shape]) -> Shape | None:
    """The shape of what an op makes of tensors of these shapes; None where its name does not tell."""
    if name in _BROADCAST:
        return _broadcast(shapes)
    if name in PRODUCTS:
        return _product(shapes[-2:])
    if name == "linear" and len(shapes) > 1 and shapes[0] and len(shapes[1]) == 2:
        return (*shapes[0][:-1], shapes[1][0])
    return None


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    try:
        return tuple(map(int, np.broadcast_shapes(*shapes)))
    except ValueError:
        return None


def _product(shapes: Sequence[Shape]) -> Shape | None:
    """Of two matrices, or of as many in pairs."""
    if len(shapes) < 2 or min(map(len, shapes)) < 2 or shapes[0][-1] != shapes[1][-2]:
        return None
    left, right = shapes
    return (*left[:-1], right[-1]) if left[:-2] == right[:-2] else None
