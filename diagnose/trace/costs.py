"""What a framework op multiplies and moves, from its name and the recorded shapes of its inputs.

An op whose cost does not follow from what is recorded has none. Shapes and types come as JSON text, as in `schema.OPS`.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import NamedTuple

from msgspec import Struct

Shape = tuple[int, ...]
Convolved = tuple[Shape, Shape]  # Sizes of a convolution's input and weight.

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")  # As `kinds.math_dtype` has them.
DTYPE_BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5, "int8": 1.0}
"""Bytes per element in memory; tf32 is stored as fp32."""

# As torch writes the types of inputs. fp4 is packed, so that its shapes are halved: not counted.
_DTYPES = {"double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16"}
_DTYPES |= {f"c10::Float8_{kind}": "fp8" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")}
_DTYPES |= {"signed char": "int8", "unsigned char": "int8"}

_LONGEST = 1 << 16  # Characters of text looked at, and
_MOST_INPUTS, _MOST_DIMS = 64, 16
_MOST = 1 << 62  # elements, bytes, operations: fit int64.
_ESCAPED = re.compile(r"\\[nrt]")  # White space of indented JSON, as the reader keeps it.


class Cost(Struct, frozen=True):
    """What one call multiplies and moves."""

    flops: int  # Additions and multiplications of products, 2 for each pair; at most so many if not `exact`.
    bytes: int | None  # Traffic if every operand moves once, in the type of the inputs; None if that was not recorded.
    dtype: str | None  # Of the inputs, one of DTYPES; None if not recorded.
    dims: tuple[int, int, int]
    """M, N and K of a product. Of a convolution batch times pixels, and of one group the channels out and in; of
    attention queries, keys and size of a head."""
    exact: bool  # False where arguments that are not recorded can make it less: masks, wanted gradients.


class _Work(NamedTuple):
    flops: int
    elements: int
    dims: tuple[int, int, int]
    exact: bool = True
    other_bytes: int = 0  # Traffic whose element type is not that of the inputs.


def cost(
    name: str, shapes_json: str, dtypes_json: str, outputs: Mapping[Convolved, Shape] | None = None
) -> Cost | None:
    """The cost of the op `name`, or None if its inputs do not tell it, or are damaged.

    `outputs`: sizes that convolutions put out, by `convolved` from the backward calls. The forward call tells nothing
    of its stride and padding, and has a cost only with them.
    """
    form = _FORMS.get(name)
    sizes, types = _shapes(shapes_json), _list(dtypes_json)
    if form is None or sizes is None:
        return None
    first, counted = form
    try:
        work = counted(sizes, outputs or {})
    except (ValueError, IndexError, KeyError, ZeroDivisionError):
        return None
    recorded = types[first] if types and first < len(types) else ""
    if recorded not in (*_DTYPES, ""):
        return None
    dtype = _DTYPES.get(str(recorded))
    size = int(DTYPE_BYTES[dtype] * work.elements) + work.other_bytes if dtype else None
    if max(work.flops, work.elements * 8, size or 0) >= _MOST:
        return None
    return Cost(work.flops, size, dtype, work.dims, work.exact)


def convolved(name: str, shapes_json: str) -> tuple[Convolved, Shape] | None:
    """What a convolution's backward op tells of its forward: sizes of input and weight, and of the output."""
    sizes = _shapes(shapes_json)
    at = _BACKWARDS.get(name)
    if at is None or sizes is None or len(sizes) <= max(at):
        return None
    image, weight, out = (sizes[k] for k in at)
    return (image, weight), out


def has_cost(name: str) -> bool:
    """Whether ops of this name have a cost, given inputs that tell it."""
    return name in _FORMS


def _list(text: str) -> list[object] | None:
    """The list that the JSON text holds; None if there is none or it is too long."""
    if not text or len(text) > _LONGEST:
        return None
    try:
        value = json.loads(_ESCAPED.sub(" ", text))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) and len(value) <= _MOST_INPUTS else None


def _shapes(text: str) -> list[Shape] | None:
    """The size of each input; () for what is no tensor, and for lists of tensors. None if there is no list of sizes."""
    listed = _list(text)
    return None if listed is None else [_shape(one) for one in listed]


def _shape(value: object) -> Shape:
    """The sizes in a JSON list; () for anything else."""
    if not isinstance(value, list) or len(value) > _MOST_DIMS:
        return ()
    shape = tuple(n for n in value if type(n) is int and 0 <= n < _MOST)
    return shape if len(shape) == len(value) else ()


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("sizes that do not fit each other")


def _product(left: Shape, right: Shape, bias: Shape = ()) -> _Work:
    """[..., M, K] times [..., K, N], as torch.matmul broadcasts; of vectors M or N is 1."""
    right = right if len(right) > 1 else (*right, 1)
    *rows, inner = left
    *batch, k, n = right
    _require(inner == k)
    if not batch:
        m, times = prod(rows), 1
    else:
        m, rows = (rows or [1])[-1], rows[:-1]
        times = prod(_broadcast(rows, batch))
    elements = prod(left) + prod(right) + times * m * n + (prod(bias) if bias else 0)
    return _Work(2 * times * m * n * k, elements, (m, n, k))


def _broadcast(a: list[int], b: list[int]) -> list[int]:
    """The shape that both broadcast to. Raises ValueError if they do not."""
    width = max(len(a), len(b))
    pairs = list(zip([1] * (width - len(a)) + a, [1] * (width - len(b)) + b, strict=True))
    _require(all(m == n or 1 in (m, n) for m, n in pairs))
    return [n if m == 1 else m for m, n in pairs]


def _linear(sizes: list[Shape], outputs: object) -> _Work:
    n, k = sizes[1]
    return _product(sizes[0], (k, n), sizes[2] if len(sizes) > 2 else ())


def _grouped(sizes: list[Shape], outputs: object) -> _Work:
    """torch._grouped_mm: groups divide the left rows or the inner size. An upper bound: rows may be padding."""
    left, right, ends = (*sizes, ())[:3]
    if len(left) == len(right) == 3:
        return _product(left, right)
    (m, k), n = left, right[-1]
    _require(right[-2] == k and len(right) in (2, 3))
    written = m * n if len(right) == 3 else ends[0] * m * n
    return _Work(2 * m * n * k, prod(left) + prod(right) + written, (m, n, k), exact=False)


def _convolution(image: Shape, weight: Shape, out: Shape, backward: bool) -> _Work:
    """The work of a convolution, whose weight is [out, in / groups, ...], or [in, out / groups, ...] if transposed.

    Where both are possible, as channels in and out are equal, it is the one that multiplies less: strided convolutions
    put out less than they take in, transposed ones more. Of the input only what a kernel reaches is read. The gradients
    of input and weight are each as much as the forward; which of them are asked for is not recorded.
    """
    _require(3 <= len(image) == len(weight) == len(out) <= 5 and image[0] == out[0])
    narrow, forms = weight[1], list[tuple[int, int]]()
    if weight[0] == out[1] and image[1] % narrow == 0:
        forms.append((prod(out[2:]), image[1] // narrow))
    if weight[0] == image[1] and out[1] % narrow == 0:
        forms.append((prod(image[2:]), out[1] // narrow))
    pixels, groups = min(forms)
    rows = image[0] * pixels
    flops, dims = 2 * rows * prod(weight), (rows, out[1] // groups, image[1] // groups)
    read = min(prod(image), rows * image[1] * prod(weight[2:]))
    moved = read + prod(weight) + prod(out)
    if backward:
        return _Work(2 * flops, moved + prod(image) + prod(weight) + prod(out), dims, exact=False)
    return _Work(flops, moved, dims)


def _forward(sizes: list[Shape], outputs: Mapping[Convolved, Shape]) -> _Work:
    image, weight = sizes[:2]
    return _convolution(image, weight, outputs[image, weight], backward=False)


def _backward(sizes: list[Shape], outputs: object, at: tuple[int, int, int]) -> _Work:
    image, weight, out = (sizes[k] for k in at)
    return _convolution(image, weight, out, backward=True)


def _attention(sizes: list[Shape], outputs: object, at: int, heads: int, dense: int | None, backward: bool) -> _Work:
    """Queries, keys and values from input `at`, heads in dimension `heads`; input `dense` is given for packed lengths.

    Two products forward, five backward. Writes the softmax' logarithm, backward reads it: 4 bytes a query and head.
    """
    _require(dense is None or len(sizes) <= dense or not sizes[dense])
    queries, keys, values = sizes[at : at + 3]
    _require(len(queries) == len(keys) == len(values) == 4 and queries[0] == keys[0] == values[0])
    rows, d, d_out = queries[3 - heads], keys[3], values[3]
    h, h_keys, columns = queries[heads], keys[heads], keys[3 - heads]
    _require(queries[3] == d and keys[1:3] == values[1:3] and h % h_keys == 0)
    pairs = queries[0] * h * rows * columns
    written = queries[0] * h * rows * d_out
    elements = prod(queries) + prod(keys) + prod(values) + written
    flops = 2 * pairs * (3 * d + 2 * d_out if backward else d + d_out)
    softmax = 4 * queries[0] * h * rows
    return _Work(flops, 2 * elements if backward else elements, (rows, columns, d), False, softmax)


_Form = Callable[[list[Shape], Mapping[Convolved, Shape]], _Work]


def _multiplied(at: int, bias: int | None = None) -> tuple[int, _Form]:
    return at, lambda sizes, _: _product(sizes[at], sizes[at + 1], () if bias is None else sizes[bias])


def _attended(at: int, heads: int, dense: int | None = None) -> tuple[int, _Form]:
    return at, partial(_attention, at=at, heads=heads, dense=dense, backward=at > 0)


# Where input, weight and gradient of the output stand (native_functions.yaml; of the library's own ops torch 1.10).
_BACKWARDS = {
    "aten::convolution_backward": (1, 2, 0),
    "aten::cudnn_convolution_backward": (0, 2, 1),
    "aten::miopen_convolution_backward": (0, 2, 1),
}
# An op by the position of the input whose type counts, and its form. In torch attention's heads come before the
# queries, but in the ops of flash and memory-efficient attention behind them, as in the package flash-attn.
_FORMS: dict[str, tuple[int, _Form]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::matmul", "aten::mv"), _multiplied(0)),
    **dict.fromkeys(("aten::_scaled_mm", "aten::_int_mm"), _multiplied(0)),
    **dict.fromkeys(("aten::addmm", "aten::addmm_", "aten::_addmm_activation"), _multiplied(1, bias=0)),
    **dict.fromkeys(("aten::baddbmm", "aten::baddbmm_", "aten::addmv", "aten::addmv_"), _multiplied(1, bias=0)),
    "aten::linear": (0, _linear),
    "aten::_grouped_mm": (0, _grouped),
    **dict.fromkeys(("aten::convolution", "aten::_convolution", "aten::cudnn_convolution"), (0, _forward)),
    **dict.fromkeys(("aten::miopen_convolution", "aten::cudnn_convolution_relu"), (0, _forward)),
    **{name: (0, partial(_backward, at=at)) for name, at in _BACKWARDS.items()},
    "aten::scaled_dot_product_attention": _attended(0, 1),
    "aten::_scaled_dot_product_flash_attention": _attended(0, 1),
    "aten::_scaled_dot_product_efficient_attention": _attended(0, 1),
    "aten::_scaled_dot_product_cudnn_attention": _attended(0, 1),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attended(0, 1),
    "aten::_scaled_dot_product_flash_attention_backward": _attended(1, 1),
    "aten::_scaled_dot_product_efficient_attention_backward": _attended(1, 1),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attended(1, 1),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attended(1, 1),
    "aten::_flash_attention_forward": _attended(0, 2, dense=3),
    "aten::_flash_attention_backward": _attended(1, 2, dense=6),
    "aten::_efficient_attention_forward": _attended(0, 2, dense=4),
    "aten::_efficient_attention_backward": _attended(1, 2, dense=6),
    "flash_attn::_flash_attn_forward": _attended(0, 2),
    "flash_attn::_flash_attn_backward": _attended(1, 2),
}
