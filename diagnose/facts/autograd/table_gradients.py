"""Which tables get a dense gradient, though a pass reads a few of their rows only?"""

from collections import Counter
from math import prod

import numpy as np
from msgspec import Struct

from diagnose.facts.autograd.backward import backward_nodes, places
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import NO_SHAPES, Shape, Work, first_shape, inputs_of, named, work_of
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.spans import NO_SPANS, HostSpans, host_spans, sites_of
from diagnose.facts.core.steps import steps
from diagnose.facts.optimizer.optimizer import updates
from diagnose.facts.optimizer.zeroing import zeroings
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site

_PRODUCTS = ("aten::matmul", "aten::mm", "aten::bmm", "aten::linear", "aten::addmm")
_DENSE = "aten::embedding_dense_backward"
_ACCUMULATED = "torch::autograd::AccumulateGrad"
_LISTS = ("aten::_foreach_*", "aten::_fused_*")
_FILLS = ("aten::zero_", "aten::fill_")
_NO_SIZES = Missing("sizes of the tensors that ops fill", "Record with record_shapes=True.")


class TableGradients(Struct, frozen=True):
    """Dense gradients of tables of one shape, of which a pass reads a few rows only."""

    shape: Shape
    rows: int  # As many as a pass reads at most.
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
    sizes = _filled(facts, dense)
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
    calls, ops = updates(facts), host_spans(facts, SpanKind.OP)
    inside = ops.where(intervals.innermost_at(ops.start_ns, ops.track, *places(calls)) >= 0).outermost()
    alone = [
        bool(input_) and len(input_[0]) == 1 and input_[0][0].shape == shape for input_ in inputs_of(facts, inside.ids)
    ]
    made = dense.where(np.array([at for at, _ in some]))
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
    calls, ops = zeroings(facts), host_spans(facts, SpanKind.OP)
    inside = intervals.innermost_at(ops.start_ns, ops.track, *places(calls))
    return calls.where(np.bincount(inside[inside >= 0], minlength=len(calls.ids)) == 0)


def _share_of_gradients(facts: Facts, shape: Shape) -> float:
    """Of the elements that gradients are accumulated for, those of this shape; 0 where that was not recorded."""
    ops = host_spans(facts, SpanKind.OP, named=lambda name: name == _ACCUMULATED)
    shapes = Counter(first_shape(given) for given in inputs_of(facts, ops.ids))
    sizes = {one: prod(one) * count for one, count in shapes.items() if one is not None}
    return sizes.get(shape, 0) / max(sum(sizes.values()), 1)


def _looked_up(facts: Facts, made: HostSpans) -> Site | None:
    """The line of the lookup whose backward pass makes these gradients: its op has the number of their node."""
    nodes = optional(backward_nodes, facts)
    if nodes is None:
        return None
    node = intervals.innermost_at(made.start_ns, made.track, *places(nodes.spans))
    number = facts.rank.ops["sequence"]
    wanted = number.reindex(nodes.spans.ids[node[node >= 0]], fill_value=-1).to_numpy()
    lookups = host_spans(facts, SpanKind.OP, named=lambda name: name == "aten::embedding")
    own = np.isin(number.reindex(lookups.ids, fill_value=-1).to_numpy(), wanted[wanted >= 0])
    return next((site for site in sites_of(facts, lookups.ids[own]) if site is not None), None)


def _filled(facts: Facts, spans: HostSpans) -> list[Shape | None]:
    """The shape of the largest tensor that is filled within each of these ops; None if that was not recorded."""
    fills = host_spans(facts, SpanKind.OP, named=lambda name: name in _FILLS)
    inside = intervals.innermost_at(fills.start_ns, fills.track, *places(spans))
    found: list[Shape | None] = [None] * len(spans.ids)
    for at, given in zip(inside.tolist(), inputs_of(facts, fills.ids), strict=True):
        shape = first_shape(given)
        if at >= 0 and shape is not None and prod(shape) > prod(found[at] or (0,)):
            found[at] = shape
    return found
