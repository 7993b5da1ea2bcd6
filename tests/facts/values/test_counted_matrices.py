"""Products with matrices of which nearly all is zero."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.values.known_values import sparse_products
from diagnose.synthetic.reading import facts_of

STEPS = "4 steps of 100\n2 threads, 4 cores\n"


def test_products_with_a_graph() -> None:
    (found,) = sparse_products(
        facts_of(
            f"{STEPS}values aten::mm sparse 990 | aten::mm sparse 985 | aten::mm sparse 500 | aten::mm sparse 1000\n"
            "cpu  aten::mm 0-10 | aten::mm 10-30 | aten::mm 30-60 | aten::mm 60-90"
        )
    )
    assert (found.share, found.times, found.kind, found.steps_seen) == (0.985, 2, "", 3)
    assert found.work.host_ns == 30_000_000


def test_a_matrix_for_each_position() -> None:
    (found,) = sparse_products(facts_of(f"{STEPS}values aten::bmm sparse 992\ncpu  aten::matmul 0-20 | aten::bmm 1-19"))
    assert (found.kind, found.work.host_ns) == ("batched", 18_000_000)


def test_torch_has_no_convolutions_of_sparse_pictures() -> None:
    synthetic = "cpu  aten::convolution 0-20"
    assert sparse_products(facts_of(f"{STEPS}values aten::convolution sparse 992\n{synthetic}")) == ()


def test_a_lookup_by_rows_of_zeros_and_ones_is_one() -> None:
    looked_up = facts_of(
        f"{STEPS}values aten::one_hot | aten::mm takes 0 sparse 998\n"
        "cpu  aten::one_hot 0-10 shapes=[[256],[]] | aten::fill_ 1-9 shapes=[[256,8000],[]]\n"
        "cpu  aten::to 10-20 shapes=[[256,8000],[]] | aten::matmul 20-40 shapes=[[256,8000],[8000,128]]\n"
        "cpu  aten::mm 21-39"
    )
    (found,) = sparse_products(looked_up)
    assert (found.share, found.work.host_ns) == (0.998, 18_000_000)


def test_what_is_known_already_is_told_elsewhere() -> None:
    synthetic = "aten::mul\ncpu  aten::mm 0-10 | aten::mm 10-30 | aten::mul 30-40"
    constant = facts_of(f"{STEPS}values aten::mm always sparse 990 | aten::mm | {synthetic}")
    repeated = facts_of(f"{STEPS}values aten::mm sparse 990 | aten::mm as 0 sparse 990 | {synthetic}")
    assert sparse_products(constant) == ()
    assert [sparse_product.times for sparse_product in sparse_products(repeated)] == [1]


def test_nobody_counted() -> None:
    with pytest.raises(Missing, match="diagnose profile"):
        sparse_products(facts_of(f"{STEPS}cpu  aten::mm 0-10"))
