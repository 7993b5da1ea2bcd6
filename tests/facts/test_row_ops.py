"""Ops on rows one by one, and matrices that are diagonal."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Facts
from diagnose.facts.core.inputs import Tensor
from diagnose.facts.shapes.row_ops import LEAST_OWN, diagonal_matrices, limited_lookups, unique_rows
from diagnose.synthetic.reading import facts_of

PAIRS = 'shapes=[[4096,2],[],[]] types=["long int","Scalar","Scalar"]'


def step(*items: str) -> Facts:
    """One step of 100 ms, as long without the profiler."""
    return facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join(items)}")


def test_unique_rows_by_line_and_table() -> None:
    other = PAIRS.replace("4096", "512")
    large, small = unique_rows(step(f"aten::unique_dim 0-20 x2 every 30 {PAIRS}", f"aten::unique_dim 80-85 {other}"))
    assert (large.tensor, large.calls, large.work.host_ns) == (Tensor((4096, 2), "long int"), 2, 40_000_000)
    assert (small.tensor.shape, small.calls, small.work.longest_ns) == ((512, 2), 1, 5_000_000)


def test_unique_numbers_are_no_rows() -> None:
    assert unique_rows(step(f"aten::_unique2 0-20 {PAIRS}")) == ()


@pytest.mark.parametrize(("lasts", "share"), [(2, 0.885), (0.2, LEAST_OWN)])
def test_recording_the_ops_inside_is_not_their_own(lasts: float, share: float) -> None:
    """A thousand of 230 ns each: 0.23 ms."""
    (found,) = unique_rows(step(f"aten::unique_dim 0-{lasts} {PAIRS}", "aten::equal 0-0.0002 x1000 every 0.0002"))
    assert found.own_share == pytest.approx(share)
    assert found.longest_ns == round(lasts * 1_000_000 * share)


def test_lookups_with_a_limit() -> None:
    (found,) = limited_lookups(step("aten::embedding_renorm_ 0-20 shapes=[[9000,64],[512],[],[]]"))
    assert (found.tensor.shape, found.calls, found.work.host_ns) == ((9000, 64), 1, 20_000_000)
    assert limited_lookups(step("aten::embedding 0-20 shapes=[[9000,64],[512]]")) == ()


MADE = "aten::diag_embed 0-1 shapes=[[128,16],[],[],[]] sequence=3"


def test_what_works_on_diagonal_matrices_and_its_backward() -> None:
    node = '"autograd::engine::evaluate_function: LinalgCholeskyExBackward0" 50-60 sequence=4 "Fwd thread id"=1'
    factored = "aten::linalg_cholesky 1-21 shapes=[[128,16,16],[]] sequence=4"
    product = "aten::matmul 21-25 shapes=[[128,16,16],[128,16,1]]"
    (found,) = diagonal_matrices(step(MADE, factored, product, "aten::mm 30-40 shapes=[[16,16],[16,16]]", node))
    assert (found.shape, found.ops, found.work.host_ns) == ((128, 16, 16), 3, 35_000_000)


FACTORED = "aten::linalg_cholesky 21-41 shapes=[[128,16,16],[]]"


@pytest.mark.parametrize(
    "items",
    [
        (MADE, "aten::add 1-2 shapes=[[128,16,16],[128,16,16],[]]", FACTORED),  # noise on a kernel's diagonal
        ("aten::linalg_svd 0-1 shapes=[[128,16,16]]", MADE.replace("0-1", "2-3"), FACTORED),  # of full matrices
    ],
)
def test_matrices_that_may_be_full(items: tuple[str, ...]) -> None:
    assert diagonal_matrices(step(*items)) == ()


def test_one_that_was_made_where_no_shapes_are_known() -> None:
    assert len(diagonal_matrices(step("aten::diag_embed 0-0.1", MADE.replace("0-1", "0.2-1"), FACTORED))) == 1


def test_matrices_of_the_step_before_do_not_matter() -> None:
    drawn = f"2 steps of 100\n2 threads, 4 cores\ncpu  {MADE} | {FACTORED}"
    assert len(diagonal_matrices(facts_of(drawn))) == 1


@pytest.mark.parametrize(
    "made",
    [
        "aten::diag_embed 0-1 shapes=[[16],[],[],[]]",  # as large as a weight may be
        "aten::diag_embed 0-1 shapes=[[128,1],[],[],[]]",  # numbers
        "aten::diagonal 0-1 shapes=[[128,16,16],[],[],[]]",
    ],
)
def test_what_makes_none(made: str) -> None:
    assert diagonal_matrices(step(made, "aten::linalg_cholesky 1-21 shapes=[[128,16,16],[]]")) == ()
