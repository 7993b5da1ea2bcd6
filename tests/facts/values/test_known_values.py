"""What is computed that is known already, and which recorded ops that are."""

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.seen_ops import seen_ops
from diagnose.facts.values.known_values import Wasted, constants, duplicates, frozen_rows, sparse_products
from diagnose.synthetic.reading import facts_of

NODE = "autograd::engine::evaluate_function:"
CPU = "3 steps of 100\n1 threads, 2 cores\n"


def test_ops_are_found_by_names_and_order_within_those_that_the_dispatcher_does_not_see() -> None:
    facts = facts_of(
        CPU + "values aten::addmm | aten::mul | aten::addmm as 0\n"
        "cpu  aten::linear 0-10 | aten::addmm 1-9 | aten::mul 10-12 | aten::linear 20-30 | aten::addmm 21-28"
    )
    seen, spans = seen_ops(facts), facts.rank.spans
    assert spans["name"].iloc[seen.ids.ravel()].tolist() == ["aten::addmm", "aten::mul", "aten::addmm"] * 2
    assert (spans["dur_ns"].iloc[seen.ids[0]] / 1e6).tolist() == [8, 2, 7]
    assert seen.first.tolist() == [-1, -1, 0]


def test_gradients_are_added_up_in_place_where_nobody_looks() -> None:
    """The dispatcher's mode has an `add` that no recording has; what comes after it is found all the same."""
    names = ["mm", "exp", "sin", "cos", "tanh", "abs"] * 2
    ops = " | ".join(f"aten::{name} {at}-{at + 1}" for at, name in enumerate(names))
    looked = " | ".join(f"aten::{name}" for name in ["mm", "exp", "sin", "add", "cos", "tanh", "abs"] * 2)
    seen = seen_ops(facts_of(f"{CPU}values {looked}\ncpu  {ops}"))
    found = (seen.ids >= 0).all(axis=0).tolist()
    assert [name for name, one in zip(seen.names, found, strict=True) if not one] == ["aten::add"] * 2


def test_other_steps_than_those_recorded_tell_nothing() -> None:
    synthetic = "cpu  aten::mm 0-10 | aten::exp 10-20"
    with pytest.raises(Missing, match="recompute known results"):
        seen_ops(facts_of(f"{CPU}values aten::sin | aten::cos | aten::mm\n{synthetic}"))
    with pytest.raises(Missing, match="recompute known results"):
        seen_ops(facts_of(CPU + synthetic))


def test_rounds_that_repeat_another_are_rows_of_one_kind() -> None:
    """The second and third round repeat the first; 1 ms lies between their two ops."""
    looked = "aten::mm | aten::exp | aten::mm as 0 | aten::exp as 1 | aten::mm as 0 | aten::exp as 1 | aten::sum"
    rounds = " | ".join(f"aten::mm {at}-{at + 8} | aten::exp {at + 9}-{at + 11}" for at in (0, 20, 40))
    (found,) = duplicates(facts_of(f"{CPU}values {looked}\ncpu  {rounds} | aten::sum 60-90"))
    assert (found.ops, found.times, found.steps_seen) == (("aten::mm", "aten::exp"), 2, 2)
    assert (found.longest_ns, found.between.total) == (20_000_000, 2 * 2 * 1_000_000)


def test_what_comes_back_to_other_values_is_no_row_any_more() -> None:
    looked = "aten::mm | aten::exp takes 0 | aten::mm as 0 | aten::sin takes 2 | aten::exp as 1"
    ops = "aten::mm 0-8 | aten::exp 8-10 | aten::mm 10-18 | aten::sin 18-20 | aten::exp 20-22"
    found = duplicates(facts_of(f"{CPU}values {looked}\ncpu  {ops}"))
    assert [(one.ops, one.longest_ns) for one in found] == [(("aten::mm",), 8_000_000), (("aten::exp",), 2_000_000)]


@pytest.mark.parametrize(("second_pass", "back_ns"), [("52-57", 5_000_000), ("72-77", 0)])
def test_one_backward_is_enough_if_both_go_through_it_in_one_pass(second_pass: str, back_ns: int) -> None:
    """In another pass, which begins with an op of its own, the repetition's backward pass is needed for itself."""
    facts = facts_of(f"""
        3 steps of 100
        1 threads, 2 cores
        values aten::mm | aten::mm as 0
        cpu  aten::mm 0-8 sequence=1 | aten::mm 10-18 sequence=2
        cpu  aten::ones_like 40-41 sequence=3
        cpu  "{NODE} MmBackward0" 45-50 sequence=1 "Fwd thread id"=1
        cpu  "{NODE} MmBackward0" {second_pass} sequence=2 "Fwd thread id"=1
        cpu  aten::ones_like 60-61 sequence=4
        cpu  "{NODE} SumBackward0" 62-63 sequence=3 "Fwd thread id"=1
    """)
    (found,) = duplicates(facts)
    assert (found.work.host_ns, found.back.host_ns) == (8_000_000, back_ns)


@pytest.mark.parametrize(("unlike", "found"), [("3,4", [True, True, False, False]), ("2,3,4", None)])
def test_half_of_the_time_has_to_be_that_of_steps_with_the_same_ops(unlike: str, found: list[bool] | None) -> None:
    """The first of five steps is not used."""
    synthetic = f"aten::mm 0-10 | aten::exp 10-20 not in {unlike} | aten::sin 10-20 in {unlike}"
    facts = facts_of(f"5 steps of 100\n1 threads, 2 cores\nvalues aten::mm | aten::exp\ncpu  {synthetic}")
    if found is None:
        with pytest.raises(Missing, match="steps are alike"):
            seen_ops(facts)
    else:
        assert (seen_ops(facts).ids >= 0).all(axis=1).tolist() == found


def test_a_step_counts_if_the_ops_of_all_threads_are_found() -> None:
    """The second thread's `exp` and `sin` are not in the recording."""
    facts = facts_of(f"{CPU}values aten::mm | aten::exp | aten::sin\ncpu  aten::mm 0-10")
    assert facts.rank.values is not None
    looked = replace(facts.rank.values, thread=np.array([0, 1, 1] * 2))
    with pytest.raises(Missing, match="steps are alike"):
        seen_ops(Facts(replace(facts.rank, values=looked)))


def test_what_autograd_repeats_by_itself_is_nobody_s_fault() -> None:
    """Unless it is part of what is called again: the second row has an op that a pass does not run."""
    looked = "aten::eq back | aten::eq as 0 back | aten::mm | aten::exp | aten::eq as 0 back | aten::exp as 3"
    ops = " | ".join(f"{one.split()[0]} {10 * at}-{10 * at + 9}" for at, one in enumerate(looked.split(" | ")))
    (found,) = duplicates(facts_of(f"{CPU}values {looked}\ncpu  {ops}"))
    assert found.ops == ("aten::eq", "aten::exp")


def test_what_is_the_same_in_each_step() -> None:
    looked = "aten::outer always | aten::sin takes 0 always | aten::sin as 1 always | aten::mm takes 1"
    ops = "aten::outer 0-10 | aten::sin 10-20 | aten::sin 20-30 | aten::mm 30-40"
    facts = facts_of(f"{CPU}values {looked}\ncpu  {ops}")
    (found,) = constants(facts)
    assert (found.ops, found.longest_ns) == (("aten::outer", "aten::sin"), 20_000_000)
    (again,) = duplicates(facts)
    assert again.longest_ns == 10_000_000


@pytest.mark.parametrize(
    ("begin", "end", "of_batch"),
    [
        ("aten::arange always", "aten::mm", False),
        ("aten::abs takes - always", "aten::mm", True),
        ("aten::abs takes - always", "aten::randn", False),
    ],
)
def test_what_comes_from_elsewhere_may_be_the_one_batch(begin: str, end: str, of_batch: bool) -> None:
    """Unless steps draw numbers: then their batches differ."""
    looked = f"{begin} | aten::sin takes 0 always | {end}"
    ops = " | ".join(f"{one.split()[0]} {10 * at}-{10 * at + 10}" for at, one in enumerate(looked.split(" | ")))
    (found,) = constants(facts_of(f"{CPU}values {looked}\ncpu  {ops}"))
    assert (found.longest_ns, found.doubt is not None) == (20_000_000, of_batch)


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
