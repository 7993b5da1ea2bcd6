"""What ops have to compute and move at least: figures by hand."""

from __future__ import annotations

import pytest

from diagnose.trace.op_costs import cost

BF16 = '["c10::BFloat16","c10::BFloat16"]'


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "flops", "size", "inner"),
    [
        # 2 * 3 * 4 * 5 operations; 15 + 20 + 12 elements of 4 bytes
        ("aten::mm", "[[3,5],[5,4]]", '["float","float"]', 120, 188, (3, 4, 5)),
        ("aten::addmm", "[[4],[3,5],[5,4],[],[]]", BF16, 120, 94, (3, 4, 5)),
        ("aten::bmm", "[[7,3,5],[7,5,4]]", '["c10::Half","c10::Half"]', 840, 658, (3, 4, 5)),
        ("aten::baddbmm", "[[7,3,4],[7,3,5],[7,5,4],[],[]]", '["float"]', 840, 1316, (3, 4, 5)),
        ("aten::linear", "[[2,3,5],[4,5],[4]]", BF16, 240, 148, (6, 4, 5)),
        # forward 2 * (1*8*6*6) * (3*3*3) = 15552; both gradients twice that. 288 + 192 + 216 elements, each twice.
        ("aten::convolution_backward", "[[1,8,6,6],[1,3,8,8],[8,3,3,3],[]]", BF16, 31104, 2784, (8, 3)),
    ],
)
def test_by_hand(name: str, shapes: str, dtypes: str, flops: int, size: int, inner: tuple[int, ...]) -> None:
    found = cost(name, shapes, dtypes)
    assert found is not None
    assert (found.flops, found.bytes, found.inner) == (flops, size, inner)


def test_types() -> None:
    assert [
        getattr(cost("aten::mm", "[[3,5],[5,4]]", dtypes), "dtype", "")
        for dtypes in (BF16, '["c10::Half"]', '["float"]', '["double"]', "[]", "")
    ] == ["bf16", "fp16", "fp32", "fp64", None, None]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("aten::relu", "[[3,5]]"),  # not in the table
        ("aten::cudnn_convolution", "[[1,3,8,8],[8,3,3,3]]"),  # its output needs strides and padding
        ("aten::mm", ""),
        ("aten::mm", "[[3,5]]"),
        ("aten::mm", "[[3,5],[6,4]]"),  # does not fit
        ("aten::mm", "[[3,5],[5]]"),
        ("aten::mm", "[[],[5,4]]"),
        ("aten::mm", "[[3,0],[0,4]]"),
        ("aten::mm", "[[3,-5],[-5,4]]"),
        ("aten::mm", '[["3","5"],["5","4"]]'),
        ("aten::mm", f"[[3,{1 << 62}],[{1 << 62},4]]"),
        ("aten::mm", '{"a": 1}'),
        ("aten::mm", "[[3,5],[5,4]"),
        ("aten::mm", "[" * 30_000),
        ("aten::convolution_backward", "[[1,8,6,6],[1,3,8,8]]"),
    ],
)
def test_what_does_not_say_its_cost(name: str, shapes: str) -> None:
    assert cost(name, shapes, BF16) is None
