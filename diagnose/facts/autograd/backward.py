"""What do backward passes run, compute again, and look for faults in?

A backward pass runs the nodes of the graph, each in one outermost op. All but those that add to the gradient of a
weight carry the number of their node.
"""

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import (
    BACKWARD,
    Mask,
    Shape,
    Work,
    calls_alike,
    first_shape,
    inputs_of,
    name_codes,
    named,
    work_of,
)
from diagnose.facts.core.spans import HostSpans, host_spans, in_used_steps, launched_in, require_ops
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals

NODE = "autograd::engine::evaluate_function: "
"""How the names of spans begin that hold one node of a backward pass, as torch records them."""

_ALLOCATES = ("aten::empty", "aten::new_empty", "aten::resize_")  # How names of ops begin that fill nothing otherwise.

CHECK = "aten::isnan"
_CHECKS = (CHECK, "aten::any", "aten::_is_any_true", "aten::item", "aten::is_nonzero")
"""What anomaly detection calls for each gradient, outside the node's own function: isnan(gradient).any().item()."""


class NanChecks(Struct, frozen=True):
    """Checks of gradients during the backward pass."""

    checked: int  # Gradients, in all used steps.
    nodes: int  # Of the backward pass, in all used steps.
    host_ns: int  # Host time in the checks, per step; on a GPU they wait for the gradient to be computed.
    ids: IntArray  # Their ops, and device work launched in them.


@fact
def nan_checks(facts: Facts) -> NanChecks:
    """The checks between the nodes of a backward pass. Raises Missing if no node of one was recorded."""
    nodes = host_spans(facts, SpanKind.OP, named=lambda name: name.startswith(NODE))
    if not in_used_steps(facts, nodes.ids).any():
        raise Missing("the backward pass", "Profile whole training steps with ProfilerActivity.CPU.")
    ops = host_spans(facts, SpanKind.OP)
    outer = ops.parents
    below = ops.where((outer >= 0) & np.isin(ops.ids[outer], nodes.ids))
    checks = below.where(np.isin(below.ids, host_spans(facts, SpanKind.OP, named=lambda name: name in _CHECKS).ids))
    isnan = host_spans(facts, SpanKind.OP, named=lambda name: name == CHECK).ids
    used = checks.in_steps(facts)
    work = device_work(facts).ids[launched_in(facts, checks) >= 0]
    return NanChecks(
        checked=int(np.isin(used.ids, isnan).sum()),
        nodes=int(in_used_steps(facts, nodes.ids).sum()),
        host_ns=round_half_up(int((used.end_ns - used.start_ns).sum()), steps(facts).count),
        ids=np.concatenate((checks.ids, work)),
    )


@fact
def filled_memory(facts: Facts) -> Work:
    """Fills of memory as it is allocated, as deterministic algorithms do unless told otherwise."""
    ops, names = host_spans(facts, SpanKind.OP), facts.rank.spans["name"].astype(str).to_numpy()
    outer = np.array(
        [names[ops.ids[at]].startswith(_ALLOCATES) if at >= 0 else False for at in ops.parents], dtype=bool
    )
    return work_of(facts, ops.ids[outer & (names[ops.ids] == "aten::fill_")])


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
    node = intervals.innermost_at(adding.start_ns, adding.track, *places(nodes.spans))
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


ALIKE = 0.9
"""Of the ops that a node records for autograd, at least, that a forward pass had too (our choice). A second derivative
records its formulas instead, which are other ops."""
LEAST_OPS = 3
"""In such a node (our choice): the formula of a second derivative may be one op that a forward pass has as well."""


class Recompute(Struct, frozen=True):
    """Forward ops that run again inside nodes of a backward pass."""

    work: Work  # The ops, and the device work that they launch.
    between: tuple[tuple[int, Intervals], ...]  # What runs between ops of a piece, mostly Python: thread and times.
    host_ns: int  # From the first op of each piece to the end of its last, per step.
    pieces: float  # Nodes that run a piece of the forward pass again, per step.
    bytes: int | None
    """Of the first inputs of these ops, per step: about what would be kept instead. None without shapes."""


@fact
def recompute(facts: Facts) -> Recompute | None:
    """Of the whole recording; None if nothing is computed again. Raises Missing without ops."""
    require_ops(facts)
    if (nodes := optional(backward_nodes, facts)) is None:
        return None
    again = _recorded_for_autograd(facts)
    node = intervals.innermost_at(again.start_ns, again.track, *places(nodes.spans))
    again, node = again.where(node >= 0), node[node >= 0]
    if not len(node):
        return None
    top = again.parents < 0
    again, node = again.where(top), node[top]
    repeats = _in_forward(facts, again, nodes.spans)
    ops, alike = (np.bincount(node, some, len(nodes.spans.ids)) for some in (np.ones(len(node)), repeats))
    whole = (ops >= LEAST_OPS) & (alike >= ALIKE * ops)
    again, node = again.where(whole[node]), node[whole[node]]
    if not len(node):
        return None
    used, count = again.in_steps(facts), max(steps(facts).count, 1)
    kept = [inputs[0][0].bytes if inputs and inputs[0] else 0 for inputs in inputs_of(facts, used.ids)]
    pieces = _pieces(again, node)
    within, every = pieces.in_steps(facts), host_spans(facts, SpanKind.OP)
    again = every.where(intervals.innermost_at(every.start_ns, every.track, *places(pieces)) >= 0).outermost()
    return Recompute(
        work=work_of(facts, again.ids),
        between=tuple(_between(again, pieces, track) for track in np.unique(pieces.track).tolist()),
        host_ns=int((within.end_ns - within.start_ns).sum()) // count,
        pieces=len(within.ids) / count,
        bytes=sum(one or 0 for one in kept) // count if facts.rank.provenance.knows("shapes") else None,
    )


def _pieces(ops: HostSpans, node: IntArray) -> HostSpans:
    """From the first of the ops of each node to the last, in order; with the id of the first."""
    order = np.lexsort((ops.start_ns, node))
    first = np.flatnonzero(np.diff(node[order], prepend=-1))
    at, end = order[first], np.maximum.reduceat(ops.end_ns[order], first)
    return HostSpans(ops.ids[at], ops.start_ns[at], end, ops.track[at])


def _between(ops: HostSpans, pieces: HostSpans, track: int) -> tuple[int, Intervals]:
    ops, pieces = ops.where(ops.track == track), pieces.where(pieces.track == track)
    return track, intervals.subtract(pieces.times, ops.times)


def _recorded_for_autograd(facts: Facts) -> HostSpans:
    """Ops that would make nodes: they have the number of one, and are none themselves."""
    ops = host_spans(facts, SpanKind.OP, named=lambda name: not name.startswith(BACKWARD))
    table = facts.rank.ops
    number, of_node = (table[one].reindex(ops.ids, fill_value=-1).to_numpy() for one in ("sequence", "forward_thread"))
    return ops.where((number >= 0) & (of_node <= 0))


def _in_forward(facts: Facts, some: HostSpans, nodes: HostSpans) -> Mask:
    """Which ops run outside of nodes as well: by name and inputs, or by name where inputs were not recorded."""
    every = host_spans(facts, SpanKind.OP)
    outside = every.where(intervals.innermost_at(every.start_ns, every.track, *places(nodes)) < 0)
    ids = np.concatenate((some.ids, outside.ids))
    alike = calls_alike(facts, ids)
    key = np.where(alike >= 0, alike, intervals.NONE - 1 - name_codes(facts, ids))
    return np.isin(key[: len(some.ids)], key[len(some.ids) :])
