"""What ops multiply and move: figures by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.trace.costs import DTYPE_BYTES, DTYPES, Cost, convolved, cost, has_cost

FLOAT, BF16, FP8 = "float", "c10::BFloat16", "c10::Float8_e4m3fn"


def told(name: str, *sizes: list[int], dtype: str = FLOAT, **more: dict[object, object]) -> Cost | None:
    return cost(name, json.dumps(sizes), json.dumps([dtype] * len(sizes)), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "sizes", "flops", "elements", "dims"),
    [
        # 2 * 3 * 4 * 5 operations; 15 + 20 + 12 elements
        ("aten::mm", ([3, 5], [5, 4]), 120, 47, (3, 4, 5)),
        ("aten::mm", ([3, 5], [5, 4], [3, 4]), 120, 47, (3, 4, 5)),  # out=, as compiled code calls it
        ("aten::addmm", ([4], [3, 5], [5, 4], [], []), 120, 51, (3, 4, 5)),
        ("aten::bmm", ([7, 3, 5], [7, 5, 4]), 840, 329, (3, 4, 5)),
        ("aten::baddbmm", ([7, 3, 4], [7, 3, 5], [7, 5, 4], [], []), 840, 413, (3, 4, 5)),
        ("aten::linear", ([2, 3, 5], [4, 5], [4]), 240, 78, (6, 4, 5)),
        ("aten::linear", ([2, 3, 5], [4, 5], []), 240, 74, (6, 4, 5)),
        ("aten::matmul", ([2, 3, 5], [5, 4]), 240, 74, (6, 4, 5)),
        # 14 products, of 2 left and 7 right sides
        ("aten::matmul", ([2, 1, 3, 5], [7, 5, 4]), 1680, 338, (3, 4, 5)),
        ("aten::matmul", ([5], [5, 4]), 40, 29, (1, 4, 5)),
        ("aten::mv", ([3, 5], [5]), 30, 23, (3, 1, 5)),
        ("aten::mm", ([0, 5], [5, 4]), 0, 20, (0, 4, 5)),
    ],
)
def test_products(
    name: str, sizes: tuple[list[int], ...], flops: int, elements: int, dims: tuple[int, int, int]
) -> None:
    assert told(name, *sizes) == Cost(flops, 4 * elements, "fp32", dims, exact=True)


def test_groups_may_be_padded() -> None:
    # Tokens to 3 experts; the gradient of their weights, one [5, 4] for each.
    assert told("aten::_grouped_mm", [10, 5], [3, 5, 4], [3], dtype=BF16) == Cost(400, 300, "bf16", (10, 4, 5), False)
    assert told("aten::_grouped_mm", [5, 10], [10, 4], [3], dtype=BF16) == Cost(400, 300, "bf16", (5, 4, 10), False)
    assert told("aten::_grouped_mm", [3, 2, 5], [3, 5, 4], dtype=BF16) == Cost(240, 228, "bf16", (2, 4, 5), True)


@pytest.mark.parametrize(
    ("image", "weight", "out", "flops", "dims"),
    [
        # 2 * 36 pixels * 216 weights
        ([1, 3, 8, 8], [8, 3, 3, 3], [1, 8, 6, 6], 15552, (36, 8, 3)),
        ([1, 4, 8, 8], [8, 2, 3, 3], [1, 8, 6, 6], 10368, (36, 4, 2)),  # two groups
        ([2, 6, 10], [6, 1, 4], [2, 6, 7], 672, (14, 1, 1)),  # depthwise, of one dimension
        ([1, 6, 4, 4], [6, 5, 2, 2], [1, 5, 8, 8], 3840, (16, 5, 6)),  # transposed, stride 2
        ([1, 6, 4, 4], [6, 5, 2, 2], [1, 10, 8, 8], 3840, (16, 5, 3)),  # the same in two groups
        # As many channels out as in: a stride halves the output of a convolution, and doubles that of a transposed one.
        ([1, 4, 8, 8], [4, 4, 3, 3], [1, 4, 4, 4], 4608, (16, 4, 4)),
        ([1, 4, 4, 4], [4, 4, 2, 2], [1, 4, 8, 8], 2048, (16, 4, 4)),
    ],
)
def test_convolutions(
    image: list[int], weight: list[int], out: list[int], flops: int, dims: tuple[int, int, int]
) -> None:
    outputs = {(tuple(image), tuple(weight)): tuple(out)}
    forward = cost("aten::convolution", json.dumps([image, weight, []]), "[]", outputs)
    assert forward == Cost(flops, None, None, dims, exact=True)
    backward = told("aten::convolution_backward", out, image, weight, [0])
    assert (backward.flops, backward.dims, backward.exact) == (2 * flops, dims, False)
    assert told("aten::cudnn_convolution_backward", image, out, weight) == backward


def test_bytes_of_convolutions() -> None:
    # 192 pixels in, 216 weights, 288 pixels out; backward moves each twice.
    image, weight, out = [1, 3, 8, 8], [8, 3, 3, 3], [1, 8, 6, 6]
    forward = told("aten::cudnn_convolution", image, weight, outputs={(tuple(image), tuple(weight)): tuple(out)})
    backward = told("aten::convolution_backward", out, image, weight)
    assert (forward.bytes, backward.bytes) == (4 * 696, 4 * 1392)
    # Every other pixel is not read, but its gradient is written: 32 of 128 in, 6, 48.
    strided = told("aten::convolution_backward", [1, 3, 4, 4], [1, 2, 8, 8], [3, 2, 1, 1])
    assert strided.bytes == 4 * (32 + 6 + 48 + 128 + 6 + 48)


def test_what_a_backward_tells_of_the_forward() -> None:
    image, weight, out = (1, 3, 8, 8), (8, 3, 3, 3), (1, 8, 6, 6)
    told_backward = convolved("aten::convolution_backward", json.dumps([out, image, weight, []]))
    assert told_backward == ((image, weight), out)
    assert convolved("aten::miopen_convolution_backward", json.dumps([image, out, weight])) == told_backward
    assert convolved("aten::convolution", json.dumps([image, weight, out])) is None
    assert convolved("aten::convolution_backward", "[[1]]") is None
    assert told("aten::convolution", list(image), list(weight)) is None


# 2 sequences, 4 heads that share 2 heads of keys and values; 5 queries, 7 keys, heads of 8 and values of 6:
# 280 pairs. Elements: queries 320, keys 224, values 168, output 240; the softmax' logarithm 40 of 4 bytes.
Q, K, V, OUT = [2, 4, 5, 8], [2, 2, 7, 8], [2, 2, 7, 6], [2, 4, 5, 6]
Q_, K_, V_, OUT_ = [2, 5, 4, 8], [2, 7, 2, 8], [2, 7, 2, 6], [2, 5, 4, 6]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("aten::scaled_dot_product_attention", (Q, K, V, [], [], [])),
        ("aten::_scaled_dot_product_flash_attention", (Q, K, V, [], [])),
        ("aten::_scaled_dot_product_efficient_attention", (Q, K, V, [2, 4, 5, 7], [])),
        ("aten::_scaled_dot_product_cudnn_attention", (Q, K, V, [], [])),
        ("aten::_flash_attention_forward", (Q_, K_, V_, [], [], [])),
        ("aten::_efficient_attention_forward", (Q_, K_, V_, [2, 4, 5, 7], [], [])),
        ("flash_attn::_flash_attn_forward", (Q_, K_, V_, [], [])),
    ],
)
def test_attention(name: str, sizes: tuple[list[int], ...]) -> None:
    assert told(name, *sizes, dtype=BF16) == Cost(2 * 280 * 14, 2 * 952 + 160, "bf16", (5, 7, 8), exact=False)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("aten::_scaled_dot_product_flash_attention_backward", (OUT, Q, K, V, OUT, [2, 4, 5])),
        ("aten::_scaled_dot_product_efficient_attention_backward", (OUT, Q, K, V, [], OUT, [2, 4, 5])),
        ("aten::_scaled_dot_product_cudnn_attention_backward", (OUT, Q, K, V, OUT, [2, 4, 5])),
        ("aten::_flash_attention_backward", (OUT_, Q_, K_, V_, OUT_, [2, 4, 5], [], [])),
        ("aten::_efficient_attention_backward", (OUT_, Q_, K_, V_, [], OUT_, [], [])),
        ("flash_attn::_flash_attn_backward", (OUT_, Q_, K_, V_, OUT_, [2, 4, 5])),
    ],
)
def test_attention_backward_has_five_products_for_two(name: str, sizes: tuple[list[int], ...]) -> None:
    # Queries by keys again, and the gradients: three products over 8, two over 6.
    expected = Cost(2 * 280 * (3 * 8 + 2 * 6), 2 * 2 * 952 + 160, "bf16", (5, 7, 8), exact=False)
    assert told(name, *sizes, dtype=BF16) == expected


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("aten::_flash_attention_forward", ([10, 4, 8], [14, 2, 8], [14, 2, 6], [3], [3])),  # packed
        ("aten::_efficient_attention_forward", ([1, 10, 4, 8], [1, 14, 4, 8], [1, 14, 4, 6], [], [3], [3])),
        ("aten::scaled_dot_product_attention", ([5, 8], [7, 8], [7, 6])),
        ("aten::scaled_dot_product_attention", (Q, [2, 3, 7, 8], [2, 3, 7, 6])),  # 4 heads share 3
        ("aten::scaled_dot_product_attention", (Q, K, [2, 2, 9, 6])),
        ("aten::scaled_dot_product_attention", (Q, [2, 0, 7, 8], [2, 0, 7, 6])),
    ],
)
def test_attention_whose_lengths_are_not_told(name: str, sizes: tuple[list[int], ...]) -> None:
    assert told(name, *sizes) is None


def test_types() -> None:
    def typed(*types: str) -> tuple[str | None, int | None] | None:
        found = cost("aten::addmm", "[[4],[3,5],[5,4],[],[]]", json.dumps(types))
        return None if found is None else (found.dtype, found.bytes)

    assert typed("double", "double", "double") == ("fp64", 408)
    assert typed("float", "c10::Half", "c10::Half") == ("fp16", 102)  # of the factors, not of the bias
    assert typed("c10::BFloat16", FP8, "c10::Float8_e5m2") == ("fp8", 51)
    assert typed("int", "signed char", "signed char") == ("int8", 51)
    assert typed() == (None, None)
    assert typed("", "", "") == (None, None)
    assert typed("float", "c10::complex<float>", "c10::complex<float>") is None
    assert typed("float", "c10::Float4_e2m1fn_x2", "c10::Float4_e2m1fn_x2") is None
    assert set(DTYPE_BYTES) == set(DTYPES)


def test_indented_text_as_the_reader_keeps_it() -> None:
    indented = r"[\n  [\n    3,\n    5\n  ],\n  [\n    5,\n    4\n  ]\n]"
    assert cost("aten::mm", indented, r'[\n  "float",\n  "float"\n]') == told("aten::mm", [3, 5], [5, 4])


NO_SIZES = (
    *("", "[]", "[[3,5]]", "[[3,5],[6,4]]", "[[],[5,4]]", "[[3,-5],[-5,4]]", "[[3,true],[true,4]]", '{"a": 1}'),
    *("[[3,5.0],[5.0,4]]", '[["3","5"],["5","4"]]', "[[[3,5]],[[5,4]]]", f"[[3,{1 << 62}],[{1 << 62},4]]"),
    f"[[{1 << 21},{1 << 20}],[{1 << 20},{1 << 21}]]",  # 2^63 operations
    *("[[3,5],[5,NaN]]", f"[[3,5],[5,{'9' * 60_000}]]", "[[3,5],[5,4]", "[" * 60_000),
    *(f"[[3,5],[5,4]{' ' * 70_000}]", f"[[3,5],[5,4]{',[]' * 70}]"),
)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        *(("aten::mm", shapes) for shapes in NO_SIZES),
        *(("aten::relu", "[[3,5],[5,4]]"), ("aten::bmm", "[[7,3,5],[6,5,4]]"), ("aten::linear", "[[3,5],[5]]")),
        ("aten::convolution_backward", "[[1,8,6,6],[1,3,8,8]]"),
        ("aten::convolution_backward", "[[1,8,6,6],[1,3,8,8],[8,0,3,3]]"),
        ("aten::convolution_backward", "[[1,8,6,6],[1,3,8,8],[9,3,3,3]]"),
        ("aten::convolution_backward", "[[2,8,6,6],[1,3,8,8],[8,3,3,3]]"),
    ],
)
def test_what_does_not_tell_its_cost(name: str, shapes: str) -> None:
    assert cost(name, shapes, '["float","float","float"]') is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=30,
)
NAMES = st.sampled_from(
    (
        *("aten::mm", "aten::matmul", "aten::addmm", "aten::linear", "aten::_grouped_mm", "aten::convolution"),
        *("aten::convolution_backward", "aten::_flash_attention_backward", "aten::scaled_dot_product_attention"),
    )
)


@given(NAMES, JSON | st.lists(st.lists(st.integers(0, 4), max_size=5), max_size=8), JSON | st.lists(st.just("float")))
def test_any_inputs_cost_something_in_range_or_nothing(name: str, sizes: object, types: object) -> None:
    assert has_cost(name)
    found = cost(name, json.dumps(sizes), json.dumps(types))
    if found is not None:
        assert 0 <= found.flops < 2**62
        assert found.bytes is None or 0 <= found.bytes < 2**62
        assert all(0 <= size < 2**62 for size in found.dims)
