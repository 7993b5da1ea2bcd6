"""Which nodes backward passes run."""

import pytest

from diagnose.facts.autograd.backward import backward_nodes, backward_ops
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.spans import host_spans
from diagnose.synthetic.reading import facts_of
from diagnose.trace.enums import SpanKind

NODE = '"autograd::engine::evaluate_function: MmBackward0"'
ADD = '"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"'


def step(*items: str) -> Facts:
    """One step of 100 ms; `N` is a node of the backward pass, `A` one that adds to a gradient."""
    items = tuple(f'{item} "Fwd thread id"=1' if item[0] == "N" and "Fwd" not in item else item for item in items)
    synthetic = " | ".join(items).replace("N ", f"{NODE} ").replace("A ", f"{ADD} ")
    return facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {synthetic}")


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


def test_without_a_backward_pass_nothing_is_known() -> None:
    with pytest.raises(Missing, match="backward passes"):
        backward_nodes(step("aten::mul 0-9 sequence=0"))


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
