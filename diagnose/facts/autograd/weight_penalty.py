"""Does the loss have a term for the size of the weights, that an optimizer's weight decay would save?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import ADDS, NO_PASSES, backward_ops
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.inputs import named
from diagnose.facts.core.shaped import Shape, Work, first_shape, inputs_of, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import host_spans
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site

_SQUARES = ("aten::pow", "aten::square")
_SUM, _DIFFERENCE = "aten::sum", "aten::sub"


@dataclass(frozen=True)
class WeightPenalty:
    """Sums of squares of weights that gradients go through."""

    shapes: int
    """Different shapes of weights that are squared."""
    work: Work
    """The squares and sums, and their backward pass."""
    site: Site | None


@fact
def weight_penalty(facts: Facts) -> WeightPenalty:
    """Raises Missing like `main_ops`, and without a gradient. Weights are known by the shapes of their gradients.

    Squares of differences are none: they pull weights to others, which no weight decay does.
    """
    tops, shapes = main_ops(facts)
    adds = host_spans(facts, SpanKind.OP, named=lambda name: name == ADDS)
    if not len(adds.ids):
        raise NO_PASSES
    weights = {first_shape(one) for one in inputs_of(facts, adds.ids)} - {None, ()}
    square = named(facts, tops.ids, *_SQUARES)
    total = named(facts, tops.ids, _SUM)
    less = named(facts, tops.ids, _DIFFERENCE)
    first = [
        at
        for at in np.flatnonzero(square[:-1] & total[1:]).tolist()
        if shapes[at] in weights and shapes[at] == shapes[at + 1] and not (at and less[at - 1])
    ]
    forth = tops.where(np.array([one for at in first for one in (at, at + 1)], dtype=np.int64))
    back = backward_ops(facts, forth)
    if not len(back):
        first, forth = [], forth.where(np.zeros(len(forth.ids), dtype=bool))
    found: set[Shape | None] = {shapes[at] for at in first}
    return WeightPenalty(
        shapes=len(found),
        work=work_of(facts, np.concatenate((forth.ids, back))),
        site=sites_of(facts, forth.ids[:1])[0] if len(forth.ids) else None,
    )
