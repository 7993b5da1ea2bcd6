"""Products of matrices whose order costs more than another one."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.values.product_order import ProductOrder, product_orders
from diagnose.synthetic.reading import facts_of

SCORES = "aten::bmm 0-30 shapes=[[8,512,32],[8,32,512]]"
MIXED = "aten::bmm 40-70 shapes=[[8,512,512],[8,512,32]]"
SQUARE = "aten::mm 5-10 shapes=[[64,16],[16,64]]"
TWICE = "aten::addmm 10-40 shapes=[[64,64],[64,64],[64,64]]"
BACK = "aten::mm 40-50 shapes=[[64,64],[64,16]]"


def of(values: str, drawn: str) -> tuple[ProductOrder, ...]:
    return product_orders(facts_of(f"4 steps of 100\n2 threads, 4 cores\nvalues {values}\ncpu  {drawn}"))


def test_a_product_of_three() -> None:
    """512 x 32 x 512 twice, or 32 x 512 x 32 twice, of each of 8."""
    (found,) = of("aten::bmm | aten::bmm takes 0,-", f"{SCORES} | {MIXED}")
    assert (found.squares, found.largest, found.times, found.steps_seen) == (False, (512, 512), 1, 3)
    assert found.left == 1 / 16
    assert found.work.host_ns == 60_000_000


def test_scaling_comes_between() -> None:
    scaled = "aten::mul 30-40 shapes=[[8,512,512],[]]"
    (found,) = of("aten::bmm | aten::mul takes 0 | aten::bmm takes 1,-", f"{SCORES} | {scaled} | {MIXED}")
    assert found.work.host_ns == 70_000_000


@pytest.mark.parametrize(
    ("values", "between"),
    [
        ("aten::bmm | aten::mul takes 0,- | aten::bmm takes 1,-", "aten::mul 30-40 shapes=[[8,512,512],[512,512]]"),
        ("aten::bmm | aten::_softmax takes 0 | aten::bmm takes 1,-", "aten::_softmax 30-40 shapes=[[8,512,512],[],[]]"),
        ("aten::bmm | aten::sum takes 0 | aten::bmm takes 0,-", "aten::sum 30-40 shapes=[[8,512,512]]"),
    ],
)
def test_something_else_comes_between_or_takes_it(values: str, between: str) -> None:
    assert of(values, f"{SCORES} | {between} | {MIXED}") == ()


def test_a_product_with_itself_is_not_one_of_three() -> None:
    assert of("aten::mm | aten::mm takes 0", f"{SQUARE} | aten::mm 40-70 shapes=[[64,64],[64,64]]") == ()


def test_an_order_that_is_little_worse() -> None:
    """Of 16 x 4 x 16 and 16 x 16 x 8 more than half is left: 4 x 16 x 8 and 16 x 4 x 8."""
    drawn = "aten::mm 0-30 shapes=[[16,{k}],[{k},16]] | aten::mm 40-70 shapes=[[16,16],[16,8]]"
    assert of("aten::mm | aten::mm takes 0,-", drawn.format(k=9)) == ()
    (found,) = of("aten::mm | aten::mm takes 0,-", drawn.format(k=4))
    assert found.left == (4 * 16 * 8 + 16 * 4 * 8) / (16 * 4 * 16 + 16 * 16 * 8)


def test_what_is_made_may_be_the_second_factor() -> None:
    """A graph of 64 nodes takes 32 numbers of each, made of 4."""
    drawn = "aten::{first} 0-30 shapes={of} | aten::mm 40-70 shapes=[[64,64],[64,32]]"
    (found,) = of("aten::mm | aten::mm takes 0,-", drawn.format(first="mm", of="[[64,4],[4,32]]"))
    assert found.left == (64 * 64 * 4 + 64 * 4 * 32) / (64 * 4 * 32 + 64 * 64 * 32)
    biased = drawn.format(first="addmm", of="[[32],[64,4],[4,32]]")
    assert of("aten::addmm | aten::mm takes 0,-", biased) == ()  # A bias for each neighbour.


def test_squares_of_the_long_side() -> None:
    """Of 64 by 64, where 16 by 16 would do."""
    (found,) = of(
        "aten::mul | aten::mm takes 0 | aten::addmm takes 1 | aten::mm takes 0,2",
        f"aten::mul 0-5 shapes=[[64,16],[]] | {SQUARE} | {TWICE} | {BACK}",
    )
    assert (found.squares, found.largest, found.times) == (True, (64, 64), 1)
    now = 64 * 16 * 64 + 64**3 + 64 * 64 * 16
    assert found.left == (16 * 64 * 16 + 16**3 + 64 * 16 * 16) / now
    assert found.work.host_ns == 45_000_000


@pytest.mark.parametrize(
    "values",
    [
        "aten::mul | aten::mm takes 0 | aten::addmm takes 0,1 | aten::mm takes 0,2",  # something is added to it
        "aten::mul | aten::mm takes 0 | aten::addmm takes 1 | aten::mm takes -,2",  # something else is multiplied
        "aten::mul | aten::mm takes 0,- | aten::addmm takes 1 | aten::mm takes 0,2",  # no square
    ],
)
def test_what_is_no_polynomial_of_a_square(values: str) -> None:
    drawn = f"aten::mul 0-5 shapes=[[64,16],[]] | {SQUARE} | {TWICE} | {BACK}"
    assert not any(one.squares for one in of(values, drawn))


def test_nobody_looked() -> None:
    with pytest.raises(Missing, match="shapes"):
        of("aten::mm", "aten::mm 0-30")
    with pytest.raises(Missing, match="diagnose profile"):
        product_orders(facts_of(f"4 steps of 100\n2 threads, 4 cores\ncpu  {SQUARE}"))
