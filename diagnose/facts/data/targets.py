"""Which scores are computed for rows that the loss ignores? How many it ignores is known from `diagnose profile`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from statistics import median

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.inputs import named
from diagnose.facts.core.run import manifest
from diagnose.facts.core.shaped import Shape, Work, inputs_of, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Targets

_NOT_LOOKED = Missing(
    "what losses ignore",
    "Record with diagnose profile and PyTorch 2.8 or later, a training with torch's cross_entropy.",
)
_LOSSES = ("aten::cross_entropy_loss", "aten::nll_loss*")
ALIKE = 0.8
"""A loss may leave out some rows of what a layer makes, as the last place of each text (our choice)."""

_PRODUCTS = ("aten::linear", "aten::matmul", "aten::mm", "aten::addmm")


@dataclass(frozen=True)
class IgnoredScores:
    """Scores of classes, from the layer that makes them to the loss that ignores some of their rows."""

    classes: int
    rows: int
    """That a layer makes, the median."""
    counted: float
    """Share of the rows that the loss does not ignore."""
    work: Work
    """Of all rows, with the backward pass."""
    site: Site | None
    """The line of the layer."""

    @property
    def ignored_ns(self) -> int:
        """What of the work is for ignored rows, per step."""
        return round(self.work.longest_ns * (1 - self.counted))


@fact
def ignored_scores(facts: Facts) -> tuple[IgnoredScores, ...]:
    """By number of classes, those that take longest first; none if losses count all of their rows.

    Raises Missing like `main_ops`, and if nobody looked at what losses ignore.
    """
    seen = {one.classes: one for one in manifest(facts).targets if one.rows}
    if not seen:
        raise _NOT_LOOKED
    tops, _ = main_ops(facts)
    shapes = [[one.shape for some in given for one in some] for given in inputs_of(facts, tops.ids)]
    product, loss = (named(facts, tops.ids, *names) for names in (_PRODUCTS, _LOSSES))
    step = facts.rank.spans["step"].to_numpy()[tops.ids]
    made: dict[int, int] = {}
    found: dict[int, list[tuple[int, int]]] = {}
    for at in np.flatnonzero(product | loss).tolist():
        for classes in seen:
            if product[at] and _made(shapes[at], classes):
                made[classes] = at
            elif loss[at] and classes in made and step[made[classes]] == step[at]:
                taken = _rows(shapes[at][:1], classes)
                if taken and taken >= ALIKE * _made(shapes[made[classes]], classes):
                    found.setdefault(classes, []).append((made.pop(classes), at))
    all_of = [_ignored(facts, tops, shapes, seen[classes], some) for classes, some in found.items()]
    return tuple(sorted(all_of, key=lambda one: -one.ignored_ns))


def _ignored(
    facts: Facts, tops: HostSpans, shapes: list[list[Shape]], seen: Targets, some: list[tuple[int, int]]
) -> IgnoredScores:
    """What the layers make that lie at these positions, each with its loss."""
    classes = seen.classes
    rows = [_made(shapes[layer], classes) for layer, _ in some]
    mine = np.zeros(len(tops.ids), dtype=bool)
    for (layer, loss), many in zip(some, rows, strict=True):
        mine[layer] = True
        mine[layer + 1 : loss + 1] = [_rows(given, classes) >= ALIKE * many for given in shapes[layer + 1 : loss + 1]]
    ops = tops.where(mine)
    return IgnoredScores(
        classes=classes,
        rows=round(median(rows)),
        counted=1 - seen.ignored / seen.rows,
        work=work_of(facts, np.concatenate((ops.ids, backward_ops(facts, ops)))),
        site=sites_of(facts, tops.ids[[layer for layer, _ in some[:1]]])[0],
    )


def _made(shapes: list[Shape], classes: int) -> int:
    """How many rows of scores a product makes of such inputs; 0 if it makes none."""
    for left, right in pairwise(shapes):
        if len(right) == 2 and left and ((*left[-1:], classes) in (right, right[::-1])):
            return prod(left[:-1])
    return 0


def _rows(shapes: list[Shape], classes: int) -> int:
    """How many rows of scores are taken, at most, with classes last or right after the first dimension."""
    return max((prod(one) // classes for one in shapes if len(one) > 1 and classes in (one[-1], one[1])), default=0)
