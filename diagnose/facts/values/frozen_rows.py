"""Do rows of a table that never changes go through a net that learns nothing, in each step anew?

What it makes of a row is always the same. The ops depend on nothing else: no numbers are drawn for them, and what they
take beside the rows is written by no op. But a net whose weights are all as large as some that learn may be a copy of
these, which is made anew after more steps than were looked at: a target, a former policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, gradient_shapes
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.shaped import Shape, Work, first_shape, inputs_of, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import host_spans
from diagnose.facts.values.values import is_layer, seen_ops
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray


@dataclass(frozen=True)
class FrozenRows:
    """Layers that take rows of one lookup."""

    rows: int | None
    """Of the table; None if shapes were not recorded."""
    layers: int
    """Per step."""
    work: Work
    """With what is between the layers."""
    steps_seen: int
    """Used steps that have them."""
    site: Site | None
    """The line of the first layer."""


@fact
def frozen_rows(facts: Facts) -> tuple[FrozenRows, ...]:
    """By lookup, those that take longest first. Raises Missing like seen_ops, and if nobody looked."""
    seen = seen_ops(facts)
    if seen.rows is None or seen.rows.looked_up is None:
        raise Missing("what depends on rows of a table alone", "Record with this version of diagnose profile.")
    lookups = seen.rows.looked_up
    made = []
    for lookup in np.unique(lookups[lookups >= 0]).tolist():
        mine = np.flatnonzero((lookups == lookup) & (np.arange(len(lookups)) != lookup) & seen.makes)
        layers = [one for one in mine.tolist() if is_layer(seen.names[one])]
        ids = seen.ids[:, mine]
        spans = host_spans(facts, SpanKind.OP)
        spans = spans.where(np.isin(spans.ids, ids) & (spans.track == host_threads(facts).main)).outermost()
        first = seen.ids[:, layers[:1]].ravel()
        if not (first >= 0).any() or _may_be_a_copy(facts, [seen.ids[:, one] for one in layers]):
            continue
        made.append(
            FrozenRows(
                rows=_rows(facts, seen.ids[:, lookup]),
                layers=len(layers),
                work=work_of(facts, spans.ids),
                steps_seen=int((ids >= 0).any(axis=1).sum()),
                site=sites_of(facts, first[first >= 0][:1])[0],
            )
        )
    return tuple(sorted(made, key=lambda one: -one.work.longest_ns))


def _may_be_a_copy(facts: Facts, layers: list[IntArray]) -> bool:
    """Whether all weights of layers are as large as some that learn, or nobody knows."""
    nodes = optional(backward_nodes, facts)
    learnt = {tuple(sorted(one)) for one in gradient_shapes(facts, nodes) if one} if nodes else set[Shape]()
    return all(_weight(facts, ids) in {*learnt, None} for ids in layers)


def _weight(facts: Facts, ids: IntArray) -> Shape | None:
    """The sides of a layer's weight, which convolutions take second and others last. None where not recorded."""
    for inputs in inputs_of(facts, ids[ids >= 0]):
        shapes = [some[0].shape for some in inputs if some and len(some[0].shape) > 1]
        if len(shapes) > 1:
            return tuple(sorted(shapes[1] if len(shapes[1]) > 2 else shapes[-1]))
    return None


def _rows(facts: Facts, ids: IntArray) -> int | None:
    shapes = [first_shape(one) for one in inputs_of(facts, ids[ids >= 0])]
    return next((shape[0] for shape in shapes if shape), None)
