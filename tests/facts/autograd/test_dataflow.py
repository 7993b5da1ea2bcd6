"""Which ops take what other ops made."""

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.facts.autograd.backward import dataflow
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.host.loops import loops
from diagnose.synthetic.reading import facts_of
from diagnose.trace.model import AutogradGraph

NODE = "autograd::engine::evaluate_function:"
ADDS = "torch::autograd::AccumulateGrad"

Nodes = list[tuple[str, list[int]]]  # Of each node its kind, and those that it takes.


def graph_of(nodes: Nodes, start: int = 700) -> AutogradGraph:
    """The nodes, made in this order, and one that adds to the gradient of a weight which all of them use."""
    names = [*sorted({kind for kind, _ in nodes}), ADDS]
    edges = [(at, other) for at, (_, takes) in enumerate(nodes) for other in [*takes, len(nodes)]]
    backwards = edges[::-1]  # As the graph is walked from its end.
    return AutogradGraph(
        names=tuple(names),
        name=np.array([names.index(kind) for kind, _ in nodes] + [len(names) - 1], dtype=np.int64),
        number=np.array([*range(start, start + len(nodes)), -1], dtype=np.int64),
        uses=np.array([one for one, _ in backwards], dtype=np.int64),
        used=np.array([one for _, one in backwards], dtype=np.int64),
        optimizer=np.full(len(nodes) + 1, -1, dtype=np.int64),
    )


def facts_with(nodes: Nodes, graph: AutogradGraph | None, steps: int = 3) -> Facts:
    """A recording of steps that make these nodes in ops of 1 ms and go back through them."""
    lines = [f"{steps} steps of 100", "1 threads, 2 cores"]
    for step in range(steps):
        for at, (kind, _) in enumerate(nodes):
            number = 100 * (step + 1) + at
            name = f"aten::{kind.partition('Backward')[0].lower()}"
            lines.append(f"cpu  {name} {at + 1}-{at + 2} sequence={number} in {step}")
            back = 90 - at
            lines.append(f'cpu  "{NODE} {kind}" {back - 1}-{back} sequence={number} "Fwd thread id"=1 in {step}')
    facts = facts_of("\n".join(lines))
    return Facts(replace(facts.rank, graph=graph))


ROUNDS = 6


def in_turn() -> Nodes:
    """A product and a tanh in each round, of what the round before made."""
    return [("MmBackward0" if at % 2 == 0 else "TanhBackward0", [at - 1] if at else []) for at in range(2 * ROUNDS)]


def apart() -> Nodes:
    """Each round takes a piece of something, which is the first node, and its result is added to that of the others."""
    nodes: Nodes = [("ReluBackward0", [])]
    for one in range(ROUNDS):
        at, total = len(nodes), [len(nodes) - 1] if one else []
        nodes += [("SelectBackward0", [0]), ("MmBackward0", [at]), ("AddBackward0", [at + 1, *total])]
    return nodes


def test_rounds_that_need_the_one_before() -> None:
    flow = dataflow(facts_with(in_turn(), graph_of(in_turn())))
    assert flow.first.tolist() == [200, 300]
    assert flow.needs(0, [200, 202, 204, 206]) == 1.0
    assert flow.needs(1, [300, 302, 304, 306]) == 1.0


def test_rounds_whose_results_are_added_up() -> None:
    """The sum needs the round before; what is summed does not."""
    flow = dataflow(facts_with(apart(), graph_of(apart())))
    assert flow.needs(0, [201, 204, 207, 210]) == 0.0


def test_a_part_of_a_round_needs_the_one_before() -> None:
    """The tanh of the sum of a product of its own, and of what the round before gave."""
    nodes: Nodes = []
    for one in range(ROUNDS):
        at, memory = len(nodes), [len(nodes) - 1] if one else []
        nodes += [("MmBackward0", []), ("AddBackward0", [at, *memory]), ("TanhBackward0", [at + 1])]
    flow = dataflow(facts_with(nodes, graph_of(nodes)))
    assert flow.needs(0, [200, 203, 206, 209]) == 0.5


@pytest.mark.parametrize(("step", "begins"), [(-1, [200, 202, 204]), (0, [200, 202]), (0, []), (0, [200, 204, 202])])
def test_what_is_not_known_of_rounds(step: int, begins: list[int]) -> None:
    assert dataflow(facts_with(in_turn(), graph_of(in_turn()))).needs(step, begins) is None


def test_rounds_that_compute_nothing() -> None:
    nodes: Nodes = [("SelectBackward0", [0] if at else []) for at in range(8)]
    assert dataflow(facts_with(nodes, graph_of(nodes))).needs(0, [200, 202, 204, 206]) is None


def test_nobody_looked() -> None:
    with pytest.raises(Missing, match="data flow between ops"):
        dataflow(facts_with(in_turn(), None))


@pytest.mark.parametrize(
    "other",
    [
        in_turn()[:-2],
        [*in_turn(), ("MmBackward0", [])],
        [("ReluBackward0", takes) if kind == "TanhBackward0" else (kind, takes) for kind, takes in in_turn()],
        [],
    ],
    ids=["fewer", "more", "others", "none"],
)
def test_a_step_that_is_not_like_the_recorded_ones(other: Nodes) -> None:
    with pytest.raises(Missing, match="data flow between ops"):
        dataflow(facts_with(in_turn(), graph_of(other)))


@pytest.mark.parametrize(("nodes", "share"), [(in_turn(), 1.0), (apart(), 0.0)])
def test_loops_know_it(nodes: Nodes, share: float) -> None:
    known, unknown = (loops(facts_with(nodes, graph))[0] for graph in (graph_of(nodes), None))
    assert (known.in_need, unknown.in_need) == (share, None)


def test_what_is_left_of_rounds_that_stay_apart() -> None:
    """Of a round of two ops nothing goes: a product, and one op for the rest; half if that is fused."""
    (loop,) = loops(facts_with(in_turn(), graph_of(in_turn())))
    assert (loop.ops, loop.rounds, loop.in_turn_left) == (("aten::mm", "aten::tanh"), ROUNDS, 1.0)
    fixed_share = (1 - loop.left) / (1 - 1 / ROUNDS)
    assert loop.in_turn_least == pytest.approx(1 - fixed_share / 2)
