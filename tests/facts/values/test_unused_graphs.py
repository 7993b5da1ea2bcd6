"""Ops that are recorded for a backward pass that never comes."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.values.unneeded_backward import unused_graphs
from diagnose.facts.values.wasted_entries import Wasted
from diagnose.synthetic.reading import facts_of

BACKWARD = '"autograd::engine::evaluate_function: MulBackward0"'


def _node(item: str) -> str:
    return f'{item.replace("B ", BACKWARD + " ")} "Fwd thread id"=1'


def of(*rows: str) -> tuple[Wasted, ...]:
    """Three steps of 100 ms, of which the last two are used; each row is a step."""
    synthetic = [
        " | ".join(f"{_node(item) if item[0] == 'B' else item} in {step}" for item in row.split(" | "))
        for step, row in enumerate(rows)
    ]
    return unused_graphs(
        facts_of("\n".join(("3 steps of 100", "2 threads, 4 cores", *(f"cpu  {row}" for row in synthetic))))
    )


def test_ops_whose_number_no_backward_op_has() -> None:
    (found,) = of(
        "aten::mul 0-9 sequence=0 | B 10-20 sequence=0",
        "aten::mul 0-9 sequence=1 | B 10-20 sequence=1 | aten::mul 30-36 sequence=2 | aten::exp 40-50 sequence=3",
        "aten::mul 0-9 sequence=4 | B 10-20 sequence=4",
    )
    assert (found.times, found.work.host_ns, found.steps_seen) == (1, 8_000_000, 1)
    assert len(found.work.ids) == 2


def test_ops_that_make_no_node_carry_the_number_of_the_next_one() -> None:
    """The first op of each step needs no gradient: the second makes the node of that number."""
    found = of(*(f"aten::rand 0-5 sequence={k} | aten::mul 6-9 sequence={k} | B 10-20 sequence={k}" for k in range(3)))
    assert found == ()


def test_an_op_is_used_if_any_op_inside_is() -> None:
    found = of(
        *(
            f"aten::linear 0-9 sequence={2 * k} | aten::t 1-2 sequence={2 * k} | aten::mm 3-8 sequence={2 * k + 1}"
            f" | B 10-20 sequence={2 * k + 1}"
            for k in range(3)
        )
    )
    assert found == ()


def test_ops_without_gradients_and_those_after_the_last_backward_pass_are_none() -> None:
    found = of(
        "aten::mul 0-9 sequence=0 | B 10-20 sequence=0 | aten::mul 30-40",
        "aten::mul 0-9 sequence=1 | B 10-20 sequence=1 | aten::mul 30-40",
        "aten::mul 0-9 sequence=2 | B 10-20 sequence=2 | aten::mul 30-36 sequence=3 | aten::exp 40-50 sequence=4",
    )
    assert found == ()


def test_without_a_backward_pass_nothing_is_known() -> None:
    with pytest.raises(Missing, match="backward passes"):
        of("aten::mul 0-9 sequence=0", "aten::mul 0-9 sequence=1", "aten::mul 0-9 sequence=2")


@pytest.mark.parametrize(("shapes", "alike"), [("[[8,4]]", True), ("[[6,4]]", False), ("", False)])
def test_whether_they_are_the_same_as_in_training(shapes: str, alike: bool) -> None:
    """On eight rows as in training, on six, and where only the training's were recorded."""
    given = f" shapes={shapes}" if shapes else ""
    found = of(
        *(
            f"aten::mul 0-9 sequence={2 * k} shapes=[[8,4]] | B 10-20 sequence={2 * k}"
            f" | aten::mul 30-36 sequence={2 * k + 1}{given}"
            for k in range(3)
        )
    )
    assert [(one.times, one.kind) for one in found] == [(1, "as in training" if alike else "")]


def test_one_pass_more_of_what_training_runs_once_is_another() -> None:
    found = of(
        *(
            f"aten::mul 0-9 sequence={3 * k} shapes=[[8,4]] | B 10-20 sequence={3 * k}"
            f" | aten::mul 30-36 sequence={3 * k + 1} shapes=[[8,4]]"
            f" | aten::mul 40-46 sequence={3 * k + 2} shapes=[[8,4]]"
            for k in range(3)
        )
    )
    assert [one.kind for one in found] == [""]


LATER = "which graphs no backward pass runs later"


def test_a_graph_may_be_run_in_a_later_step() -> None:
    """As in a pipeline whose micro-batches overlap the steps: each runs what the step before it has made."""
    with pytest.raises(Missing, match=LATER):
        of(
            "aten::mul 0-9 sequence=0 | aten::mul 30-36 sequence=1 | B 10-20 sequence=0",
            "aten::mul 0-9 sequence=2 | aten::mul 30-36 sequence=3 | B 10-20 sequence=1",
            "aten::mul 0-9 sequence=4 | aten::mul 30-36 sequence=5 | B 10-20 sequence=3",
        )


def test_a_graph_may_have_been_made_before_the_recording() -> None:
    """The first recorded number is 8: of the micro-batches that are made here, others may be run later as well."""
    with pytest.raises(Missing, match=LATER):
        of(
            "B 10-20 sequence=5 | aten::mul 30-36 sequence=8",
            "B 10-20 sequence=6 | aten::mul 30-36 sequence=9",
            "B 10-20 sequence=9 | aten::mul 30-36 sequence=10",
        )


def test_without_steps_a_backward_pass_may_come_after_the_recording() -> None:
    """Four micro-batches of GPipe, of which only the last one's backward pass was recorded."""
    synthetic = "2 threads, 4 cores\n" + "\n".join(
        f"cpu  aten::mul {10 * k}-{10 * k + 9} sequence={k}" for k in range(4)
    )
    with pytest.raises(Missing, match=LATER):
        unused_graphs(facts_of(f"{synthetic}\ncpu  {_node('B 40-50 sequence=3')}"))


def test_a_node_may_be_run_inside_another() -> None:
    """As of what a checkpoint, or a schedule's own autograd function, runs in its backward pass."""
    found = of(
        *(
            f"aten::mul 0-9 sequence={2 * k} | aten::mul 10-19 sequence={2 * k + 1} | B 20-40 sequence={2 * k + 1}"
            f" | B 25-30 sequence={2 * k}"
            for k in range(3)
        )
    )
    assert found == ()
