"""Which nodes backward passes run, and which they run again."""

from __future__ import annotations

import pytest

from diagnose.facts.autograd.backward import backward_nodes, backward_ops
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.spans import host_spans
from diagnose.facts.values.ledger import Wasted
from diagnose.facts.values.unneeded_backward import repeated_backward
from diagnose.synthetic.reading import facts_of
from diagnose.trace.enums import SpanKind

NODE = '"autograd::engine::evaluate_function: MmBackward0"'
ADD = '"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"'


def step(*items: str) -> Facts:
    """One step of 100 ms; `N` is a node of the backward pass, `A` one that adds to a gradient."""
    items = tuple(f'{item} "Fwd thread id"=1' if item[0] == "N" and "Fwd" not in item else item for item in items)
    drawn = " | ".join(items).replace("N ", f"{NODE} ").replace("A ", f"{ADD} ")
    return facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {drawn}")


def again(*items: str) -> tuple[Wasted, ...]:
    return repeated_backward(step(*items))


FORWARD = "aten::ones_like 0-1"
FIRST = ("N 2-6 sequence=9", "N 7-17 sequence=5", "A 17-18")
SECOND = ("aten::ones_like 20-21", "N 22-26 sequence=8", "N 27-37 sequence=5", "A 37-38")


def test_passes_are_told_apart_by_what_the_main_thread_does_between_them() -> None:
    found = backward_nodes(step(FORWARD, *FIRST, *SECOND))
    assert found.passed.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.adds.tolist() == [False, False, True] * 2
    assert found.first.tolist() == [0, 3]


def test_ops_inside_a_node_are_part_of_its_pass() -> None:
    found = backward_nodes(step(FORWARD, "N 2-6 sequence=9", "aten::mm 3-5", "N 7-17 sequence=5"))
    assert found.passed.tolist() == [0, 0]


def test_nodes_that_an_earlier_pass_ran() -> None:
    """The second pass has a node of its own, and one that the first had run, with the gradient after it."""
    (found,) = again(FORWARD, *FIRST, *SECOND)
    assert (found.times, found.work.host_ns, found.steps_seen) == (2, 11_000_000, 1)


def test_a_node_of_another_thread_may_have_the_same_number() -> None:
    second = tuple(f'{item} "Fwd thread id"=2' if item[0] == "N" else item for item in SECOND)
    assert again(FORWARD, *FIRST, *second) == ()


@pytest.mark.parametrize("between", ["zero_grad 18.5-19", '"Optimizer.step#SGD.step" 18.5-19'])
def test_gradients_that_were_used_or_cleared_in_between_are_no_sum(between: str) -> None:
    assert again(FORWARD, *FIRST, between, *SECOND) == ()


def test_passes_that_add_to_no_gradient_are_asked_for_by_hand() -> None:
    """As torch.autograd.grad does; either may."""
    bare = [item for item in FIRST if not item.startswith("A")]
    assert again(FORWARD, *bare, *SECOND) == ()
    assert again(FORWARD, *FIRST, *(item for item in SECOND if not item.startswith("A"))) == ()


def test_a_pass_that_makes_a_graph_is_gone_through_again_on_purpose() -> None:
    """A penalty on gradients: ops inside the first pass's nodes make nodes of their own."""
    inside = 'aten::mm 8-16 sequence=12 "Fwd thread id"=0'
    assert again(FORWARD, *FIRST, inside, *SECOND) == ()
    assert [one.times for one in again(FORWARD, *FIRST, "aten::mm 8-16", *SECOND)] == [2]


def test_work_of_a_device_counts_where_it_was_launched() -> None:
    (found,) = repeated_backward(
        facts_of(
            f"""
            1 steps of 100
            cpu  aten::ones_like 0-1 | aten::ones_like 20-21
            cpu autograd  {NODE} 2-3 sequence=5 "Fwd thread id"=1 | {ADD} 3-4
            cpu autograd  {NODE} 22-23 sequence=5 "Fwd thread id"=1 | {ADD} 23-24
            gpu  sgemm 5-15 @2.5 from autograd | reduce 15-16 @3.5 from autograd
            gpu  sgemm 25-35 @22.5 from autograd | reduce 35-36 @23.5 from autograd
            """
        )
    )
    assert (found.times, found.work.host_ns, found.work.device_ns) == (2, 2_000_000, 11_000_000)


def test_nodes_without_numbers_cannot_be_told_apart() -> None:
    with pytest.raises(Missing, match="numbers"):
        again(FORWARD, "N 2-6", "A 6-7", "aten::ones_like 20-21", "N 22-26", "A 26-27")


def test_without_a_backward_pass_nothing_is_known() -> None:
    with pytest.raises(Missing, match="backward passes"):
        again("aten::mul 0-9 sequence=0")


def test_an_op_has_made_the_nodes_from_its_number_to_that_of_the_op_after_it() -> None:
    """The first op makes none, the second two, of which the inner op makes one."""
    facts = step(
        "aten::sub 0-4 sequence=7",
        "aten::linear 5-9 sequence=7",
        "aten::addmm 7-8 sequence=8",
        "aten::relu 10-14 sequence=9",
        "N 20-24 sequence=9",
        "N 25-29 sequence=8",
        "N 30-34 sequence=7",
    )

    def numbers(*names: str) -> list[int]:
        ops = host_spans(facts, SpanKind.OP, named=lambda name: name in names)
        return sorted(facts.rank.ops["sequence"].loc[backward_ops(facts, ops)].tolist())

    assert numbers("aten::sub") == []
    assert numbers("aten::linear") == [7, 8]
    assert numbers("aten::relu") == [9]
    assert numbers("aten::sub", "aten::linear", "aten::relu") == [7, 8, 9]
