"""Patterns of shapes: what sizes make a pattern a shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.facts.core.op_table import Call, op_table
from diagnose.facts.core.shaped import Shape
from diagnose.rulekit.patterns import Op, Sizes, Takers, is_named, matches, shape_of, unify
from diagnose.synthetic.reading import facts_of
from diagnose.trace.ops import result_shape


@pytest.mark.parametrize(
    ("pattern", "shape", "bound", "sizes"),
    [
        ("n k", (3, 4), {}, {"n": 3, "k": 4}),
        ("n n", (3, 3), {}, {"n": 3}),
        ("n n", (3, 4), {}, None),
        ("n k", (3, 4), {"k": 5}, None),
        ("*b n", (2, 3, 4), {}, {"b": (2, 3), "n": 4}),
        ("*b n", (4,), {}, {"b": (), "n": 4}),
        ("n *b", (2, 3, 4), {}, {"n": 2, "b": (3, 4)}),
        ("*b n", (), {}, None),
        ("*b n", (2, 4), {"b": (3,)}, None),
        ("_ 1", (7, 1), {}, {}),
        ("_ 1", (7, 2), {}, None),
    ],
)
def test_sizes(pattern: str, shape: Shape, bound: Sizes, sizes: Sizes | None) -> None:
    assert unify(pattern, shape, bound) == sizes


SHAPES = st.lists(st.integers(0, 9), max_size=5).map(tuple)


@given(SHAPES)
def test_a_pattern_of_names_binds_the_shape_itself(shape: Shape) -> None:
    names = [f"a{at}" for at in range(len(shape))]
    assert unify(" ".join(names), shape, {}) == dict(zip(names, shape, strict=True))
    assert unify("*whole", shape, {}) == {"whole": shape}


@given(SHAPES, st.integers(0, 5))
def test_a_star_takes_what_others_leave(shape: Shape, after: int) -> None:
    pattern = " ".join(["*most", *(f"a{at}" for at in range(after))])
    found = unify(pattern, shape, {})
    assert (found is None) == (after > len(shape))
    if found is not None:
        assert (*found["most"], *(found[f"a{at}"] for at in range(after))) == shape  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "wanted", "fits"),
    [
        ("add_", "add", True),
        ("add_", "add_", True),
        ("add", "add_", False),
        ("addmm", "add", False),
        ("addmm", "add*", True),
        ("mm", "bmm|mm", True),
        ("mm", "*", True),
    ],
)
def test_names(name: str, wanted: str, fits: bool) -> None:
    assert is_named(Call(name, (), None), wanted) is fits


@pytest.mark.parametrize(
    ("name", "shapes", "made"),
    [
        ("mul", [(3, 1), (4,)], (3, 4)),
        ("add_", [(3, 4), (4,)], (3, 4)),
        ("mul", [(3, 2), (4,)], None),
        ("mm", [(3, 4), (4, 5)], (3, 5)),
        ("mm", [(3, 4), (5, 4)], None),
        ("addmm", [(5,), (3, 4), (4, 5)], (3, 5)),
        ("bmm", [(2, 3, 4), (2, 4, 5)], (2, 3, 5)),
        ("matmul", [(2, 3, 4), (4, 5)], None),  # of others for each: not told
        ("linear", [(2, 3, 4), (5, 4), (5,)], (2, 3, 5)),
        ("sum", [(2, 3)], None),
        ("mm", [(3, 4)], None),
    ],
)
def test_what_ops_make(name: str, shapes: list[Shape], made: Shape | None) -> None:
    assert result_shape(name, shapes) == made


def test_ops_are_matched_in_their_step_and_once() -> None:
    """Three products a step: the first two are a pair, the third has no partner in its step."""
    facts = facts_of(
        "2 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-1 x3 every 2 shapes=[[4,4],[4,4]] | aten::relu 50-51"
    )
    pair = (Op("mm", ("n n", "n n")), Op("mm", ("n n", "n n")))
    found = list(matches(facts, op_table(facts), pair, lambda one: one.n == 4))
    assert [one.positions for one in found] == [[0, 1], [4, 5]]


def test_takers_end_where_something_else_takes_such_a_tensor() -> None:
    """A sum of the table is in the way of the last product."""
    synthetic = "1 steps of 100\n2 threads, 4 cores\ncpu  aten::relu 0-1 shapes=[[4,4]]"
    made = [f"aten::{name} {at}-{at + 1} shapes=[[4,4]]" for at, name in enumerate(("mul", "mul_", "sum", "mul"), 1)]
    facts = facts_of(" | ".join([synthetic, "aten::abs 0-0.5 shapes=[[9]]", *made]))
    (one,) = matches(facts, op_table(facts), (Op("relu", ("*x",)), Takers("*x", names="mul")), lambda one: True)
    names = [one.table.call(at).name for at in one.positions]
    assert names == ["relu", "mul", "mul_"]


def test_the_shape_that_a_pattern_is() -> None:
    assert shape_of("*whole 2 n", {"whole": (3, 4), "n": 8}) == (3, 4, 2, 8)
