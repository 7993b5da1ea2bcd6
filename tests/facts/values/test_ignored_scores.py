"""Which scores are computed for rows that the loss ignores."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.values.ignored_scores import ignored_scores
from diagnose.facts.values.ledger import Wasted
from diagnose.synthetic.reading import facts_of

HEAD = "4 steps of 100\n2 threads, 4 cores\n"
SEEN = "ignored 96 of 128 rows, 500 classes\n"
LAYER = "aten::linear 0-10 shapes=[[2,64,32],[500,32],[500]]"
FLAT = "aten::flatten 10-20 shapes=[[2,64,500]]"
LOSS = "aten::cross_entropy_loss 20-30 shapes=[[128,500],[128]]"


def of(*items: str, head: str = HEAD + SEEN) -> tuple[Wasted, ...]:
    return ignored_scores(facts_of(f"{head}cpu  {' | '.join(items)}"))


def test_from_the_layer_to_the_loss() -> None:
    (found,) = of(LAYER, FLAT, LOSS, "aten::add 30-40 shapes=[[128,500]]")
    assert (found.detail, found.share) == ("500 classes for 128 rows", 0.75)
    assert (found.longest_ns, found.wasted_ns) == (30_000_000, 22_500_000)


@pytest.mark.parametrize(
    "layer",
    [
        "aten::addmm 0-10 shapes=[[500],[128,32],[32,500]]",
        "aten::mm 0-10 shapes=[[128,32],[32,500]]",
        "aten::matmul 0-10 shapes=[[2,64,32],[32,500]]",
        "aten::linear 0-10 shapes=[[128,32],[500,32],[]]",
    ],
)
def test_forms_of_the_layer(layer: str) -> None:
    (found,) = of(layer, LOSS)
    assert (found.detail, found.longest_ns) == ("500 classes for 128 rows", 20_000_000)


def test_the_last_place_of_each_row_may_be_left_out() -> None:
    """Its scores are not, and are made for nothing as well."""
    (found,) = of(LAYER, "aten::slice 10-20 shapes=[[2,64,500]]", "aten::cross_entropy_loss 20-30 shapes=[[126,500]]")
    assert (found.detail, found.longest_ns) == ("500 classes for 128 rows", 30_000_000)


def test_classes_after_the_rows() -> None:
    (found,) = of(
        LAYER, "aten::transpose 10-20 shapes=[[2,64,500]]", "aten::cross_entropy_loss 20-30 shapes=[[2,500,64]]"
    )
    assert (found.detail, found.longest_ns) == ("500 classes for 128 rows", 30_000_000)


def test_ops_between_them_that_have_nothing_to_do_with_scores() -> None:
    (found,) = of(LAYER, "aten::add 10-20 shapes=[[128,32]]", LOSS)
    assert found.work.host_ns == 20_000_000


@pytest.mark.parametrize(
    "items",
    [
        ("aten::linear 0-10 shapes=[[128,32],[400,32]]", LOSS),  # other classes
        (LAYER, "aten::cross_entropy_loss 20-30 shapes=[[32,500],[32]]"),  # of a quarter of the rows
        (LAYER, FLAT),  # no loss
        (LOSS, LAYER.replace("0-10", "40-50")),
    ],
)
def test_what_is_none(items: tuple[str, ...]) -> None:
    assert of(*items) == ()


def test_nobody_looked() -> None:
    with pytest.raises(Missing, match="what losses ignore"):
        of(LAYER, LOSS, head=HEAD)


def test_shapes_have_to_be_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        of("aten::linear 0-10", "aten::cross_entropy_loss 20-30")
