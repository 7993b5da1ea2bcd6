"""Are adapters of low rank multiplied out, and added to a full weight that learns nothing, for each use?

Told by shapes: a product of two thin matrices, a sum of matrices as large as it, and a layer that takes one of that
size as its weight, in a row. Of that size no weight gets a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.backward import backward_nodes, gradient_shapes, way_back
from diagnose.facts.base import Facts, fact
from diagnose.facts.dispatch import used_step
from diagnose.facts.layout import Inputs, named
from diagnose.facts.shaped import Shape, Work, inputs_of, main_ops, work_of
from diagnose.facts.source_lines import sites_of
from diagnose.trace.kinds import Site

THIN = 8
"""Times its rank an adapter's matrices are longer, at least (our choice)."""

NEAR = 4
"""Ops of the main thread in which the sum follows, and then the layer (our choice)."""


@dataclass(frozen=True)
class Adapters:
    """Of one size and one line."""

    rank: int
    shape: Shape
    """Of the weight."""
    times: int
    """Per step."""
    merging: Work
    """What makes the sum of weight and adapter, with its way back."""
    back: Work
    """The way back of the layers that take it."""
    steps_seen: int
    """Used steps that have them."""
    site: Site | None


@fact
def adapters(facts: Facts) -> tuple[Adapters, ...]:
    """Those that take longest first. Raises Missing like `main_ops` and backward_nodes."""
    learnt = set(gradient_shapes(facts, backward_nodes(facts)))
    tops, _ = main_ops(facts)
    given = inputs_of(facts, tops.ids)
    product, add, layer = (named(facts, tops.ids, *names) for names in (_PRODUCTS, _SUMS, _LAYERS))
    found: dict[tuple[int, Shape, Site | None], list[tuple[int, int, int]]] = {}
    starts = np.flatnonzero(product).tolist()
    for at, site in zip(starts, sites_of(facts, tops.ids[starts]), strict=True):
        rank, shape = _thin(given[at])
        if not rank or shape in learnt:
            continue
        summed = next((one for one in _next(at, len(given)) if add[one] and _all_are(given[one], shape)), None)
        taken = (
            None
            if summed is None
            else next((one for one in _next(summed, len(given)) if layer[one] and _takes(given[one], shape)), None)
        )
        if summed is not None and taken is not None:
            found.setdefault((rank, shape, site), []).append((at, summed, taken))
    made = []
    for (rank, shape, site), runs in found.items():
        merging = tops.where(np.concatenate([np.arange(at, summed + 1) for at, summed, _ in runs]))
        layers = tops.where(np.array([taken for *_, taken in runs]))
        steps = used_step(facts, layers.ids)
        seen = len(set(steps.tolist()) - {-1})
        made.append(
            Adapters(
                rank=rank,
                shape=shape,
                times=round((steps >= 0).sum() / max(seen, 1)),
                merging=work_of(facts, np.concatenate((merging.ids, way_back(facts, merging)))),
                back=work_of(facts, way_back(facts, layers)),
                steps_seen=seen,
                site=site,
            )
        )
    return tuple(sorted(made, key=lambda one: -one.merging.longest_ns - one.back.longest_ns))


_PRODUCTS = ("aten::matmul", "aten::mm")
_SUMS = ("aten::add", "aten::add_")
_LAYERS = ("aten::linear", "aten::matmul", "aten::mm")


def _thin(inputs: Inputs) -> tuple[int, Shape]:
    """The rank of a product of thin matrices, and its shape; 0 if they are not thin."""
    shapes = [some[0].shape for some in inputs[:2] if some]
    if len(shapes) < 2 or len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][1] != shapes[1][0]:
        return 0, ()
    rank, shape = shapes[0][1], (shapes[0][0], shapes[1][1])
    return (rank, shape) if 0 < rank * THIN <= min(shape) else (0, ())


def _next(at: int, end: int) -> range:
    return range(at + 1, min(at + 1 + NEAR, end))


def _all_are(inputs: Inputs, shape: Shape) -> bool:
    return len(inputs) > 1 and all(some and some[0].shape == shape for some in inputs[:2])


def _takes(inputs: Inputs, shape: Shape) -> bool:
    """As its weight, which may be transposed."""
    return len(inputs) > 1 and bool(inputs[1]) and inputs[1][0].shape in (shape, shape[::-1])
