"""Which ops take what other ops made? From autograd's graph of one step, which `diagnose profile` looks at.

The graph is of a step after the recording. Its nodes are told to be those of a recorded step by their order, if the
two have nodes of the same kinds in the same order.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from diagnose.facts.autograd.backward import BackwardNodes, backward_nodes
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.inputs import BACKWARD
from diagnose.facts.core.spans import used_step
from diagnose.facts.core.steps import steps
from diagnose.trace.intervals import IntArray

ALIKE = 0.98  # Share of the nodes that have to be of the same kind in their place (our choice).
MOST_PAIRS = 8  # Rounds that are compared with those before them: others are like them (our choice).

_NOTHING_NEW = (
    *("Add", "Cat", "Stack", "Clone", "Copy", "ToCopy", "IndexPut", "torch::autograd::CopySlices"),
    *("Select", "Slice", "Narrow", "Index", "Unbind", "Split", "SplitWithSizes", "Chunk", "Diagonal", "AsStrided"),
    *("View", "UnsafeView", "Reshape", "ReshapeAlias", "T", "Transpose", "Permute", "Expand", "Squeeze", "Unsqueeze"),
)
"""Nodes of ops that collect or cut out: a sum of what rounds give needs the round before, what is summed does not."""


class Dataflow(Struct, frozen=True):
    """Autograd's graph, with its nodes in the order in which ops made them. Numbers are from 0 for the first of a step.

    Nodes that add to gradients are left out. Arrays of shape (nodes,), but for the first two.
    """

    first: IntArray
    """The number that the first node of each used step has in the recording; -1 if that step is not like the graph's.
    Shape (steps,)."""
    takes: tuple[IntArray, ...]  # Of each node the positions of those whose results its op took.
    number: IntArray
    computes: IntArray  # 1 where its op makes something new, 0 where it collects or cuts out what is there.

    def needs(self, step: int, begins: Sequence[int]) -> float | None:
        """Of what rounds in a row compute the share that needs the round before; None if that is not known.

        `step` is the position of the used step, `begins` are the numbers of the first op of each round.
        """
        if step < 0 or self.first[step] < 0 or len(begins) < 3 or (np.diff(begins) < 0).any():
            return None
        edges = np.searchsorted(self.number, np.array(begins) - self.first[step]).tolist()
        pairs = list(zip(edges, edges[1:], edges[2:], strict=False))[:MOST_PAIRS]
        found = [self._needs(*pair) for pair in pairs]
        computing = sum(many for _, many in found)
        return sum(few for few, _ in found) / computing if computing else None

    def _needs(self, before: int, begin: int, end: int) -> tuple[int, int]:
        """How many of the nodes in [begin, end) that compute need one in [before, begin), and how many compute."""
        needy = np.zeros(end - before, dtype=bool)
        needy[: begin - before] = True
        for at in range(begin, end):  # What an op takes was made before it.
            needy[at - before] = any(before <= one < at and needy[one - before] for one in self.takes[at].tolist())
        computes = self.computes[begin:end] == 1
        return int(needy[begin - before :][computes].sum()), int(computes.sum())


@fact
def dataflow(facts: Facts) -> Dataflow:
    """Raises Missing if nobody looked at the graph, if no recorded step is like it, and like `backward_nodes`."""
    graph = facts.rank.graph
    if graph is None:
        raise Missing("data flow between ops", "Record with this version of diagnose profile.")
    order = np.argsort(graph.number, kind="stable")
    order = order[graph.number[order] >= 0]
    place = np.full(len(graph.number) + 1, -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    number = graph.number[order]
    number = number - number[0] if len(number) else number
    kinds = [graph.names[one] for one in graph.name[order].tolist()]
    by_node = np.argsort(place[graph.uses], kind="stable")
    uses, used = place[graph.uses][by_node], place[graph.used][by_node]
    known = (uses >= 0) & (used >= 0)
    takes = np.split(used[known], np.searchsorted(uses[known], np.arange(1, len(order)))) if len(order) else []
    first = _first_numbers(facts, number, kinds)
    if (first < 0).all():
        raise Missing("data flow between ops", "Record steps that run the same ops.")
    new = [kind.partition("Backward")[0] not in _NOTHING_NEW for kind in kinds]
    return Dataflow(first=first, takes=tuple(takes), number=number, computes=np.array(new, dtype=np.int64))


def optimizer_of(facts: Facts, nodes: BackwardNodes) -> IntArray:
    """Of each node that adds to the gradient of a weight which optimizer has it, as in `AutogradGraph.optimizer`.

    The engine runs it as soon as the last node that leads to it has run. -1 where it is not known.
    """
    found, graph, flow = np.full(len(nodes.adds), -1, dtype=np.int64), facts.rank.graph, optional(dataflow, facts)
    if graph is None or flow is None:
        return found
    adds = graph.optimizer[graph.used] >= 0
    least = int(graph.number[graph.number >= 0].min())
    leads: dict[int, set[int]] = {}
    for uses, used in zip(graph.uses[adds].tolist(), graph.used[adds].tolist(), strict=True):
        leads.setdefault(int(graph.number[uses]) - least, set()).add(int(graph.optimizer[used]))
    order, step = np.arange(len(found)), used_step(facts, nodes.spans.ids)
    before = np.maximum.accumulate(np.where(nodes.key >= 0, order, -1))
    recorded = facts.rank.ops["sequence"].reindex(nodes.spans.ids, fill_value=-1).to_numpy().astype(np.int64)
    known = nodes.adds & (before >= 0) & (nodes.passed[before] == nodes.passed) & (step >= 0)
    for at in np.flatnonzero(known).tolist():
        some = leads.get(int(recorded[before[at]] - flow.first[step[at]]), set())
        if flow.first[step[at]] >= 0 and len(some) == 1:
            (found[at],) = some
    return found


def _first_numbers(facts: Facts, number: IntArray, kinds: list[str]) -> IntArray:
    """Of each used step the number of its first node; -1 where its nodes are not like those of the graph."""
    nodes = backward_nodes(facts)
    mine = nodes.spans.where(nodes.key >= 0)
    recorded = facts.rank.ops["sequence"].reindex(mine.ids, fill_value=-1).to_numpy().astype(np.int64)
    names = facts.rank.spans["name"].iloc[mine.ids].astype(str).str.removeprefix(f"{BACKWARD}: ").to_list()
    step = used_step(facts, mine.ids)
    wanted = set(zip(number.tolist(), kinds, strict=True))
    found = np.full(steps(facts).count, -1, dtype=np.int64)
    for one in range(len(found)):
        at = np.flatnonzero(step == one).tolist()
        if at:
            least = int(recorded[at].min())
            there = {(int(recorded[k]) - least, names[k]) for k in at}
            if len(wanted & there) >= ALIKE * max(len(wanted), len(there)):
                found[one] = least
    return found
