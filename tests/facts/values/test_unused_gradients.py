"""Gradients that backward passes compute and no optimizer uses."""

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.values.known_values import Wasted
from diagnose.facts.values.unneeded_backward import unused_gradients, unused_graphs
from diagnose.synthetic.reading import facts_of
from diagnose.trace.model import AutogradGraph

NODE = '"autograd::engine::evaluate_function: MmBackward0"'
EVALUATED = '"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"'


def backward(start: float, *shapes: str, number: int = 0) -> str:
    """A pass: for each weight a node of 3 ms, numbered from there, and one that adds to its gradient, of 1 ms."""
    synthetic = [f"aten::ones_like {start}-{start + 1}"]
    for k, shape in enumerate(shapes):
        at = start + 1 + 4 * k
        synthetic.append(f"{NODE} {at}-{at + 3} sequence={number + k} | {EVALUATED} {at + 3}-{at + 4}")
        synthetic.append(f"torch::autograd::AccumulateGrad {at + 3}-{at + 4} shapes=[{shape}]")
    return " | ".join(synthetic)


def update(start: float, *shapes: str) -> str:
    """A step of an optimizer, which updates each weight by itself."""
    ops = [f"aten::add_ {start + k}-{start + k + 1} shapes=[{shape},{shape}]" for k, shape in enumerate(shapes)]
    return " | ".join([f'"Optimizer.step#SGD.step" {start}-{start + len(shapes)}', *ops])


def of(*rows: str, optimizer: list[int] | None = None) -> tuple[Wasted, ...]:
    """Two steps, of which the second is used. `optimizer`: which one has the weight of each node, in order."""
    facts = facts_of("\n".join(("2 steps of 100", "2 threads, 4 cores", *(f"cpu  {row}" for row in rows))))
    return unused_gradients(facts if optimizer is None else Facts(replace(facts.rank, graph=graph_of(optimizer))))


def graph_of(optimizer: list[int]) -> AutogradGraph:
    nodes = np.arange(len(optimizer))
    return AutogradGraph(
        names=("MmBackward0", "torch::autograd::AccumulateGrad"),
        name=np.repeat([0, 1], len(nodes)),
        number=np.concatenate((nodes + 500, np.full(len(nodes), -1))),
        uses=nodes,
        used=nodes + len(nodes),
        optimizer=np.concatenate((np.full(len(nodes), -1), optimizer)),
    )


def test_a_net_that_only_the_optimizer_does_not_train() -> None:
    """The head's gradient is used; those of the two weights before it are not."""
    (found,) = of(backward(0, "[4,8]", "[64,8]", "[64,64]"), update(50, "[4,8]"))
    assert (found.times, found.detail, found.work.host_ns) == (4, "2 gradients", 8_000_000)
    assert (found.steps_seen, found.kind, found.doubt) == (1, "", None)


def test_of_micro_batches_each_has_the_gradient_of_its_input() -> None:
    """Two passes before a step: one gradient each, which the script may use itself, as of a single pass."""
    (found,) = of(backward(0, "[4,8]", "[64,8]"), backward(20, "[4,8]", "[64,8]", number=2), update(50, "[4,8]"))
    assert (found.times, found.detail, found.kind) == (4, "2 gradients", "single")
    assert found.doubt is not None


def test_what_comes_before_the_last_gradient_that_is_used_may_be_needed_for_it() -> None:
    assert of(backward(0, "[4,8]", "[64,8]", "[64,64]"), update(50, "[64,64]")) == ()
    (found,) = of(backward(0, "[4,8]", "[64,8]", "[64,64]"), update(50, "[64,8]"))
    assert (found.times, found.detail) == (2, "1 gradient")


def test_lists_of_weights_are_updated_at_once() -> None:
    fused = '"Optimizer.step#SGD.step" 50-60 | aten::_fused_sgd_ 51-59 shapes=[[[4,8],[64,8]],[[4,8],[64,8]]]'
    assert [one.detail for one in of(backward(0, "[4,8]", "[64,8]", "[64,64]"), fused)] == ["1 gradient"]


def test_of_more_weights_than_are_recorded_nothing_is_said() -> None:
    """Lists of more than 30 tensors are recorded empty."""
    fused = '"Optimizer.step#SGD.step" 50-60 | aten::_fused_sgd_ 51-59 shapes=[[],[]] types=["TensorList","TensorList"]'
    with pytest.raises(Missing, match="which weights"):
        of(backward(0, "[4,8]", "[64,8]"), fused)


def test_a_pass_none_of_whose_gradients_is_used_may_feed_copies_of_the_weights() -> None:
    """An optimizer may update one flat tensor for all."""
    with pytest.raises(Missing, match="which weights"):
        of(backward(0, "[4,8]", "[64,8]"), update(50, "[544]"))


def test_gradients_that_another_optimizer_clears_before_it_uses_them() -> None:
    """A critic of 4 x 8 and a generator of 64 x 8, twice: the critic's pass goes on into the generator."""
    critic = (backward(0, "[4,8]", "[64,8]", "[64,8]"), update(20, "[4,8]"))
    generator = (backward(40, "[64,8]", "[64,8]"), update(60, "[64,8]"))
    (found,) = of(*critic, "zero_grad 30-31", *generator)
    assert (found.times, found.detail, found.kind) == (4, "2 gradients", "cleared")
    assert of(*critic, *generator) == ()  # It adds them to its own.


@pytest.mark.parametrize(
    ("optimizer", "gradients"),
    [(None, 0), ([1, 1, 2, 2, 2, 2], 2), ([1, 1, 2, 1, 2, 2], 0), ([1, 1, 0, 0, 2, 2], 0), ([-1] * 6, 0)],
    ids=["unknown", "another's", "its own", "nobody's", "not looked at"],
)
def test_a_weight_as_large_as_an_updated_one_belongs_to_its_optimizer(
    optimizer: list[int] | None, gradients: int
) -> None:
    """Both nets have a bias of 8, and the one of the generator comes last."""
    critic = (backward(0, "[4,8]", "[8]", "[64,8]", "[8]"), update(20, "[4,8]", "[8]"))
    generator = (backward(40, "[64,8]", "[8]", number=4), update(60, "[64,8]", "[8]"))
    found = of(*critic, "zero_grad 30-31", *generator, optimizer=optimizer)
    assert [(one.detail, one.times, one.kind) for one in found] == [("2 gradients", 4, "cleared")] * (gradients > 0)


def test_optimizers_that_step_together_share_a_pass() -> None:
    one_for_both = backward(0, "[4,8]", "[64,8]")
    assert of(one_for_both, update(20, "[4,8]"), update(30, "[64,8]"), "zero_grad 25-26") == ()


def test_passes_after_the_last_step_may_be_for_one_that_was_not_recorded() -> None:
    first_only = " | ".join(f"{item} in 0" for item in update(50, "[4,8]").split(" | "))
    assert of(backward(0, "[4,8]", "[64,8]"), first_only) == ()


@pytest.mark.parametrize("name", ["FSDP::forward", "FullyShardedDataParallel.forward", "c10d::_reduce_scatter_base_"])
def test_sharded_weights_have_other_shapes_than_their_gradients(name: str) -> None:
    with pytest.raises(Missing, match="which sharded gradients"):
        of(backward(0, "[4,8]", "[64,8]"), update(50, "[4,8]"), f'"{name}" 70-71')


def test_what_has_to_be_recorded() -> None:
    with pytest.raises(Missing, match="shapes"):
        of(f"aten::ones_like 0-1 | {NODE} 2-3 sequence=1", '"Optimizer.step#SGD.step" 50-60')
    with pytest.raises(Missing, match="backward passes"):
        of("aten::mm 0-9 shapes=[[4,8],[8,4]]", update(50, "[4,8]"))
    with pytest.raises(Missing, match="Optimizer"):
        of(backward(0, "[4,8]", "[64,8]"))


@pytest.mark.parametrize(
    ("values", "unread"),
    [
        ("aten::ones_like | aten::add_ takes - back | aten::add_", True),
        ("aten::ones_like | aten::add_ takes - back | aten::add_ takes 1", False),  # The script takes its slopes.
        ("aten::ones_like | aten::sin back | aten::add_", False),  # It is not among what was looked at.
    ],
)
def test_whether_anybody_reads_them(values: str, unread: bool) -> None:
    summed = "aten::add_ 8.2-8.8"
    (found,) = of(backward(0, "[4,8]", "[64,8]"), update(50, "[4,8]"), summed + f"\nvalues {values}")
    assert (found.kind, found.doubt is None) == ("single", unread)


def test_nobody_looked_whether_anybody_reads_them() -> None:
    (found,) = of(backward(0, "[4,8]", "[64,8]"), update(50, "[4,8]"))
    assert found.doubt == Missing(
        "whether the script reads the gradient", "Record with this version of diagnose profile."
    )


def test_a_gradient_that_goes_to_another_rank_is_used() -> None:
    """A stage of a pipeline sends on those of its inputs, and may do so without another op."""
    rows = (backward(0, "[4,8]", "[64,8]", "[64,64]"), update(50, "[4,8]"))
    assert [one.detail for one in of(*rows)] == ["2 gradients"]
    with pytest.raises(Missing, match="whether other ranks use the gradients"):
        of(*rows, "c10d::send 30-31 shapes=[[[64,64]]] | c10d::send 31-32 shapes=[[[64,8]]]")
    assert [one.detail for one in of(*rows, "c10d::send 30-31 shapes=[[[4,8]]]")] == ["2 gradients"]


BACKWARD = '"autograd::engine::evaluate_function: MulBackward0"'


def _node(item: str) -> str:
    return f'{item.replace("B ", BACKWARD + " ")} "Fwd thread id"=1'


def wastes(*rows: str) -> tuple[Wasted, ...]:
    """Three steps of 100 ms, of which the last two are used; each row is a step."""
    synthetic = [
        " | ".join(f"{_node(item) if item[0] == 'B' else item} in {step}" for item in row.split(" | "))
        for step, row in enumerate(rows)
    ]
    return unused_graphs(
        facts_of("\n".join(("3 steps of 100", "2 threads, 4 cores", *(f"cpu  {row}" for row in synthetic))))
    )


def test_ops_whose_number_no_backward_op_has() -> None:
    (found,) = wastes(
        "aten::mul 0-9 sequence=0 | B 10-20 sequence=0",
        "aten::mul 0-9 sequence=1 | B 10-20 sequence=1 | aten::mul 30-36 sequence=2 | aten::exp 40-50 sequence=3",
        "aten::mul 0-9 sequence=4 | B 10-20 sequence=4",
    )
    assert (found.times, found.work.host_ns, found.steps_seen) == (1, 8_000_000, 1)
    assert len(found.work.ids) == 2


@pytest.mark.parametrize(
    "row",
    [
        # Ops that make no node carry the number of the next one: the second makes the node of that number.
        "aten::rand 0-5 sequence={0} | aten::mul 6-9 sequence={0} | B 10-20 sequence={0}",
        # An op is used if any op inside is.
        "aten::linear 0-9 sequence={0} | aten::t 1-2 sequence={0} | aten::mm 3-8 sequence={1} | B 10-20 sequence={1}",
        # A node may be run inside another, as of what a checkpoint, or a schedule's own autograd function, runs.
        "aten::mul 0-9 sequence={0} | aten::mul 10-19 sequence={1} | B 20-40 sequence={1} | B 25-30 sequence={0}",
    ],
    ids=["no node", "inside an op", "inside a node"],
)
def test_graphs_that_a_backward_pass_runs(row: str) -> None:
    assert wastes(*(row.format(2 * k, 2 * k + 1) for k in range(3))) == ()


def test_ops_without_gradients_and_those_after_the_last_backward_pass_are_none() -> None:
    found = wastes(
        "aten::mul 0-9 sequence=0 | B 10-20 sequence=0 | aten::mul 30-40",
        "aten::mul 0-9 sequence=1 | B 10-20 sequence=1 | aten::mul 30-40",
        "aten::mul 0-9 sequence=2 | B 10-20 sequence=2 | aten::mul 30-36 sequence=3 | aten::exp 40-50 sequence=4",
    )
    assert found == ()


def test_without_a_backward_pass_nothing_is_known() -> None:
    with pytest.raises(Missing, match="backward passes"):
        wastes("aten::mul 0-9 sequence=0", "aten::mul 0-9 sequence=1", "aten::mul 0-9 sequence=2")


@pytest.mark.parametrize(("shapes", "alike"), [("[[8,4]]", True), ("[[6,4]]", False), ("", False)])
def test_whether_they_are_the_same_as_in_training(shapes: str, alike: bool) -> None:
    """On eight rows as in training, on six, and where only the training's were recorded."""
    given = f" shapes={shapes}" if shapes else ""
    found = wastes(
        *(
            f"aten::mul 0-9 sequence={2 * k} shapes=[[8,4]] | B 10-20 sequence={2 * k}"
            f" | aten::mul 30-36 sequence={2 * k + 1}{given}"
            for k in range(3)
        )
    )
    assert [(one.times, one.kind) for one in found] == [(1, "as in training" if alike else "")]


def test_one_pass_more_of_what_training_runs_once_is_another() -> None:
    found = wastes(
        *(
            f"aten::mul 0-9 sequence={3 * k} shapes=[[8,4]] | B 10-20 sequence={3 * k}"
            f" | aten::mul 30-36 sequence={3 * k + 1} shapes=[[8,4]]"
            f" | aten::mul 40-46 sequence={3 * k + 2} shapes=[[8,4]]"
            for k in range(3)
        )
    )
    assert [one.kind for one in found] == [""]


LATER = "whether a later backward pass uses the graph"


@pytest.mark.parametrize(
    "rows",
    [
        # As in a pipeline whose micro-batches overlap the steps: each runs what the step before it has made.
        (
            "aten::mul 0-9 sequence=0 | aten::mul 30-36 sequence=1 | B 10-20 sequence=0",
            "aten::mul 0-9 sequence=2 | aten::mul 30-36 sequence=3 | B 10-20 sequence=1",
            "aten::mul 0-9 sequence=4 | aten::mul 30-36 sequence=5 | B 10-20 sequence=3",
        ),
        # The first recorded number is 8: of the micro-batches that are made here, others may be run later as well.
        (
            "B 10-20 sequence=5 | aten::mul 30-36 sequence=8",
            "B 10-20 sequence=6 | aten::mul 30-36 sequence=9",
            "B 10-20 sequence=9 | aten::mul 30-36 sequence=10",
        ),
    ],
    ids=["run in a later step", "made before the recording"],
)
def test_a_graph_may_be_of_another_step(rows: tuple[str, ...]) -> None:
    with pytest.raises(Missing, match=LATER):
        wastes(*rows)


def test_without_steps_a_backward_pass_may_come_after_the_recording() -> None:
    """Four micro-batches of GPipe, of which only the last one's backward pass was recorded."""
    synthetic = "2 threads, 4 cores\n" + "\n".join(
        f"cpu  aten::mul {10 * k}-{10 * k + 9} sequence={k}" for k in range(4)
    )
    with pytest.raises(Missing, match=LATER):
        unused_graphs(facts_of(f"{synthetic}\ncpu  {_node('B 40-50 sequence=3')}"))
