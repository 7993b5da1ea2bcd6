"""Tables of all by all of which few pairs are wanted."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.shapes.pairs import Pairs, diagonals_of_pairs, equal_pairs, one_of_each_row
from diagnose.synthetic.reading import facts_of

CPU = "4 steps of 100\n2 threads, 4 cores\n"
NODE = "autograd::engine::evaluate_function: MulBackward0"
OUTER = "aten::mul 0-10 shapes=[[50,1,2],[1,50,2]] sequence=1"
TAKEN = "aten::diagonal 20-21 shapes=[[50,50]]"


def diagonals(*items: str) -> tuple[Pairs, ...]:
    return diagonals_of_pairs(facts_of(f"{CPU}cpu  {' | '.join(items)}"))


def equal(*items: str) -> tuple[Pairs, ...]:
    return equal_pairs(facts_of(f"{CPU}cpu  {' | '.join(items)}"))


def test_pairs_of_which_the_diagonal_is_taken() -> None:
    """With the backward pass 28 ms, of which five ops and nodes would take 10 us each."""
    (found,) = diagonals(
        "aten::sub 30-31 shapes=[[50,2],[50,2]]",
        OUTER,
        "aten::unbind 10-11 shapes=[[50,50,2]]",
        "aten::clamp_ 11-17 shapes=[[50,50]]",
        TAKEN,
        f'"{NODE}" 40-50 sequence=1 "Fwd thread id"=1',
    )
    assert (found.rows, found.columns) == (50, 50)
    assert found.ops == ("mul", "unbind", "clamp_", "diagonal")
    assert found.work.host_ns == 28_000_000
    assert found.left == pytest.approx(5 * 0.010 / 28)


def test_overlaps_of_boxes_as_torchvision_computes_them() -> None:
    (found,) = diagonals(
        "aten::max 0-4 shapes=[[50,1,2],[50,2]]",
        "aten::sub 4-8 shapes=[[50,50,2],[50,50,2]]",
        "aten::slice 8-9 shapes=[[50,50,2],[],[],[],[]]",
        "aten::select 9-10 shapes=[[50,50,2],[],[]]",
        "aten::mul 10-14 shapes=[[50,50],[50,50]]",
        "aten::diag 14-15 shapes=[[50,50],[]]",
    )
    assert found.work.host_ns == 15_000_000


@pytest.mark.parametrize(
    "product",
    ["aten::matmul 0-10 shapes=[[50,8],[8,50]]", "aten::cdist 0-10 shapes=[[50,8],[50,8]]"],
)
def test_products_and_distances_of_all(product: str) -> None:
    (found,) = diagonals(product, TAKEN)
    assert found.work.host_ns == 11_000_000


def test_on_a_gpu_its_time_counts() -> None:
    """Of kernels of 10 and 1 ms 3 us each are left."""
    cpu = "aten::mul 0-1 shapes=[[50,1],[1,50]] | aten::diagonal 20-21 shapes=[[50,50]]"
    facts = facts_of(f"4 steps of 100\ncpu  {cpu}\ngpu  pointwise 2-12 @0.5 | pointwise 22-23 @20.5")
    (found,) = diagonals_of_pairs(facts)
    assert found.work.device_ns == 11_000_000
    assert found.left == pytest.approx(2 * 0.003 / 11)


@pytest.mark.parametrize(
    "items",
    [
        (OUTER, "aten::logsumexp 12-13 shapes=[[50,50]]", TAKEN),  # a contrastive loss
        ("aten::mm 0-9 shapes=[[50,9],[9,50]]", TAKEN, "aten::view 22-23 shapes=[[50,50]]"),  # the others, too
        (OUTER, "aten::slice 12-13 shapes=[[50,50]]", TAKEN),
        (OUTER, "aten::max 12-13 shapes=[[50,50],[],[]]", TAKEN),  # the nearest of each
        (TAKEN,),  # nobody knows who made it
        ("aten::mul 0-9 shapes=[[8,1],[1,8]]", "aten::diagonal 20-21 shapes=[[8,8]]"),  # small
        (OUTER, "aten::diagonal 20-21 shapes=[[50,60]]"),
    ],
)
def test_tables_that_are_wanted(items: tuple[str, ...]) -> None:
    assert diagonals(*items) == ()


LONG = '"Input type"=["long int","long int"]'
COMPARED = f"aten::eq 0-10 shapes=[[40,1],[900]] {LONG}"
FOUND = "aten::nonzero 10-14 shapes=[[40,900]]"


def test_ids_that_are_looked_for() -> None:
    (found,) = equal(COMPARED, FOUND, "aten::mm 20-30 shapes=[[8,8],[8,8]]")
    assert (found.rows, found.columns, found.ops, found.work.host_ns) == (40, 900, ("eq", "nonzero"), 14_000_000)


@pytest.mark.parametrize(
    "items",
    [
        (COMPARED, "aten::sum 10-14 shapes=[[40,900]]"),  # how many are alike
        (COMPARED, "aten::nonzero 10-14 shapes=[[40]]"),  # of something else
        (COMPARED.replace("long int", "float"), FOUND),  # near each other is not equal
        (COMPARED.replace("[900]", "[40,900]"), FOUND),  # each with its own
        (COMPARED.replace("900", "9"), FOUND.replace("900", "9")),  # a short list
        (COMPARED,),
    ],
)
def test_comparisons_that_are_none(items: tuple[str, ...]) -> None:
    assert equal(*items) == ()


def test_shapes_have_to_be_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        diagonals("aten::diagonal 0-10")
    with pytest.raises(Missing, match="shapes"):
        equal("aten::eq 0-10")


MASK = "aten::one_hot 0-6 shapes=[[40],[]]"
MARGIN = "aten::acos 8-12 shapes=[[40,900]] sequence=1"
WHERE = "aten::where 12-14 shapes=[[40,900],[40,900],[40,900]]"


def one_of_each(*items: str) -> tuple[Pairs, ...]:
    return one_of_each_row(facts_of(f"{CPU}cpu  {' | '.join(items)}"))


@pytest.mark.parametrize("mask", [MASK, "aten::scatter_ 0-6 shapes=[[40,900],[],[40,1],[]]"])
def test_a_margin_for_one_class_of_each_row(mask: str) -> None:
    """Not `where`, nor what comes before the mask. Three ops and a node are left of 21 ms."""
    (found,) = one_of_each(
        mask.replace("0-6", "2-6"),
        "aten::abs 0-2 shapes=[[40,900]]",
        "aten::to 6-8 shapes=[[40,900],[]]",
        MARGIN,
        WHERE,
        '"autograd::engine::evaluate_function: AcosBackward0" 40-51 sequence=1 "Fwd thread id"=1',
    )
    assert (found.rows, found.columns, found.work.host_ns) == (40, 900, 21_000_000)
    assert found.ops[1:] == ("to", "acos")
    assert found.left == pytest.approx(4 * 0.010 / 21)


@pytest.mark.parametrize(
    "items",
    [
        ("aten::gt 0-6 shapes=[[40,900],[]]", MARGIN, WHERE),  # any places
        (MASK, MARGIN, "aten::softmax 12-13 shapes=[[40,900],[]]", WHERE.replace("12-14", "13-14")),
        (MASK, MARGIN, WHERE.replace("[40,900]]", "[]]")),  # nothing is computed for the others
        (MASK.replace("40", "50"), MARGIN, WHERE),  # of something else
        ("aten::scatter_ 0-6 shapes=[[40,900],[],[40,5],[]]", MARGIN, WHERE),  # five of each row
        (MARGIN, WHERE),
    ],
)
def test_what_is_computed_for_more(items: tuple[str, ...]) -> None:
    assert one_of_each(*items) == ()
