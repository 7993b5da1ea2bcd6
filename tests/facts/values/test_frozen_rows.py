"""Rows of a table that go through a net that learns nothing."""

from dataclasses import replace

import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.values.known_values import frozen_rows
from diagnose.facts.values.wasted_entries import Wasted
from diagnose.synthetic.reading import facts_of

SYNTHETIC = (
    "cpu  aten::index 0-5 shapes=[[512,32],[],[64]] | aten::mm 5-35 shapes=[[64,32],[32,8]]"
    " | aten::relu 35-45 | aten::mm 45-80 shapes=[[64,8],[8,4]]"
)
EVALUATED = '"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"'


def of(values: str, more: str = "") -> tuple[Wasted, ...]:
    return frozen_rows(facts_of(f"4 steps of 100\n2 threads, 4 cores\nvalues {values}\n{SYNTHETIC}{more}"))


def test_an_encoder_that_is_frozen() -> None:
    (found,) = of("aten::index looked 0 | aten::mm looked 0 | aten::relu looked 0 | aten::mm")
    assert (found.detail, found.times, found.steps_seen) == ("a table of 512", 1, 3)
    assert found.work.host_ns == 40_000_000


def test_two_tables_are_told_apart() -> None:
    found = of("aten::index looked 0 | aten::mm looked 0 | aten::relu looked 2 | aten::mm looked 2")
    assert [one.work.host_ns for one in found] == [35_000_000, 30_000_000]


def test_what_is_looked_up_and_only_changed_a_little() -> None:
    assert of("aten::index looked 0 | aten::mm | aten::relu looked 0 | aten::mm") == ()


def test_nobody_looked() -> None:
    with pytest.raises(Missing, match="diagnose profile"):
        frozen_rows(facts_of(f"4 steps of 100\n2 threads, 4 cores\n{SYNTHETIC}"))
    rank = facts_of(
        f"4 steps of 100\n2 threads, 4 cores\nvalues aten::index | aten::mm | aten::relu | aten::mm\n{SYNTHETIC}"
    ).rank
    assert rank.values is not None
    older = replace(rank.values, looked_up=None)
    with pytest.raises(Missing, match="this version"):
        frozen_rows(Facts(replace(rank, values=older)))


@pytest.mark.parametrize(("learns", "found"), [("[8,32]", 0), ("[8,31]", 1)])
def test_a_copy_of_what_learns_may_change(learns: str, found: int) -> None:
    """A target net is copied after more steps than were looked at; its weights are as large."""
    added = f"\ncpu  {EVALUATED} 85-90 | torch::autograd::AccumulateGrad 85-90 shapes=[{learns}]"
    assert len(of("aten::index looked 0 | aten::mm looked 0 | aten::relu looked 0 | aten::mm", added)) == found
