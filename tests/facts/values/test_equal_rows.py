"""Which layers compute the same rows several times."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.values.equal_rows import equal_rows
from diagnose.facts.values.ledger import Wasted
from diagnose.synthetic.reading import facts_of

TAKEN = "aten::index_select 0-10 shapes=[[64,32],[],[256]]"
LAYER = "aten::linear 10-30 shapes=[[256,32],[8,32],[8]]"


def of(*items: str) -> tuple[Wasted, ...]:
    return equal_rows(facts_of(f"4 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join(items)}"))


def test_of_64_rows_256_are_taken() -> None:
    (found,) = of(TAKEN, LAYER)
    assert (found.kind, found.share, found.ops, found.steps_seen) == ("shapes", 0.75, ("aten::linear",), 3)
    assert (found.longest_ns, found.wasted_ns) == (20_000_000, 15_000_000)


def test_rows_stay_equal_through_what_takes_each_by_itself() -> None:
    """Up to an op that may mix rows, or that draws numbers."""
    (found,) = of(
        TAKEN,
        LAYER,
        "aten::relu 30-34 shapes=[[256,8]]",
        "aten::linear 34-40 shapes=[[256,8],[4,8]]",
        "aten::dropout 40-50 shapes=[[256,4]]",
        "aten::linear 50-60 shapes=[[256,4],[4,4]]",
    )
    assert found.ops == ("aten::linear", "aten::relu")
    assert found.work.host_ns == 30_000_000


def test_images_that_are_repeated() -> None:
    (found,) = of("aten::repeat 0-10 shapes=[[2,3,8,8],[]]", "aten::conv2d 10-30 shapes=[[8,3,8,8],[4,3,3,3]]")
    assert (found.kind, found.share) == ("shapes", 0.75)


@pytest.mark.parametrize(
    "items",
    [
        ("aten::index_select 0-10 shapes=[[640,32],[],[256]]", LAYER),  # a batch of a dataset
        (TAKEN, "aten::mul 10-30 shapes=[[256,32],[256,1]]"),  # each row is weighed
        (TAKEN, "aten::linear 10-30 shapes=[[256,64],[8,64]]"),  # rows of something else
        ("aten::embedding 0-10 shapes=[[100,32],[8,50]]", "aten::linear 10-30 shapes=[[8,50,32],[8,32]]"),
        (TAKEN, "aten::add 10-12 shapes=[[256,32],[256,32]]", "aten::linear 12-30 shapes=[[256,32],[8,32]]"),
    ],
)
def test_what_is_none(items: tuple[str, ...]) -> None:
    assert of(*items) == ()


def test_shapes_have_to_be_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        of("aten::index_select 0-10", "aten::linear 10-30")


def counted(values: str, cpu: str) -> tuple[Wasted, ...]:
    return equal_rows(facts_of(f"4 steps of 100\n2 threads, 4 cores\nvalues {values}\ncpu  {cpu}"))


EXPANDED = "aten::clone 0-10 shapes=[[16,4,32],[]] | aten::linear 10-30 shapes=[[64,32],[8,32],[8]]"
CLONED = "aten::clone spread 75"


def test_rows_that_were_counted() -> None:
    """Shapes do not tell that what is copied was expanded."""
    (found,) = counted(f"{CLONED} | aten::linear takes 0 alike 75", EXPANDED)
    assert (found.kind, found.share, found.ops, found.steps_seen) == ("", 0.75, ("aten::linear",), 3)
    assert (found.longest_ns, found.wasted_ns) == (20_000_000, 15_000_000)


@pytest.mark.parametrize(
    "values",
    [
        "aten::clone | aten::linear takes 0 alike 75",  # rows are equal as the data is
        f"{CLONED} | aten::linear takes -",  # of something else
        f"{CLONED} | aten::linear takes 0 alike 30",  # most differ, as others were added
        "aten::clone spread 40 | aten::linear takes 0 alike 40",
        "aten::clone spread 50 | aten::linear takes 0 alike 75",  # some are equal for another reason
        f"{CLONED} | aten::linear takes 0 back alike 75",
    ],
)
def test_rows_that_need_not_be_equal(values: str) -> None:
    assert counted(values, EXPANDED) == ()


def test_rows_that_shapes_tell_of_are_told_once() -> None:
    (found,) = counted("aten::index_select spread 75 | aten::linear takes 0 alike 75", f"{TAKEN} | {LAYER}")
    assert (found.kind, found.share) == ("shapes", 0.75)
