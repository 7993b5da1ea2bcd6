"""Sums of squares of weights that gradients go through."""

from __future__ import annotations

import pytest

from diagnose.facts.autograd.weight_penalty import WeightPenalty, weight_penalty
from diagnose.facts.core.base import Missing
from diagnose.synthetic.reading import facts_of

BACK = '"autograd::engine::evaluate_function: {}Backward0" {} sequence={} "Fwd thread id"=1'
ADDED = (
    "torch::autograd::AccumulateGrad 80-81 shapes=[[64,32]]",
    "torch::autograd::AccumulateGrad 81-82 shapes=[[64]]",
)


def of(*items: str) -> WeightPenalty:
    return weight_penalty(facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join((*items, *ADDED))}"))


def squared(square: str, shape: str = "[64,32]") -> tuple[str, ...]:
    """A square of 10 ms and its sum of 5 ms, and their backward pass, of 25 ms."""
    return (
        f"{square} 0-10 shapes=[{shape},[]] sequence=1",
        f"aten::sum 10-15 shapes=[{shape},[]] sequence=2",
        "aten::add 15-16 sequence=3",
        BACK.format("Sum", "20-25", 2),
        BACK.format("Pow", "25-45", 1),
    )


@pytest.mark.parametrize("square", ["aten::pow", "aten::square"])
def test_squares_with_their_backward(square: str) -> None:
    found = of(*squared(square))
    assert (found.shapes, len(found.work.ids), found.work.host_ns) == (1, 4, 40_000_000)


def test_shapes_count_once_each() -> None:
    more = ("aten::pow 46-48 shapes=[[64],[]]", "aten::sum 48-50 shapes=[[64],[]]")
    again = ("aten::pow 51-53 shapes=[[64,32],[]]", "aten::sum 53-55 shapes=[[64,32],[]]")
    found = of(*squared("aten::pow"), *more, *again)
    assert (found.shapes, found.work.host_ns) == (2, 48_000_000)


def test_what_is_no_penalty_on_weights() -> None:
    assert of(*squared("aten::pow", "[16,32]")).shapes == 0  # of something else
    assert of(*squared("aten::abs")).shapes == 0  # no weight decay does that
    assert of(*squared("aten::pow")[:3]).shapes == 0  # no gradient goes through it
    later = [item.replace("aten::pow 0-10", "aten::pow 1-10") for item in squared("aten::pow")]
    assert of("aten::sub 0-1 shapes=[[64,32],[64,32],[]] sequence=0", *later).shapes == 0  # of a distance


def test_without_shapes_nothing_is_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        weight_penalty(facts_of("1 steps of 100\n2 threads, 4 cores\ncpu  aten::pow 0-10"))


def test_without_gradients_it_is_not_known_what_a_weight_is() -> None:
    with pytest.raises(Missing, match="backward passes"):
        weight_penalty(facts_of("1 steps of 100\n2 threads, 4 cores\ncpu  aten::pow 0-10 shapes=[[64,32],[]]"))
