"""Sorts of which the first few are used."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.shapes.sorts import SortsForFew, sorts_for_few
from diagnose.synthetic.reading import facts_of

SORT = "aten::argsort 0-40 shapes=[[32,800],[],[]]"
CUT = "aten::slice 40-41 shapes=[[32,800],[],[],[],[]]"


def of(*items: str) -> tuple[SortsForFew, ...]:
    return sorts_for_few(facts_of(f"4 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join(items)}"))


OTHER = "aten::unsqueeze 41-42 shapes=[[32],[]]"


@pytest.mark.parametrize("between", [(CUT,), (CUT, CUT.replace("40-41", "41-42")), (CUT, OTHER)])
def test_five_of_each_row_are_used(between: tuple[str, ...]) -> None:
    (found,) = of(SORT, *between, "aten::eq 42-43 shapes=[[32,5],[32,1]]")
    assert (found.shape, found.kept, found.work.host_ns) == ((32, 800), 5, 40_000_000)


@pytest.mark.parametrize(
    "items",
    [
        (SORT, CUT, "aten::eq 42-43 shapes=[[32,400],[32,400]]"),  # half
        (SORT, "aten::eq 42-43 shapes=[[32,5],[32,1]]"),  # of something else
        (SORT, CUT, "aten::sub 42-43 shapes=[[32,800],[32,1]]"),  # and then all
        (SORT, CUT),  # nobody knows
        (SORT,),
    ],
)
def test_what_is_none(items: tuple[str, ...]) -> None:
    assert of(*items) == ()


def test_shapes_have_to_be_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        of("aten::argsort 0-40")
