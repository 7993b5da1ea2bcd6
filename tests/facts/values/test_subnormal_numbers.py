"""Subnormal numbers in products."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.values.subnormal_numbers import subnormal_products
from diagnose.synthetic.reading import facts_of

STEPS = "4 steps of 100\n2 threads, 4 cores\n"


SQUARE, WIDE = "shapes=[[100,100],[100,100]]", "shapes=[[4,100,100],[4,100,100]]"


@pytest.mark.parametrize(
    ("end", "slow", "ns"), [(55, ("0.5 %", 1, 0.5), 10_000_000), (85, ("2 %", 2, 25 / 80), 80_000_000)]
)
def test_products_that_are_slower_than_others(end: int, slow: tuple[str, int, float], ns: int) -> None:
    """At the pace of the second, a million multiplications in 5 ms, these would take 5 and 20 ms.

    Of another op it may be that only because that is another op, unless it takes three times as long.
    """
    (found,) = subnormal_products(
        facts_of(
            f"{STEPS}values aten::mm subnormal 5 | aten::mm | aten::bmm subnormal 20 | aten::mul subnormal 9\n"
            f"cpu  aten::mm 0-10 {SQUARE} | aten::mm 10-15 {SQUARE} | aten::bmm 15-{end} {WIDE} | aten::mul 90-95"
        )
    )
    assert (found.detail, found.times, 1 - found.share, found.steps_seen) == (*slow, 3)
    assert found.work.host_ns == ns


@pytest.mark.parametrize(
    "drawn",
    [
        f"aten::mm 0-10 {SQUARE} | aten::mm 10-18 {SQUARE}",  # As quick as the other.
        "aten::mm 0-10 shapes=[[10,10],[10,10]] | aten::mm 10-11 shapes=[[10,10],[10,10]]",  # Too small.
        "aten::mm 0-10 | aten::mm 10-11",  # Nobody knows how large.
    ],
)
def test_products_that_are_not(drawn: str) -> None:
    assert subnormal_products(facts_of(f"{STEPS}values aten::mm subnormal 5 | aten::mm\ncpu  {drawn}")) == ()


def test_products_with_none_to_compare() -> None:
    assert subnormal_products(facts_of(f"{STEPS}values aten::mm subnormal 5\ncpu  aten::mm 0-10 {SQUARE}")) == ()


def test_nobody_looked() -> None:
    rank = facts_of(f"{STEPS}values aten::mm\ncpu  aten::mm 0-10").rank
    assert rank.values is not None
    assert rank.values.rows is not None
    older = replace(rank.values.rows, subnormal=None)
    with pytest.raises(Missing, match="this version"):
        subnormal_products(Facts(replace(rank, values=replace(rank.values, rows=older))))
    with pytest.raises(Missing, match="diagnose profile"):
        subnormal_products(facts_of(f"{STEPS}cpu  aten::mm 0-10"))
