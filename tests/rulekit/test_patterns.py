"""Patterns of shapes: what sizes make a pattern a shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.facts.core.op_table import Call, op_table
from diagnose.facts.core.shaped import Shape
from diagnose.rulekit.patterns import Op, Sizes, Takers, is_named, matches, shapes_of, unify
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
        ("*_ n//2+1", (9, 5), {"n": 8}, {"n": 8}),
        ("*_ n//2+1", (9, 5), {"n": 9}, {"n": 9}),
        ("*_ n//2+1", (9, 5), {"n": 10}, None),
        ("*_ n//2+1", (9, 5), {}, None),
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
        ("max", [(3, 1), (4,)], (3, 4)),
        ("max", [(3, 4)], None),  # the largest of all
        ("mm", [(3, 4), (4, 5)], (3, 5)),
        ("mm", [(3, 4), (5, 4)], None),
        ("addmm", [(5,), (3, 4), (4, 5)], (3, 5)),
        ("bmm", [(2, 3, 4), (2, 4, 5)], (2, 3, 5)),
        ("matmul", [(2, 3, 4), (4, 5)], None),  # of others for each: not told
        ("linear", [(2, 3, 4), (5, 4), (5,)], (2, 3, 5)),
        ("cdist", [(3, 2), (4, 2)], (3, 4)),
        ("diag_embed", [(2, 3)], (2, 3, 3)),
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


def test_of_a_whole_step_the_first_is_looked_at() -> None:
    """What else takes a table of that size is in the way."""
    made, taken = "aten::diag_embed 0-1 x2 every 2 shapes=[[4]]", "aten::{} 9-10 shapes=[[4,4]]"
    drawn = f"1 steps of 100\n2 threads, 4 cores\ncpu  {made} | {taken}"
    pattern = (Op("diag_embed", ("n",)), Takers("n n", names="diag_embed|mul"))
    for last, found in (("mul", [[0, 1, 2]]), ("sum", [])):
        facts = facts_of(drawn.format(last))
        assert [one.positions for one in matches(facts, op_table(facts), pattern, lambda one: True)] == found


@pytest.mark.parametrize(
    ("pattern", "shapes"),
    [
        ("*whole", {(3, 4)}),
        ("*whole n", {(3, 4, 8)}),
        ("2 n//2+1", {(2, 5)}),
        ("n *_", {(8,), (8, 1)}),
        ("_ n", {(4, 8), (7, 8)}),
    ],
)
def test_shapes_that_a_pattern_is(pattern: str, shapes: set[tuple[int, ...]]) -> None:
    """Where all sizes are known it is one shape, also if no tensor has it; else those of tensors."""
    facts = facts_of("1 steps of 100\n2 threads, 4 cores\ncpu  aten::a 0-1 shapes=[[8],[8,1],[4,8],[7,8],[9]]")
    assert shapes_of(pattern, {"whole": (3, 4), "n": 8}, op_table(facts)) == shapes
