"""What do backward passes run, and which parts of autograd's graph do they go through again?

A backward pass runs the nodes of the graph, each in one outermost op. All but those that add to the gradient of a
weight carry the number of their node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import Mask, named
from diagnose.facts.core.names import BACKWARD
from diagnose.facts.core.shaped import Shape, Work, first_shape, inputs_of, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans, host_spans, in_used_steps, require_ops, used_step
from diagnose.facts.core.steps import steps
from diagnose.facts.optimizer.optimizer import updates
from diagnose.facts.optimizer.zeroing import zeroings
from diagnose.trace import nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

ADDS = "torch::autograd::AccumulateGrad"
NO_PASSES = Missing("backward passes", "Record whole steps of the training.")
_NO_NUMBERS = Missing("the numbers of autograd's nodes", "Record with torch.profiler, of PyTorch 1.7 or later.")


@dataclass(frozen=True)
class BackwardNodes:
    """Nodes that backward passes ran, in order of start. Arrays of shape (nodes,)."""

    spans: HostSpans
    passed: IntArray
    """The pass that ran it; passes are numbered from 0 in order."""
    adds: Mask
    """It adds to the gradient of a weight."""
    key: IntArray
    """Equal for runs of one node; -1 for those that add, and where it is not known."""

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


@fact
def learnt_shapes(facts: Facts) -> frozenset[Shape]:
    """Shapes of the weights that get a gradient. Raises Missing like backward_nodes."""
    return frozenset(one for one in gradient_shapes(facts, backward_nodes(facts)) if one)


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


@dataclass(frozen=True)
class VainNodes:
    """Nodes that backward passes ran in vain."""

    work: Work
    nodes: int
    """Per step."""
    gradients: int
    """Of these, those that add to a gradient, per step."""
    steps_seen: int
    """Used steps with at least one."""
    site: Site | None
    """The line that runs the longest of them."""


def vain_nodes(facts: Facts, nodes: BackwardNodes, chosen: Mask) -> VainNodes:
    """What is chosen of the nodes."""
    spans, count = nodes.spans.where(chosen), steps(facts).count
    used = in_used_steps(facts, spans.ids)
    lasted = spans.end_ns - spans.start_ns
    return VainNodes(
        work=work_of(facts, spans.ids),
        nodes=round_half_up(int(used.sum()), count),
        gradients=round_half_up(int(nodes.adds[chosen][used].sum()), count),
        steps_seen=len(np.unique(used_step(facts, spans.ids[used]))),
        site=sites_of(facts, spans.ids[used][[int(lasted[used].argmax())]])[0] if used.any() else None,
    )


def places(spans: HostSpans) -> tuple[IntArray, IntArray, IntArray]:
    """Spans as `nesting` takes them: thread, start, end."""
    return spans.track, spans.start_ns, spans.end_ns


@fact
def repeated_backward(facts: Facts) -> VainNodes:
    """Nodes that an earlier pass had run already, both adding to the same gradients.

    Raises Missing like backward_nodes, and if no node has a number. Not those of a pass that made a graph itself
    (`create_graph`): to go through it again is what it is for. Nor those before which gradients were used or cleared.
    """
    nodes = backward_nodes(facts)
    if not (nodes.key >= 0).any():
        raise _NO_NUMBERS
    adding = np.bincount(nodes.passed[nodes.adds], minlength=len(nodes.first)) > 0
    plain = adding & ~_made_graph(facts, nodes)
    order = np.lexsort((nodes.passed, nodes.key))
    key, passed = nodes.key[order], nodes.passed[order]
    same = np.concatenate(([False], (key[1:] == key[:-1]) & (key[1:] >= 0))) if len(key) else np.zeros(0, dtype=bool)
    before = np.concatenate((passed[:1], passed[:-1]))
    marks = np.sort(np.concatenate((updates(facts).start_ns, zeroings(facts).start_ns)))
    place = np.searchsorted(marks, nodes.spans.start_ns[nodes.first])
    again = np.zeros(len(key), dtype=bool)
    again[order] = same & (passed > before) & plain[before] & adding[passed] & (place[passed] == place[before])
    return vain_nodes(facts, nodes, again | (nodes.adds & _follows(nodes, again)))


def _follows(nodes: BackwardNodes, chosen: Mask) -> Mask:
    """Which nodes have one of the chosen before them in their pass, and between them only such as add to gradients."""
    order = np.arange(len(chosen))
    last = np.maximum.accumulate(np.where(nodes.adds, -1, order))
    found: Mask = (last >= 0) & chosen[last] & (nodes.passed[last] == nodes.passed)
    return found


def _made_graph(facts: Facts, nodes: BackwardNodes) -> Mask:
    """Which passes ran with gradients enabled: ops within their nodes make nodes themselves. Shape (passes,)."""
    ops = facts.rank.ops
    numbered = ops.index.to_numpy()[((ops["sequence"] >= 0) & (ops["forward_thread"] <= 0)).to_numpy()]
    spans = facts.rank.spans
    start, track = spans["start_ns"].to_numpy()[numbered], spans["track"].to_numpy()[numbered].astype(np.int64)
    inside = nesting.innermost_at(start, track, *places(nodes.spans))
    found: Mask = np.bincount(nodes.passed[inside[inside >= 0]], minlength=len(nodes.first)) > 0
    return found
