"""Which matrices are factored at a size that is far above their rank."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.shapes.low_rank import LowRankSolve, low_rank_solves
from diagnose.synthetic.reading import facts_of

PRODUCT = "aten::matmul 0-10 shapes=[[4,256,64],[4,64,256]]"
RIDGE = "aten::add 10-20 shapes=[[4,256,256],[256,256]]"
SOLVE = "aten::linalg_solve 20-50 shapes=[[4,256,256],[4,256,5]]"


def of(*items: str) -> tuple[LowRankSolve, ...]:
    return low_rank_solves(facts_of(f"4 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join(items)}"))


def test_from_the_product_to_what_solves_it() -> None:
    (found,) = of(PRODUCT, RIDGE, SOLVE, "aten::sum 50-60 shapes=[[4,256,256]]")
    assert (found.size, found.rank) == (256, 64)
    assert (found.products.host_ns, found.solves.host_ns, found.longest_ns) == (10_000_000, 40_000_000, 50_000_000)


@pytest.mark.parametrize(
    "items",
    [
        ("aten::mm 0-10 shapes=[[256,64],[64,256]]", "aten::inverse 20-50 shapes=[[256,256]]"),
        ("aten::addmm 0-10 shapes=[[256,256],[256,64],[64,256]]", "aten::linalg_cholesky 20-50 shapes=[[256,256]]"),
        ("aten::matmul 0-10 shapes=[[2,3,256,64],[2,3,64,256]]", "aten::linalg_eigh 20-50 shapes=[[2,3,256,256]]"),
    ],
)
def test_forms_of_it(items: tuple[str, ...]) -> None:
    (found,) = of(*items)
    assert (found.size, found.rank, found.longest_ns) == (256, 64, 40_000_000)


def test_the_backward_belongs_to_it() -> None:
    lines = ["2 steps of 100", "1 threads, 2 cores"]
    for step, (first, second) in enumerate(((5, 6), (15, 16))):
        product, solve = (f"{one} sequence={number}" for one, number in ((PRODUCT, first), (SOLVE, second)))
        lines.append(f"cpu  {product} in {step} | {solve} in {step}")
        for name, number, begin in (("LinalgSolve", second, 50), ("Bmm", first, 70)):
            node = f'"autograd::engine::evaluate_function: {name}Backward0"'
            lines.append(f'cpu  {node} {begin}-{begin + 15} sequence={number} "Fwd thread id"=1 in {step}')
    (found,) = low_rank_solves(facts_of("\n".join(lines)))
    assert (found.products.host_ns, found.solves.host_ns) == (25_000_000, 45_000_000)


@pytest.mark.parametrize(
    "items",
    [
        ("aten::matmul 0-10 shapes=[[4,64,256],[4,256,64]]", "aten::linalg_solve 20-50 shapes=[[4,64,64],[4,64,5]]"),
        ("aten::matmul 0-10 shapes=[[4,256,160],[4,160,256]]", SOLVE),  # no thinner than half
        (PRODUCT, "aten::linalg_solve 20-50 shapes=[[4,128,128],[4,128,5]]"),  # another matrix
        (PRODUCT, RIDGE),  # nothing is solved
        (SOLVE, "aten::matmul 50-60 shapes=[[4,256,64],[4,64,256]]"),  # before
        ("aten::matmul 0-10 shapes=[[4,256,64],[64,256]]", SOLVE),  # of something else for each
    ],
)
def test_what_is_none(items: tuple[str, ...]) -> None:
    assert of(*items) == ()


def test_shapes_have_to_be_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        of("aten::matmul 0-10", "aten::linalg_solve 20-50")
