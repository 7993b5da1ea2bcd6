"""Ops whose inputs have another shape in each step."""

import pytest

from diagnose.synthetic.reading import facts_of
from diagnose.trace.varying import varying_shapes


@pytest.mark.parametrize(
    ("drawing", "shapes"),
    [
        ("cpu  aten::mm 0-1 shapes=[[8,4],[4,4]]", ()),  # No steps are marked.
        ("2 steps of 10\ncpu  aten::mm 0-1 shapes=[[8,4],[4,4]]", ()),
        (
            "2 steps of 10\ncpu  aten::mm 0-1 shapes=[[8,4],[4,4]] in 0 | aten::mm 0-1 shapes=[[9,4],[4,4]] in 1",
            (("[[8, 4], [4, 4]]", "[[9, 4], [4, 4]]"),),
        ),
    ],
)
def test_what_differs_in_each_step(drawing: str, shapes: tuple[tuple[str, ...], ...]) -> None:
    rank = facts_of(drawing).rank
    found = varying_shapes(rank.spans, rank.ops, tuple(step.number for step in rank.steps))
    assert tuple(tuple(text.replace(" ", "") for text in row) for row in found.shapes) == tuple(
        tuple(text.replace(" ", "") for text in row) for row in shapes
    )
    assert len(found.ids) == len(found.which) == 2 * len(shapes)
