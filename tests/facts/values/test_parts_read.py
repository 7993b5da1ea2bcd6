"""Ops of whose results a part is read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.values.parts_read import parts_read
from diagnose.facts.values.wasted_entries import Wasted
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site

SYNTHETIC = 'cpu  aten::fft 0-40 stack="t.py(1): sounds" | aten::abs 40-60 stack="t.py(9): step" | aten::mm 60-90'
WAYS_BACK = """
    cpu  aten::linear 0-20 sequence=5
    cpu  aten::addmm 0-20
    cpu  "autograd::engine::evaluate_function: AddmmBackward0" 40-80 sequence=5 "Fwd thread id"=1
    cpu  aten::mm 41-79
"""


def of(values: str, synthetic: str = SYNTHETIC) -> tuple[Wasted, ...]:
    return parts_read(facts_of(f"4 steps of 100\n2 threads, 4 cores\nvalues {values}\n{synthetic}"))


def test_what_is_cut_down_at_the_end() -> None:
    (found,) = of("aten::fft read 20 | aten::abs takes 0 read 50 | aten::mm takes 1")
    assert (round(found.share, 2), found.ops, found.steps_seen) == (0.7, ("aten::fft", "aten::abs"), 3)
    assert (found.longest_ns, round(found.wasted_ns, -3)) == (60_000_000, 42_000_000)
    assert (found.site, found.other_site) == (Site("t.py", 1, "sounds"), Site("t.py", 9, "step"))


def test_what_does_not_depend_on_each_other_is_told_apart() -> None:
    found = of("aten::fft read 20 | aten::abs read 50 | aten::mm takes 0,1")
    assert [one.ops for one in found] == [("aten::fft",), ("aten::abs",)]
    assert [one.wasted_ns for one in found] == [32_000_000, 10_000_000]


def test_ways_that_meet_are_one() -> None:
    (found,) = of("aten::fft read 20 | aten::abs read 20 | aten::mm takes 0,1 read 20")
    assert found.ops == ("aten::fft", "aten::abs", "aten::mm")


def test_little_is_cut_away() -> None:
    assert of("aten::fft read 76 | aten::abs takes 0 read 76 | aten::mm takes 1") == ()


@pytest.mark.parametrize(("number", "found"), [(" sequence=5", 0), ("", 1)])
def test_of_what_is_learnt_from_the_gradients_tell(number: str, found: int) -> None:
    synthetic = WAYS_BACK.replace("0-20 sequence=5", f"0-20{number}")
    assert len(of("aten::addmm read 20 | aten::mm back", synthetic)) == found


def test_nobody_looked() -> None:
    with pytest.raises(Missing, match="diagnose profile"):
        parts_read(facts_of(f"4 steps of 100\n2 threads, 4 cores\n{SYNTHETIC}"))
    rank = facts_of(f"4 steps of 100\n2 threads, 4 cores\nvalues aten::fft | aten::abs | aten::mm\n{SYNTHETIC}").rank
    assert rank.values is not None
    assert rank.values.rows is not None
    older = replace(rank.values, rows=replace(rank.values.rows, read=None))
    with pytest.raises(Missing, match="this version"):
        parts_read(Facts(replace(rank, values=older)))
