"""Matrices of which nearly all is zero, that are made into factors again, or that are a column times a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.values.known_values import repeated_factors, separable_windows, sparse_products
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
    drawn = "cpu  aten::convolution 0-20"
    assert sparse_products(facts_of(f"{STEPS}values aten::convolution sparse 992\n{drawn}")) == ()


def test_lookups_are_told_elsewhere() -> None:
    looked_up = facts_of(
        f"{STEPS}values aten::one_hot | aten::mm takes 0 sparse 998\n"
        "cpu  aten::one_hot 0-10 shapes=[[256],[]] | aten::fill_ 1-9 shapes=[[256,8000],[]]\n"
        "cpu  aten::to 10-20 shapes=[[256,8000],[]] | aten::matmul 20-40 shapes=[[256,8000],[8000,128]]\n"
        "cpu  aten::mm 21-39"
    )
    assert sparse_products(looked_up) == ()


def test_what_is_known_already_is_told_elsewhere() -> None:
    drawn = "aten::mul\ncpu  aten::mm 0-10 | aten::mm 10-30 | aten::mul 30-40"
    constant = facts_of(f"{STEPS}values aten::mm always sparse 990 | aten::mm | {drawn}")
    repeated = facts_of(f"{STEPS}values aten::mm sparse 990 | aten::mm as 0 sparse 990 | {drawn}")
    assert sparse_products(constant) == ()
    assert [one.times for one in sparse_products(repeated)] == [1]


def test_factors_of_a_matrix_that_never_changes() -> None:
    (found,) = repeated_factors(
        facts_of(
            f"{STEPS}values aten::_linalg_solve_ex matrix 0 | aten::_linalg_solve_ex | aten::_linalg_solve_ex matrix 0"
            "\n"
            "cpu  aten::_linalg_solve_ex 0-10 | aten::linalg_lu_factor_ex 1-8\n"
            "cpu  aten::_linalg_solve_ex 20-30 | aten::linalg_lu_factor_ex 21-28\n"
            "cpu  aten::_linalg_solve_ex 40-50 | aten::linalg_lu_factor_ex 41-47 | aten::linalg_lu_solve 47-50"
        )
    )
    assert (found.times, found.detail, found.steps_seen) == (2, "in the step before", 3)
    assert found.work.host_ns == 13_000_000


def test_each_matrix_is_solved_with_once() -> None:
    solved = "cpu  aten::_linalg_solve_ex 0-10 | aten::linalg_lu_factor_ex 1-8"
    assert repeated_factors(facts_of(f"{STEPS}values aten::_linalg_solve_ex\n{solved}")) == ()


def test_windows_by_their_size() -> None:
    convolution = "aten::convolution {} shapes=[[4,1,48,48],[1,1,{},{}]]"
    found = separable_windows(
        facts_of(
            f"{STEPS}values {' | '.join(['aten::convolution separable 1'] * 3)} | aten::convolution\n"
            f"cpu  {convolution.format('0-10', 11, 11)} | {convolution.format('10-20', 5, 7)}"
            f" | {convolution.format('20-40', 11, 11)} | {convolution.format('40-90', 11, 11)}"
        )
    )
    assert [(one.detail, one.times, one.work.host_ns) for one in found] == [
        ("11 by 11", 2, 30_000_000),
        ("5 by 7", 1, 10_000_000),
    ]


def test_without_shapes_no_window_is_known() -> None:
    assert (
        separable_windows(facts_of(f"{STEPS}values aten::convolution separable 1\ncpu  aten::convolution 0-10")) == ()
    )


def test_nobody_looked_at_windows() -> None:
    rank = facts_of(f"{STEPS}values aten::mm\ncpu  aten::mm 0-10").rank
    assert rank.values is not None
    assert rank.values.rows is not None
    older = replace(rank.values, rows=replace(rank.values.rows, separable=None))
    with pytest.raises(Missing, match="this version"):
        separable_windows(Facts(replace(rank, values=older)))


def test_nobody_counted() -> None:
    for fact in (repeated_factors, separable_windows, sparse_products):
        with pytest.raises(Missing, match="diagnose profile"):
            fact(facts_of(f"{STEPS}cpu  aten::mm 0-10"))
