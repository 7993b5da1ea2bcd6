"""Rows that are gathered from tables that lie in memory column by column."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.shapes.scattered_rows import ScatteredRows, scattered_rows
from diagnose.synthetic.reading import facts_of


def of(shape: str, strides: str, op: str = "aten::index") -> tuple[ScatteredRows, ...]:
    known = f" strides=[{strides},[]]" if strides else ""
    drawn = f"cpu  {op} 0-40 shapes=[{shape},[]]{known} | aten::mm 50-60 shapes=[[8,8],[8,8]]"
    return scattered_rows(facts_of(f"4 steps of 100\n2 threads, 4 cores\n{drawn}"))


@pytest.mark.parametrize("op", ["aten::index", "aten::index_select", "aten::embedding"])
def test_a_table_that_was_turned(op: str) -> None:
    (found,) = of("[1000,480]", "[1,1000]", op)
    assert (found.shape, found.apart, found.work.host_ns) == ((1000, 480), 1000, 40_000_000)


def test_images_with_channels_last_are_of_one_piece() -> None:
    """Their channels lie side by side; that the others do not is no matter."""
    assert of("[1000,3,32,32]", "[3072,1,96,3]") == ()
    assert [one.apart for one in of("[1000,3,32,32]", "[1,1024000,32000,1000]")] == [1000]


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ("[1000,480]", "[480,1]"),
        ("[1000,480]", "[960,2]"),  # every second column: half of each line of the cache is used
        ("[1000,1]", "[1,1000]"),  # a row is one number
        ("[1000]", "[7]"),
        ("[1000,480]", "[1]"),  # not of this tensor
        ("[1000,480]", '["1",null]'),
    ],
)
def test_what_is_none(shape: str, strides: str) -> None:
    assert of(shape, strides) == ()


def test_strides_have_to_be_known_where_rows_are_gathered() -> None:
    with pytest.raises(Missing, match="strides"):
        of("[1000,480]", "")
    assert of("[1000,480]", "", "aten::mul") == ()
