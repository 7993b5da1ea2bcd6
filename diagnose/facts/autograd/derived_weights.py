"""Which weights are made of others, and made again at every use: orthogonal, normalised or cast ones?

Told by shapes: ops that work on nothing but tensors as large as weights work on weights, unless data may be as large.
There are as many weights of a shape as gradients of it become complete in a backward pass: what is done more often than
that is done again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, backward_ops, forward_ops, gradient_shapes, made_nodes
from diagnose.facts.autograd.recomputed import RANDOM
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import NO_SHAPES, Inputs, Mask, named
from diagnose.facts.core.shaped import Shape, Work, calls_alike, first_shape, inputs_of, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans, used_step
from diagnose.trace import nesting
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

_ON_DATA = ("aten::linear", "aten::conv*")
"""Ops whose first input is data."""

_UNKNOWN = Missing("the shapes of all gradients", NO_SHAPES.how_to_record_it)


@dataclass(frozen=True)
class DerivedWeights:
    """Ops that make a weight of others, run more often than there are such weights."""

    ops: tuple[str, ...]
    """That make one, in order."""
    made: int
    """Times, in a forward pass, the median."""
    weights: int
    """At most so many different ones."""
    forward: HostSpans
    """The ops, all times."""
    work: Work
    """The same, with the backward pass."""
    steps_seen: int
    """Used steps with such a pass."""
    site: Site | None
    """The line that runs the first of them."""

    @property
    def repeated_ns(self) -> int:
        """What of the work is done again, per step."""
        return self.work.longest_ns * (self.made - self.weights) // self.made


@dataclass(frozen=True)
class _Run:
    """Ops in a row, which make one weight: `first` to `last`, the latter not included."""

    first: int
    last: int
    passed: int
    weights: int
    """In this pass, of the shape of which there are most."""


@fact
def derived_weights(facts: Facts) -> tuple[DerivedWeights, ...]:
    """Those of the used steps, those that take longest first. Raises Missing without shapes and like backward_nodes.

    And if the shape of a gradient is not known. None where random numbers are drawn meanwhile, or where no layer tells
    how large data is.
    """
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    nodes, (ops, passed) = backward_nodes(facts), forward_ops(facts)
    if any(adds and shape is None for adds, shape in zip(nodes.adds, gradient_shapes(facts, nodes), strict=True)):
        raise _UNKNOWN
    what = calls_alike(facts, ops.ids)
    found: dict[tuple[int, ...], list[_Run]] = {}
    for run in _runs(facts, ops, passed):
        if what[run.first : run.last].min() >= 0:
            found.setdefault(tuple(what[run.first : run.last].tolist()), []).append(run)
    made = []
    for runs in found.values():
        times = Counter(run.passed for run in runs)
        often = [run for run in runs if times[run.passed] > run.weights]
        if often and not named(facts, ops.ids[often[0].first : often[0].last], *RANDOM).any():
            made.append(_derived(facts, ops, often))
    return tuple(sorted(made, key=lambda one: -one.work.longest_ns))


def _runs(facts: Facts, ops: HostSpans, passed: IntArray) -> Iterator[_Run]:
    """Ops in a row that work on weights only, of a used step and a forward pass, and make nodes."""
    nodes, inputs = backward_nodes(facts), inputs_of(facts, ops.ids)
    shapes = gradient_shapes(facts, nodes)
    weights = Counter(zip(nodes.passed.tolist(), shapes, strict=True))
    known = {shape for shape in shapes if shape and len(shape) > 1} - _of_data(
        shapes, inputs, named(facts, ops.ids, *_ON_DATA)
    )
    begin, end = made_nodes(facts, ops)
    plain = np.array([_on_weights(one, known) for one in inputs], dtype=bool) & (begin >= 0)
    fills = np.array([not any(one) for one in inputs], dtype=bool)
    label = np.where((plain | fills) & (used_step(facts, ops.ids) >= 0), passed, nesting.NONE)
    edges = np.flatnonzero(np.diff(np.concatenate(([nesting.NONE], label, [nesting.NONE]))))
    for first, last in itertools.pairwise(edges.tolist()):
        if label[first] < 0 or not (plain & (end > begin))[first:last].any():
            continue
        used = {t.shape for call in inputs[first:last] for one in call for t in one if t.shape in known}
        if most := max(weights[int(passed[first]), shape] for shape in used):
            yield _Run(first, last, int(passed[first]), most)


def _of_data(shapes: list[Shape | None], inputs: list[Inputs], on_data: Mask) -> set[Shape]:
    """Which of the shapes data may have: their first dimension is a batch's, whole or with all rows of its samples."""
    data = {first_shape(one) for one, is_data in zip(inputs, on_data.tolist(), strict=True) if is_data}
    sizes = {prod(shape[:many]) for shape in data if shape for many in range(1, len(shape))}
    return {shape for shape in shapes if shape and (shape[0] in sizes or not data)}


def _on_weights(inputs: Inputs, known: set[Shape]) -> bool:
    tensors = [t.shape for one in inputs for t in one]
    return any(shape in known for shape in tensors) and all(shape in known or prod(shape) == 1 for shape in tensors)


def _derived(facts: Facts, ops: HostSpans, runs: list[_Run]) -> DerivedWeights:
    mine = ops.where(np.concatenate([np.arange(run.first, run.last) for run in runs]))
    shown = ops.ids[runs[0].first : runs[0].last]
    times = Counter(run.passed for run in runs)
    return DerivedWeights(
        ops=tuple(facts.rank.spans["name"].iloc[shown].astype(str)),
        made=round_half_up(int(np.median([2 * many for many in times.values()])), 2),
        weights=max(run.weights for run in runs),
        forward=mine,
        work=work_of(facts, np.concatenate((mine.ids, backward_ops(facts, mine)))),
        steps_seen=len(np.unique(used_step(facts, ops.ids[[run.first for run in runs]]))),
        site=sites_of(facts, shown[:1])[0],
    )
