"""Which pieces are of one tensor is told by shapes: the rows of them that `gradients_of_slices` finds."""

from collections.abc import Sequence

import pytest

from diagnose import pipeline
from diagnose.contracts.finding import RankedFinding
from diagnose.synthetic.reading import facts_of
from tests.rules import built_in

STEPS = "{} steps of 100\n2 threads, 4 cores\n"


def cuts(count: int, begin: int = 1, number: int = 1) -> str:
    return f"aten::select {begin}-{begin}.5 x{count} every 1 shapes=[[32,10,64],[],[]] sequence={number}"


def back(count: int) -> str:
    """Nodes of 2 ms."""
    node = '"autograd::engine::evaluate_function: SelectBackward0"'
    return f'{node} 50-52 x{count} every 3 sequence=1 "Fwd thread id"=1'


def found(*items: str, steps: int = 1) -> Sequence[RankedFinding]:
    facts = facts_of(STEPS.format(steps) + "\n".join(f"cpu  {item}" for item in items))
    return pipeline.present(facts, [built_in("gradients_of_slices")]).findings


@pytest.mark.parametrize("between", ["", "aten::linear 1.6-1.9 x8 every 1 shapes=[[32,64],[64,64]]"])
def test_what_works_on_pieces_may_come_between(between: str) -> None:
    (one,) = found(cuts(8), *filter(None, [between]), back(8))
    assert one.evidence[0].text.startswith("8 pieces in a row are cut out of a tensor of 32 x 10 x 64,")
    assert one.evidence[0].value == 16_000_000


@pytest.mark.parametrize(
    "items",
    [
        (cuts(7), back(7)),
        # An op on the whole ends a row: four pieces before it and four after it, of two tensors.
        (cuts(4), "aten::add 5-5.5 shapes=[[32,10,64],[32,10,64]]", cuts(4, 6, 2), back(8)),
        (cuts(8).replace("sequence=1", ""), back(8)),  # no gradient goes to them
    ],
)
def test_what_is_left_alone(items: tuple[str, ...]) -> None:
    assert not found(*items)


def test_rows_end_with_the_step() -> None:
    assert not found(cuts(4), back(4), steps=2)
