"""What do backward passes run, and which ops have made it?

A backward pass runs the nodes of the graph, each in one outermost op. All but those that add to the gradient of a
weight carry the number of their node.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import Mask, named
from diagnose.facts.core.names import BACKWARD
from diagnose.facts.core.shaped import Shape, first_shape, inputs_of
from diagnose.facts.core.spans import HostSpans, host_spans, require_ops
from diagnose.trace import nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray

ADDS = "torch::autograd::AccumulateGrad"
NO_PASSES = Missing("backward passes", "Record whole steps of the training.")


class BackwardNodes(Struct, frozen=True):
    """Nodes that backward passes ran, in order of start. Arrays of shape (nodes,)."""

    spans: HostSpans
    passed: IntArray  # The pass that ran it; passes are numbered from 0 in order.
    adds: Mask  # It adds to the gradient of a weight.
    key: IntArray  # Equal for runs of one node; -1 for those that add, and where it is not known.

    @property
    def first(self) -> IntArray:
        """The first node of each pass. Shape (passes,)."""
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
    number, thread = (_known(facts, name, spans.ids) for name in ("sequence", "forward_thread"))
    adds = named(facts, spans.ids, f"{BACKWARD}: {ADDS}")
    _, key = np.unique(np.stack((thread, number)), axis=1, return_inverse=True)
    return BackwardNodes(spans, passed.astype(np.int64), adds, np.where((number >= 0) & ~adds, key.ravel(), -1))


@fact
def forward_ops(facts: Facts) -> tuple[HostSpans, IntArray]:
    """The outermost ops of the main thread but nodes, and how many passes had begun before each.

    Raises Missing like backward_nodes.
    """
    nodes, ops = backward_nodes(facts), host_spans(facts, SpanKind.OP)
    ops = ops.where(ops.track == host_threads(facts).main).outermost()
    ops = ops.where(~np.isin(ops.ids, nodes.spans.ids))
    return ops, np.searchsorted(nodes.spans.start_ns[nodes.first], ops.start_ns)


def gradient_shapes(facts: Facts, nodes: BackwardNodes) -> list[Shape | None]:
    """The shape of the gradient that each node adds to; None of other nodes, and where it was not recorded."""
    adding = host_spans(facts, SpanKind.OP, named=lambda name: name == ADDS)
    node = nesting.innermost_at(adding.start_ns, adding.track, *places(nodes.spans))
    found: list[Shape | None] = [None] * len(nodes.adds)
    for at, inputs in zip(node.tolist(), inputs_of(facts, adding.ids), strict=True):
        if at >= 0:
            found[at] = first_shape(inputs)
    return found


def _known(facts: Facts, column: str, ids: IntArray) -> IntArray:
    """A column of ops, -1 where it was not recorded."""
    return facts.rank.ops[column].reindex(ids, fill_value=-1).to_numpy().astype(np.int64)


def made_nodes(facts: Facts, ops: HostSpans) -> tuple[IntArray, IntArray]:
    """The numbers of the nodes that these ops of one thread, none inside another, have made: from, and up to.

    An op carries the number that the next node gets: it made those from its own up to that of the op after it. From is
    -1 where the number is not known, or where gradients were off.
    """
    every = host_spans(facts, SpanKind.OP)
    number = np.where(_known(facts, "forward_thread", every.ids) > 0, -1, _known(facts, "sequence", every.ids))
    counts = (number >= 0) & np.isin(every.track, ops.track)
    following = np.append(number[counts], np.iinfo(np.int64).max)
    end = following[np.searchsorted(every.start_ns[counts], ops.end_ns)]
    return _known(facts, "sequence", ops.ids), end


def nodes_of(facts: Facts, ops: HostSpans) -> tuple[IntArray, IntArray]:
    """Of each node that one of these ops of a thread, none inside another, has made: position of the op, and its own.

    Positions are those in `ops` and in `backward_nodes`. Raises Missing like those.
    """
    nodes = backward_nodes(facts)
    begin, end = made_nodes(facts, ops)
    order = np.argsort(begin, kind="stable")
    number = _known(facts, "sequence", nodes.spans.ids)
    at = np.searchsorted(begin[order], number, side="right") - 1
    mine = np.flatnonzero((nodes.key >= 0) & (at >= 0))
    op = order[at[mine]]
    made = (begin[op] >= 0) & (number[mine] < end[op])
    return op[made], mine[made]


def backward_ops(facts: Facts, ops: HostSpans) -> IntArray:
    """The nodes of backward passes that such ops have made; none where no passes were recorded."""
    nodes = optional(backward_nodes, facts)
    return ops.ids[:0] if nodes is None else nodes.spans.ids[nodes_of(facts, ops)[1]]


def places(spans: HostSpans) -> tuple[IntArray, IntArray, IntArray]:
    """Spans as `nesting` takes them: thread, start, end."""
    return spans.track, spans.start_ns, spans.end_ns
