"""What do backward passes do that could be left out: checks, fills, ops that run again, dense gradients of tables?"""

from collections import Counter
from math import prod

import numpy as np
from msgspec import Struct

from diagnose.facts.autograd.backward import ADDS, backward_nodes
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.inputs import (
    BACKWARD,
    NO_SHAPES,
    Mask,
    Shape,
    Work,
    calls_alike,
    first_shape,
    inputs_of,
    name_codes,
    named,
    op_column,
    work_of,
)
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.spans import NO_SPANS, HostSpans, host_spans, in_used_steps, launched_in, require_ops, sites_of
from diagnose.facts.core.steps import steps
from diagnose.facts.optimizer.optimizer import updates, zeroings
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

_ALLOCATES = ("aten::empty*", "aten::new_empty*", "aten::resize_*")  # Ops that fill nothing otherwise.
_CHECKS = ("aten::isnan", "aten::any", "aten::_is_any_true", "aten::item", "aten::is_nonzero")
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
    nodes = host_spans(facts, SpanKind.OP, named=lambda name: name.startswith(BACKWARD))
    if not in_used_steps(facts, nodes.ids).any():
        raise Missing("the backward pass", "Profile whole training steps with ProfilerActivity.CPU.")
    ops = host_spans(facts, SpanKind.OP)
    below = ops.where((ops.parents >= 0) & np.isin(ops.ids[ops.parents], nodes.ids))
    checks = below.where(named(facts, below.ids, *_CHECKS))
    used = checks.in_steps(facts)
    work = device_work(facts).ids[launched_in(facts, checks) >= 0]
    return NanChecks(
        checked=int(named(facts, used.ids, _CHECKS[0]).sum()),
        nodes=int(in_used_steps(facts, nodes.ids).sum()),
        host_ns=round_half_up(int((used.end_ns - used.start_ns).sum()), steps(facts).count),
        ids=np.concatenate((checks.ids, work)),
    )


@fact
def filled_memory(facts: Facts) -> Work:
    """Fills of memory as it is allocated, as deterministic algorithms do unless told otherwise."""
    ops = host_spans(facts, SpanKind.OP)
    allocating = named(facts, np.append(ops.ids, intervals.NONE)[ops.parents], *_ALLOCATES)
    return work_of(facts, ops.ids[allocating & named(facts, ops.ids, "aten::fill_")])


ALIKE, LEAST_OPS = 0.9, 3
"""Of the ops that a node records for autograd, the share that a forward pass had too, and how many there are, at least
(our choice): a second derivative records its formulas instead, which are other ops, or one that is the same."""


class Recompute(Struct, frozen=True):
    """Forward ops that run again inside nodes of a backward pass."""

    work: Work  # The ops, and the device work that they launch.
    between: tuple[tuple[int, Intervals], ...]  # What runs between ops of a piece, mostly Python: thread and times.
    host_ns: int  # From the first op of each piece to the end of its last, per step.
    pieces: float  # Nodes that run a piece of the forward pass again, per step.
    bytes: int | None  # Of the first inputs of these ops, per step: about what would be kept instead; None: no shapes.


@fact
def recompute(facts: Facts) -> Recompute | None:
    """Of the whole recording; None if nothing is computed again. Raises Missing without ops."""
    require_ops(facts)
    if (nodes := optional(backward_nodes, facts)) is None:
        return None
    again = _recorded_for_autograd(facts)
    again = again.where(nodes.spans.around(again) >= 0).outermost()
    if not len(again.ids):
        return None
    node = nodes.spans.around(again)
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
    again = every.where(pieces.around(every) >= 0).outermost()
    return Recompute(
        work=work_of(facts, again.ids),
        between=tuple(
            (
                track,
                intervals.subtract(pieces.where(pieces.track == track).times, again.where(again.track == track).times),
            )
            for track in np.unique(pieces.track).tolist()
        ),
        host_ns=int((within.end_ns - within.start_ns).sum()) // count,
        pieces=len(within.ids) / count,
        bytes=sum(one or 0 for one in kept) // count if facts.rank.provenance.knows("shapes") else None,
    )


def _pieces(ops: HostSpans, node: IntArray) -> HostSpans:
    """One span per node, from the start of its first op to the end of its last, with the id of the first."""
    order = np.lexsort((ops.start_ns, node))
    first = np.flatnonzero(np.diff(node[order], prepend=-1))
    at, end = order[first], np.maximum.reduceat(ops.end_ns[order], first)
    return HostSpans(ops.ids[at], ops.start_ns[at], end, ops.track[at])


def _recorded_for_autograd(facts: Facts) -> HostSpans:
    """Forward ops that made a backward node: they carry its number, and are no nodes themselves."""
    ops = host_spans(facts, SpanKind.OP, named=lambda name: not name.startswith(BACKWARD))
    numbered = op_column(facts, "sequence", ops.ids) >= 0
    return ops.where(numbered & (op_column(facts, "forward_thread", ops.ids) <= 0))


def _in_forward(facts: Facts, ops: HostSpans, nodes: HostSpans) -> Mask:
    """Mask: ops that also run outside of nodes with the same name and inputs (or name, if no inputs are recorded)."""
    all_ops = host_spans(facts, SpanKind.OP)
    outside = all_ops.where(nodes.around(all_ops) < 0)
    ids = np.concatenate((ops.ids, outside.ids))
    alike = calls_alike(facts, ids)
    key = np.where(alike >= 0, alike, intervals.NONE - 1 - name_codes(facts, ids))
    return np.isin(key[: len(ops.ids)], key[len(ops.ids) :])


_PRODUCTS = ("aten::matmul", "aten::mm", "aten::bmm", "aten::linear", "aten::addmm")
_DENSE = "aten::embedding_dense_backward"
_LISTS = ("aten::_foreach_*", "aten::_fused_*")
_FILLS = ("aten::zero_", "aten::fill_")
_NO_SIZES = Missing("sizes of the tensors that ops fill", "Record with record_shapes=True.")


class TableGradients(Struct, frozen=True):
    """Dense gradients of tables of one shape, of which a pass reads a few rows only."""

    shape: Shape
    rows: int  # The most ids that one lookup takes: a pass reads no more rows of a table.
    back: Work  # What makes the gradients.
    updated: Work  # What updates the tables, and only them.
    listed: Work  # What updates lists of weights, the tables among them; empty where no such share is known.
    share: float  # Of all elements that get a gradient, in the tables; 0 where that is not known.
    freed: HostSpans  # Calls of zero_grad on the CPU without any op: all they do is to give the gradients' memory back.
    freed_ns: int  # Per step, in all of them.
    site: Site | None  # The line of a lookup.


@fact
def table_gradients(facts: Facts) -> tuple[TableGradients, ...]:
    """By shape, longest first. Raises Missing without shapes, and if the size of no table was recorded.

    Not of tables whose shape a matrix product takes as well: as an output layer's weights they get a dense gradient.
    """
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    ops = host_spans(facts, SpanKind.OP)
    products = ops.where(named(facts, ops.ids, *_PRODUCTS))
    multiplied = {tensor.shape for given in inputs_of(facts, products.ids) for some in given for tensor in some}
    dense = ops.where(named(facts, ops.ids, _DENSE))
    sizes = _largest_filled(facts, dense)
    if sizes and not any(sizes):
        raise _NO_SIZES
    groups: dict[Shape, list[tuple[int, int]]] = {}
    for at, (shape, read) in enumerate(zip(sizes, inputs_of(facts, dense.ids), strict=True)):
        whole = shape is not None and len(shape) == 2 and not {shape, shape[::-1]} & multiplied
        if shape is not None and whole and len(read) > 1 and read[1]:
            groups.setdefault(shape, []).append((at, read[1][0].elements))
    found = [_gradients(facts, dense, shape, some) for shape, some in groups.items()]
    return tuple(sorted(found, key=lambda one: -one.back.longest_ns))


def _gradients(facts: Facts, dense: HostSpans, shape: Shape, some: list[tuple[int, int]]) -> TableGradients:
    """What dense gradients of tables of one shape cost. `some`: position in `dense` and elements of the ids read."""
    calls, ops = updates(facts), host_spans(facts, SpanKind.OP)
    inside = ops.where(calls.around(ops) >= 0).outermost()
    alone = [len(given) > 0 and [one.shape for one in given[0]] == [shape] for given in inputs_of(facts, inside.ids)]
    made = dense.where(np.array([row for row, _ in some]))
    share, freed = _share_of_gradients(facts, shape), _freeing(facts) if trains_on_cpu(facts) else NO_SPANS
    in_steps = freed.in_steps(facts)
    listed = named(facts, inside.ids, *_LISTS) & (share > 0)
    return TableGradients(
        shape=shape,
        rows=max(rows for _, rows in some),
        back=work_of(facts, made.ids),
        updated=work_of(facts, inside.ids[np.array(alone, dtype=bool) & ~listed]),
        listed=work_of(facts, inside.ids[listed]),
        share=share,
        freed=freed,
        freed_ns=round_half_up(int((in_steps.end_ns - in_steps.start_ns).sum()), steps(facts).count),
        site=_looked_up(facts, made),
    )


def _freeing(facts: Facts) -> HostSpans:
    calls = zeroings(facts)
    return calls.where(~np.isin(np.arange(len(calls.ids)), calls.around(host_spans(facts, SpanKind.OP))))


def _share_of_gradients(facts: Facts, shape: Shape) -> float:
    """Elements of gradients of this shape, as a share of all accumulated elements; 0 if not recorded."""
    ops = host_spans(facts, SpanKind.OP, named=lambda name: name == ADDS)
    shapes = Counter(first_shape(given) for given in inputs_of(facts, ops.ids))
    sizes = {one: prod(one) * count for one, count in shapes.items() if one is not None}
    return sizes.get(shape, 0) / max(sum(sizes.values()), 1)


def _looked_up(facts: Facts, made: HostSpans) -> Site | None:
    """The line of the lookup whose backward pass makes these gradients: its op has the number of their node."""
    nodes = optional(backward_nodes, facts)
    if nodes is None:
        return None
    node = nodes.spans.around(made)
    wanted = op_column(facts, "sequence", nodes.spans.ids[node[node >= 0]])
    lookups = host_spans(facts, SpanKind.OP, named=lambda name: name == "aten::embedding")
    own = np.isin(op_column(facts, "sequence", lookups.ids), wanted[wanted >= 0])
    return next((site for site in sites_of(facts, lookups.ids[own]) if site is not None), None)


def _largest_filled(facts: Facts, spans: HostSpans) -> list[Shape | None]:
    """The shape of the largest tensor that is filled within each of these ops; None if that was not recorded."""
    fills = host_spans(facts, SpanKind.OP, named=lambda name: name in _FILLS)
    found: list[Shape | None] = [None] * len(spans.ids)
    for at, given in zip(spans.around(fills).tolist(), inputs_of(facts, fills.ids), strict=True):
        shape = first_shape(given)
        if at >= 0 and shape is not None and prod(shape) > prod(found[at] or (0,)):
            found[at] = shape
    return found
