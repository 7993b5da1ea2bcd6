"""Pieces of one tensor, each of which fills a gradient of the whole."""

from __future__ import annotations

import pytest

from diagnose.facts.autograd.slices import SlicedTensor, sliced_tensors
from diagnose.facts.core.base import Missing
from diagnose.synthetic.reading import facts_of

NODE = '"autograd::engine::evaluate_function: SelectBackward0"'
WHOLE = "shapes=[[32,10,64],[],[]]"


def of(*items: str) -> tuple[SlicedTensor, ...]:
    """One step of 100 ms."""
    return sliced_tensors(facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join(items)}"))


def cuts(count: int, begin: int = 1, number: int = 1, shapes: str = WHOLE) -> str:
    return f"aten::select {begin}-{begin}.5 x{count} every 1 {shapes} sequence={number}"


def backward_ops(count: int, begin: int = 50, number: int = 1, node: str = NODE) -> str:
    """Nodes of 2 ms."""
    return f'{node} {begin}-{begin + 2} x{count} every 3 sequence={number} "Fwd thread id"=1'


def test_pieces_in_a_row_with_their_backward() -> None:
    (found,) = of(cuts(8), backward_ops(8))
    assert (found.shape, found.pieces, found.fills, found.work.host_ns) == ((32, 10, 64), 8, 8, 16_000_000)


def test_what_works_on_pieces_comes_in_between() -> None:
    (found,) = of(cuts(8), "aten::linear 1.6-1.9 x8 every 1 shapes=[[32,64],[64,64]]", backward_ops(8))
    assert found.pieces == 8


def test_an_op_on_the_whole_ends_a_row() -> None:
    """Four pieces before it and four after it: of two tensors."""
    between = "aten::add 5-5.5 shapes=[[32,10,64],[32,10,64]]"
    assert of(cuts(4), between, cuts(4, 6, 2), backward_ops(8)) == ()


@pytest.mark.parametrize(
    "items",
    [
        (cuts(7), backward_ops(7)),  # few
        (cuts(8), backward_ops(8, node='"autograd::engine::evaluate_function: MulBackward0"')),  # not of the pieces
        (cuts(8).replace("sequence=1", ""), backward_ops(8)),  # no gradient goes to what is cut
    ],
)
def test_what_is_none(items: tuple[str, ...]) -> None:
    assert of(*items) == ()


def test_rows_end_with_the_step() -> None:
    drawn = f"2 steps of 100\n2 threads, 4 cores\ncpu  {cuts(4)} | {backward_ops(4)}"
    assert sliced_tensors(facts_of(drawn)) == ()


def test_shapes_are_needed() -> None:
    with pytest.raises(Missing, match="shapes"):
        of(cuts(8, shapes=""), backward_ops(8))
