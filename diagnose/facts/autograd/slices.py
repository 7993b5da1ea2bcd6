"""Which tensors are cut into many pieces, the gradient of each of which fills a tensor as large as the whole?

The backward pass from `x[:, t]` is a tensor of zeros as large as `x`, in which the piece's gradient stands; autograd
adds up these. Pieces are of one tensor as long as no other op takes one of its shape in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, forward_ops, nodes_of
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import NO_SHAPES, named
from diagnose.facts.core.names import BACKWARD
from diagnose.facts.core.shaped import Shape, Work, first_shape, inputs_of, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import in_used_steps
from diagnose.facts.core.steps import steps
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

_CUTS = ("aten::select", "aten::slice", "aten::narrow")
_FILLS = ("SelectBackward", "SliceBackward")
LEAST_PIECES = 8
"""With fewer, as the four gates of a cell, one gradient of all saves little (our choice)."""


@dataclass(frozen=True)
class SlicedTensor:
    """Pieces of tensors of one shape, cut out in a row on one line, and the backward pass from them."""

    shape: Shape
    """Of the whole."""
    pieces: int
    """Cut out in a row, the median."""
    work: Work
    """Nodes that fill a tensor of zeros for each, with adding them up."""
    fills: int
    """Of these, per step."""
    site: Site | None


@fact
def sliced_tensors(facts: Facts) -> tuple[SlicedTensor, ...]:
    """By line and shape, those that take longest first. Raises Missing without shapes, and like `backward_nodes`."""
    nodes = backward_nodes(facts)
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    ops, _ = forward_ops(facts)
    maker, node = nodes_of(facts, ops)
    fills = named(facts, nodes.spans.ids, *(f"{BACKWARD}: {one}*" for one in _FILLS))[node]
    maker, node = maker[fills], nodes.spans.ids[node[fills]]
    runs: dict[tuple[Site | None, Shape], list[IntArray]] = {}
    rows = list(_in_a_row(facts, ops.ids))
    for (shape, cuts), site in zip(rows, sites_of(facts, ops.ids[[cuts[0] for _, cuts in rows]]), strict=True):
        runs.setdefault((site, shape), []).append(cuts)
    found = []
    for (site, shape), own in runs.items():
        ids = node[np.isin(maker, np.concatenate(own))]
        if len(ids):
            pieces = round(float(np.median([len(one) for one in own])))
            per_step = round_half_up(int(in_used_steps(facts, ids).sum()), steps(facts).count)
            found.append(SlicedTensor(shape, pieces, work_of(facts, ids), per_step, site))
    return tuple(sorted(found, key=lambda one: -one.work.longest_ns))


def _in_a_row(facts: Facts, ids: IntArray) -> Iterator[tuple[Shape, IntArray]]:
    """Positions among these ops, in order, of those that cut pieces out of one tensor, and its shape."""
    is_cut = named(facts, ids, *_CUTS).tolist()
    step = facts.rank.spans["step"].to_numpy()[ids].tolist()
    cuts: dict[Shape, list[int]] = {}
    ended: list[tuple[Shape, list[int]]] = []
    for at, inputs in enumerate(inputs_of(facts, ids)):
        if at and step[at] != step[at - 1]:
            ended, cuts = [*ended, *cuts.items()], {}
        shapes = {tensor.shape for one in inputs for tensor in one}
        if is_cut[at] and (whole := first_shape(inputs)):
            cuts.setdefault(whole, []).append(at)
        else:
            ended += [(shape, cuts.pop(shape)) for shape in shapes & set(cuts)]
    for shape, own in (*ended, *cuts.items()):
        if len(own) >= LEAST_PIECES:
            yield shape, np.array(own)
