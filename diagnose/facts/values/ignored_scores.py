"""Which scores are computed for rows that the loss ignores? How many it ignores is known from `diagnose profile`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.inputs import named
from diagnose.facts.core.run import manifest
from diagnose.facts.core.shaped import Shape, inputs_of, main_ops
from diagnose.facts.values.ledger import Cause, Wasted, finds, of_spans

_NOT_LOOKED = Missing(
    "what losses ignore",
    "Record with diagnose profile and PyTorch 2.8 or later. Only calls of torch's cross_entropy are seen.",
)
_LOSSES = ("aten::cross_entropy_loss", "aten::nll_loss*")
ALIKE = 0.8
"""A loss may leave out some rows of what a layer makes, as the last place of each text (our choice)."""

_PRODUCTS = ("aten::linear", "aten::matmul", "aten::mm", "aten::addmm")


LEAST = 0.25
"""Share of the rows that a loss has to ignore: below this picking the others may cost what it saves (our choice)."""


@finds(Cause.IGNORED_BY_LOSS)
def ignored_scores(facts: Facts) -> Iterator[Wasted]:
    """Scores by number of classes, from the layer that makes them to the loss that ignores many of their rows.

    Raises Missing like `main_ops`, and if nobody looked at what losses ignore.
    """
    seen = {one.classes: one.ignored / one.rows for one in manifest(facts).targets if one.rows}
    if not seen:
        raise _NOT_LOOKED
    tops, _ = main_ops(facts)
    shapes = [[one.shape for some in given for one in some] for given in inputs_of(facts, tops.ids)]
    product, loss = (named(facts, tops.ids, *names) for names in (_PRODUCTS, _LOSSES))
    step = facts.rank.spans["step"].to_numpy()[tops.ids]
    made: dict[int, int] = {}
    found: dict[int, list[int]] = {}
    for at in np.flatnonzero(product | loss).tolist():
        for classes in seen:
            if product[at] and _made(shapes[at], classes):
                made[classes] = at
            elif loss[at] and classes in made and step[made[classes]] == step[at]:
                rows = _made(shapes[made[classes]], classes)
                if _rows(shapes[at][:1], classes) >= max(ALIKE * rows, 1):
                    layer = made.pop(classes)
                    after = [k for k in range(layer + 1, at + 1) if _rows(shapes[k], classes) >= ALIKE * rows]
                    found.setdefault(classes, []).extend((layer, *after))
    for classes, some in found.items():
        if seen[classes] >= LEAST:
            rows = _made(shapes[some[0]], classes)
            mine = tops.where(np.array(some))
            entry = of_spans(facts, mine.ids, backward_ops(facts, mine), seen[classes])
            yield replace(entry, detail=f"{classes:,} classes for {rows:,} rows")


def _made(shapes: list[Shape], classes: int) -> int:
    """How many rows of scores a product makes of such inputs; 0 if it makes none."""
    for left, right in pairwise(shapes):
        if len(right) == 2 and left and ((*left[-1:], classes) in (right, right[::-1])):
            return prod(left[:-1])
    return 0


def _rows(shapes: list[Shape], classes: int) -> int:
    """How many rows of scores are taken, at most, with classes last or right after the first dimension."""
    return max((prod(one) // classes for one in shapes if len(one) > 1 and classes in (one[-1], one[1])), default=0)
