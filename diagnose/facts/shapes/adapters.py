"""Are adapters of low rank multiplied out, and added to a full weight that learns nothing, for each use?

Told by shapes: a product of two thin matrices, a sum of matrices as large as it, and a layer that takes one of that
size as its weight, in a row. Of that size no weight gets a gradient. What words take instead, through the thin
matrices, is told by what the layer takes and what the sum takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, backward_ops, gradient_shapes, nodes_of, places
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.inputs import Inputs, named
from diagnose.facts.core.shaped import Shape, Work, inputs_of, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans, host_spans, used_step
from diagnose.trace import nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

THIN = 8
"""Times its rank an adapter's matrices are longer, at least (our choice)."""

PASSES = 3
"""A way forth, and one back to each side of a product."""

MEMORY = 2
"""Times as much memory as a sum touches: two thin products, a scale and the sum, with a part of what a sum reads."""

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
    """What makes the sum of weight and adapter, with its backward pass."""
    back: Work
    """The backward pass of the layers that take it."""
    still_ns: int
    """What of that stays, per step: the gradient of what the layers take, where something before them learns."""
    apart_ns: int
    """What words would take per step through the thin matrices and to be added to the layers' results, forth and back.

    Of thin products it counts the operations, and the memory as that of a sum. Of six sizes, one core of a Xeon took
    0.9 to 1.4 times as much (torch 2.13).
    """
    steps_seen: int
    """Used steps that have them."""
    site: Site | None

    @property
    def now_ns(self) -> int:
        """What all of this takes, per step."""
        return self.merging.longest_ns + self.back.longest_ns

    @property
    def data_ids(self) -> IntArray:
        """As `Work.data_ids`, of all of this."""
        return np.concatenate((self.merging.data_ids, self.back.data_ids))


@fact
def adapters(facts: Facts) -> tuple[Adapters, ...]:
    """Those that take longest first. Raises Missing like `main_ops` and backward_nodes."""
    learnt = set(gradient_shapes(facts, backward_nodes(facts)))
    tops, _ = main_ops(facts)
    given = inputs_of(facts, tops.ids)
    product, add, layer = (named(facts, tops.ids, *names) for names in (_PRODUCTS, _SUMS, _LAYERS))
    found: dict[tuple[int, Shape, Site | None], list[_Run]] = {}
    starts = np.flatnonzero(product).tolist()
    for at, site in zip(starts, sites_of(facts, tops.ids[starts]), strict=True):
        rank, shape = _thin(given[at])
        if not rank or shape in learnt:
            continue
        summed = next((one for one in _next(at, len(given)) if add[one] and _all_are(given[one], shape)), at)
        taken = next((one for one in _next(summed, len(given)) if layer[one] and _takes(given[one], shape)), at)
        if at < summed < taken:
            found.setdefault((rank, shape, site), []).append(_Run(at, summed, taken, _words_share(given[taken])))
    made = [_of_one_kind(facts, tops, *kind, runs) for kind, runs in found.items()]
    return tuple(sorted(made, key=lambda one: -one.now_ns))


class _Run(NamedTuple):
    """Positions of ops."""

    product: int
    sum: int
    layer: int
    words_share: float
    """Rows that the layer takes, in widths of a row: as many elements it makes, of those of the sum."""


def _of_one_kind(
    facts: Facts, tops: HostSpans, rank: int, shape: Shape, site: Site | None, runs: list[_Run]
) -> Adapters:
    merging = tops.where(np.concatenate([np.arange(one.product, one.sum + 1) for one in runs]))
    layers, sums = (tops.where(np.array([one[at] for one in runs])) for at in (2, 1))
    share = float(np.mean([one.words_share for one in runs]))
    steps = used_step(facts, layers.ids)
    seen = len(set(steps.tolist()) - {-1})
    back = work_of(facts, backward_ops(facts, layers))
    thin = work_of(facts, layers.ids).longest_ns * rank * sum(shape) / prod(shape)
    added = work_of(facts, sums.ids).longest_ns * share
    return Adapters(
        rank=rank,
        shape=shape,
        times=round((steps >= 0).sum() / max(seen, 1)),
        merging=work_of(facts, np.concatenate((merging.ids, backward_ops(facts, merging)))),
        back=back,
        still_ns=_still_ns(facts, layers, shape),
        apart_ns=round(PASSES * (thin + MEMORY * added)),
        steps_seen=seen,
        site=site,
    )


_PRODUCTS = ("aten::matmul", "aten::mm")
_SUMS = ("aten::add", "aten::add_")
_LAYERS = ("aten::linear", "aten::matmul", "aten::mm")
_BACK = "aten::mm"


def _still_ns(facts: Facts, layers: HostSpans, shape: Shape) -> int:
    """Products in the layers' backward pass that take the weight, and so do not make its gradient."""
    nodes = backward_nodes(facts).spans.where(np.unique(nodes_of(facts, layers)[1]))
    products = host_spans(facts, SpanKind.OP, named=lambda name: name == _BACK)
    products = products.where(nesting.innermost_at(products.start_ns, products.track, *places(nodes)) >= 0)
    sizes = [[some[0].shape for some in inputs if some] for inputs in inputs_of(facts, products.ids)]
    taken = [shape in mine or shape[::-1] in mine for mine in sizes]
    return work_of(facts, products.where(np.array(taken, dtype=bool)).ids).longest_ns


def _thin(inputs: Inputs) -> tuple[int, Shape]:
    """The rank of a product of thin matrices, and its shape; 0 if they are not thin."""
    shapes = [some[0].shape for some in inputs[:2] if some]
    if len(shapes) < 2 or len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][1] != shapes[1][0]:
        return 0, ()
    rank, shape = shapes[0][1], (shapes[0][0], shapes[1][1])
    return (rank, shape) if 0 < rank * THIN <= min(shape) else (0, ())


def _next(at: int, end: int) -> range:
    return range(at + 1, min(at + 1 + NEAR, end))


def _words_share(inputs: Inputs) -> float:
    words = inputs[0][0].shape if inputs[0] else ()
    return prod(words) / max(words[-1], 1) ** 2 if words else 1.0


def _all_are(inputs: Inputs, shape: Shape) -> bool:
    return len(inputs) > 1 and all(some and some[0].shape == shape for some in inputs[:2])


def _takes(inputs: Inputs, shape: Shape) -> bool:
    """As its weight, which may be transposed."""
    return len(inputs) > 1 and bool(inputs[1]) and inputs[1][0].shape in (shape, shape[::-1])
