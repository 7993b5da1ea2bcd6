"""What do backward passes run, and which ops took what other ops made?

A backward pass runs the nodes of the graph, each in one outermost op. All but those that add to the gradient of a
weight carry the number of their node. Autograd's graph itself is of a step after the recording, which `diagnose
profile` looks at. Its nodes are told to be those of a recorded step by their order, if the two have nodes of the same
kinds in the same order.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import BACKWARD, Mask, Shape, first_shape, inputs_of, named, op_column
from diagnose.facts.core.spans import HostSpans, host_spans, require_ops, used_step
from diagnose.facts.core.steps import steps
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray

ADDS = "torch::autograd::AccumulateGrad"
NO_PASSES = Missing("backward passes", "Record whole steps of the training.")
ALIKE = 0.98  # Share of the nodes that have to be of the same kind in their place (our choice).
MOST_PAIRS = 8  # Rounds that are compared with those before them: others are like them (our choice).
_NOTHING_NEW = (
    *("Add", "Cat", "Stack", "Clone", "Copy", "ToCopy", "IndexPut", "torch::autograd::CopySlices"),
    *("Select", "Slice", "Narrow", "Index", "Unbind", "Split", "SplitWithSizes", "Chunk", "Diagonal", "AsStrided"),
    *("View", "UnsafeView", "Reshape", "ReshapeAlias", "T", "Transpose", "Permute", "Expand", "Squeeze", "Unsqueeze"),
)
"""Nodes of ops that collect or cut out: a sum of what rounds give needs the round before, what is summed does not."""


class BackwardNodes(Struct, frozen=True):
    """Nodes that backward passes ran, in order of start. Arrays of shape (nodes,)."""

    spans: HostSpans
    passed: IntArray  # The pass that ran it; passes are numbered from 0 in order.
    adds: Mask  # It adds to the gradient of a weight.
    key: IntArray  # Equal for runs of one node; -1 for those that add, and where it is not known.

    @property
    def first(self) -> IntArray:
        """Position of the first node of each pass. Shape (passes,)."""
        return np.flatnonzero(np.diff(self.passed, prepend=-1))


@fact
def backward_nodes(facts: Facts) -> BackwardNodes:
    """Of the whole recording. Raises Missing without ops, and if no backward pass was recorded.

    Between two passes the main thread begins an op of its own, if only the one that makes the first gradient.
    """
    require_ops(facts)
    spans = host_spans(facts, SpanKind.OP, named=lambda name: name.startswith(BACKWARD)).outermost()
    if not len(spans.ids):
        raise NO_PASSES
    ops = host_spans(facts, SpanKind.OP)
    tops = ops.where(ops.track == host_threads(facts).main).outermost()
    others = tops.start_ns[~np.isin(tops.ids, spans.ids)]
    _, passed = np.unique(np.searchsorted(others, spans.start_ns), return_inverse=True)
    number, thread = (op_column(facts, name, spans.ids) for name in ("sequence", "forward_thread"))
    adds = named(facts, spans.ids, f"{BACKWARD}: {ADDS}")
    _, key = np.unique(np.stack((thread, number)), axis=1, return_inverse=True)
    return BackwardNodes(spans, passed.astype(np.int64), adds, np.where((number >= 0) & ~adds, key.ravel(), -1))


@fact
def forward_ops(facts: Facts) -> tuple[HostSpans, IntArray]:
    """The main thread's outermost ops but nodes, and how many passes had begun before each. Missing: backward_nodes."""
    nodes, ops = backward_nodes(facts), host_spans(facts, SpanKind.OP)
    ops = ops.where(ops.track == host_threads(facts).main).outermost()
    ops = ops.where(~np.isin(ops.ids, nodes.spans.ids))
    return ops, np.searchsorted(nodes.spans.start_ns[nodes.first], ops.start_ns)


def gradient_shapes(facts: Facts, nodes: BackwardNodes) -> list[Shape | None]:
    """The shape of the gradient that each node adds to; None of other nodes, and where it was not recorded."""
    adding = host_spans(facts, SpanKind.OP, named=lambda name: name == ADDS)
    shape_of = dict(zip(nodes.spans.around(adding).tolist(), inputs_of(facts, adding.ids), strict=True))
    return [first_shape(shape_of.get(at, ())) for at in range(len(nodes.adds))]


def made_nodes(facts: Facts, ops: HostSpans) -> tuple[IntArray, IntArray]:
    """The numbers of the nodes that these ops of one thread, none inside another, have made: from, and up to.

    An op carries the number that the next node gets: it made those from its own up to that of the op after it. From is
    -1 where the number is not known, or where gradients were off.
    """
    every = host_spans(facts, SpanKind.OP)
    number = np.where(op_column(facts, "forward_thread", every.ids) > 0, -1, op_column(facts, "sequence", every.ids))
    counts = (number >= 0) & np.isin(every.track, ops.track)
    following = np.append(number[counts], np.iinfo(np.int64).max)
    end = following[np.searchsorted(every.start_ns[counts], ops.end_ns)]
    return op_column(facts, "sequence", ops.ids), end


def nodes_of(facts: Facts, ops: HostSpans) -> tuple[IntArray, IntArray]:
    """For each node made by one of these ops of a thread, none inside another: position of the op, and of the node.

    Positions are those in `ops` and in `backward_nodes`. Raises Missing like those.
    """
    nodes = backward_nodes(facts)
    begin, end = made_nodes(facts, ops)
    order = np.argsort(begin, kind="stable")
    number = op_column(facts, "sequence", nodes.spans.ids)
    at = np.searchsorted(begin[order], number, side="right") - 1
    mine = np.flatnonzero((nodes.key >= 0) & (at >= 0))
    op = order[at[mine]]
    made = (begin[op] >= 0) & (number[mine] < end[op])
    return op[made], mine[made]


def backward_ops(facts: Facts, ops: HostSpans) -> IntArray:
    """Ids of the nodes that these ops of one thread, none inside another, made; none if no passes were recorded."""
    nodes = optional(backward_nodes, facts)
    return ops.ids[:0] if nodes is None else nodes.spans.ids[nodes_of(facts, ops)[1]]


class Dataflow(Struct, frozen=True):
    """Autograd's graph, with its nodes in the order in which ops made them. Numbers are from 0 for the first of a step.

    Nodes that add to gradients are left out. Arrays of shape (nodes,), but for the first two.
    """

    first: IntArray  # Recorded number of the first node of each used step; -1 if that is not like the graph's. (steps,)
    takes: tuple[IntArray, ...]  # Of each node the positions of those whose results its op took.
    number: IntArray
    computes: Mask  # Where its op makes something new, and does not collect or cut out what is there.

    def needs(self, step: int, begins: Sequence[int]) -> float | None:
        """Share of the nodes that compute, of rounds in a row, that need the round before; None if that is not known.

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
        needing = set(range(before, begin))
        for at in range(begin, end):  # What an op takes was made before it.
            if not needing.isdisjoint(self.takes[at].tolist()):
                needing.add(at)
        computing = begin + np.flatnonzero(self.computes[begin:end])
        return len(needing.intersection(computing.tolist())), len(computing)


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
    number = graph.number[order] - graph.number[order[:1]].sum()
    kinds = [graph.names[one] for one in graph.name[order].tolist()]
    by_node = np.argsort(place[graph.uses], kind="stable")
    uses, used = place[graph.uses][by_node], place[graph.used][by_node]
    known = (uses >= 0) & (used >= 0)
    takes = np.split(used[known], np.searchsorted(uses[known], np.arange(1, len(order)))) if len(order) else []
    first = _first_numbers(facts, number, kinds)
    if (first < 0).all():
        raise Missing("data flow between ops", "Record steps that run the same ops.")
    new = [kind.partition("Backward")[0] not in _NOTHING_NEW for kind in kinds]
    return Dataflow(first=first, takes=tuple(takes), number=number, computes=np.array(new, dtype=bool))


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
    recorded = op_column(facts, "sequence", nodes.spans.ids)
    known = nodes.adds & (before >= 0) & (nodes.passed[before] == nodes.passed) & (step >= 0)
    for at in np.flatnonzero(known).tolist():
        some = leads.get(int(recorded[before[at]] - flow.first[step[at]]), set())
        if flow.first[step[at]] >= 0 and len(some) == 1:
            (found[at],) = some
    return found


def _first_numbers(facts: Facts, number: IntArray, kinds: list[str]) -> IntArray:
    """The number of the first node of each used step; -1 where its nodes are not like those of the graph."""
    nodes = backward_nodes(facts)
    ids = nodes.spans.ids[nodes.key >= 0]
    recorded, step = op_column(facts, "sequence", ids), used_step(facts, ids)
    names = facts.rank.spans["name"].iloc[ids].astype(str).str.removeprefix(f"{BACKWARD}: ").to_list()
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
