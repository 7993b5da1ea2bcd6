"""What a framework op has to compute and move at least, by its name and the shapes of its inputs.

Formulas from torch's flop counter (`torch/utils/flop_counter.py`), gpu-knowledge section 3; every operand moves once.
An op whose cost does not follow from its recorded inputs has none: the output size of a convolution needs its strides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

_LONGEST = 20_000  # characters of recorded shapes that are looked at
_MOST = 1 << 40  # elements; larger sizes are damage
_BYTES = {"double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2}
_WORDS = {"double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16"}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """The least work of one op."""

    flops: int
    bytes: int
    """Read and written once; with 4 bytes an element where the type was not recorded."""
    dtype: str | None
    """Of the inputs, in the words of `kinds.math_dtype`; None if not recorded."""
    inner: tuple[int, ...]
    """The sizes whose alignment matters to matrix units: M, N, K, or a convolution's channels."""


@lru_cache(8192)
def cost(name: str, shapes: str, dtypes: str) -> Cost | None:
    """The cost of an op, from its inputs as JSON text; None if it does not follow from them."""
    form = _FORMS.get(name)
    sizes = _shapes(shapes)
    if form is None or sizes is None:
        return None
    try:
        flops, elements, inner = form(sizes)
    except (IndexError, ValueError):
        return None
    kind = _first_type(dtypes)
    if not 0 < flops < _MOST * 1000 or not 0 < elements < _MOST:
        return None
    return Cost(flops, elements * _BYTES.get(kind, 4), _WORDS.get(kind), inner)


def _shapes(text: str) -> list[Shape] | None:
    """Input sizes; None if the text is not a list of lists of sizes. What is no tensor is an empty size."""
    if not text or len(text) > _LONGEST:
        return None
    try:
        listed: Any = msgspec.json.decode(text.replace("\\n", " "))
    except msgspec.DecodeError:
        return None
    if not isinstance(listed, list):
        return None
    return [
        tuple(one) if isinstance(one, list) and all(isinstance(size, int) and 0 < size < _MOST for size in one) else ()
        for one in listed
    ]


def _first_type(text: str) -> str:
    """The type of the first input that is a floating tensor; "" if none is known."""
    return next((kind for kind in _BYTES if f'"{kind}"' in text[:_LONGEST]), "")


def _matmul(left: Shape, right: Shape) -> tuple[int, int, Shape]:
    """[..., M, K] times [..., K, N]."""
    *batch, m, k = left
    n = right[-1]
    if right[-2] != k or len(left) != len(right):
        raise ValueError(right)
    times = math.prod(batch)
    return 2 * times * m * n * k, times * (m * k + k * n + m * n), (m, n, k)


def _linear(sizes: list[Shape]) -> tuple[int, int, Shape]:
    *lead, k = sizes[0]
    n = sizes[1][0]
    if sizes[1][1] != k:
        raise ValueError(sizes)
    m = math.prod(lead)
    return 2 * m * n * k, m * k + k * n + m * n, (m, n, k)


def _convolution_backward(sizes: list[Shape]) -> tuple[int, int, Shape]:
    """Both gradients: of the input and of the weight, each as much as the forward."""
    out, image, weight = sizes[:3]
    forward = 2 * math.prod(out) * math.prod(weight[1:])
    return 2 * forward, 2 * (math.prod(out) + math.prod(image) + math.prod(weight)), (weight[0], weight[1])


_FORMS: dict[str, Any] = {
    "aten::mm": lambda sizes: _matmul(sizes[0], sizes[1]),
    "aten::addmm": lambda sizes: _matmul(sizes[1], sizes[2]),
    "aten::bmm": lambda sizes: _matmul(sizes[0], sizes[1]),
    "aten::baddbmm": lambda sizes: _matmul(sizes[1], sizes[2]),
    "aten::linear": _linear,
    "aten::convolution_backward": _convolution_backward,
}
