"""What do ops work through that is larger in each step?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from diagnose.facts.core.base import Facts
from diagnose.facts.core.inputs import Inputs, inputs_read
from diagnose.facts.core.names import name_of
from diagnose.facts.core.shaped import Shape, work_of
from diagnose.facts.core.spans import host_spans, on_training_threads
from diagnose.facts.core.steps import steps
from diagnose.facts.run.trend import Trend, trend
from diagnose.facts.run.what_grows import EVEN, Grows, Measured, sites_by_maker
from diagnose.trace import intervals, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.varying import VaryingShapes, varying_shapes

LEAST_SIZES = 3
"""Steps, from which on sizes tell whether they rise evenly (our choice)."""

SURE_SIZES = 5
"""Steps, from which on sizes that rise by the same in each are no chance (our choice)."""

WITNESSES = 2
"""Of four, that tell what piles up from batches that happen to be larger (our choice): it rises by the same in each
step; it did over SURE_SIZES; it has at least doubled since the run began, at this rate; steps surely get longer."""

DOUBLED = 2


@dataclass(frozen=True)
class _Larger:
    """An input that is larger in each step, and the extent of it that is."""

    shapes: tuple[Shape, ...]
    rise: Trend
    at_start: float
    adds: bool
    """Whether the op joins tensors to one as large as what it takes in the next step."""

    @property
    def order(self) -> tuple[bool, int]:
        """Later is what tells more of it."""
        return self.adds, prod(self.shapes[-1])


def growing_sizes(facts: Facts, longer: bool) -> Grows | None:
    """All ops with inputs that are larger in each step; `longer`: steps surely take longer.

    It is told of the op that adds to what grows, else of the first one in a step. None if nothing grows, and without
    shapes of LEAST_SIZES consecutive steps.
    """
    varying = _varying(facts)
    if varying is None:
        return None
    read = {one: inputs_read(one, "") for by_step in varying.shapes for one in by_step}
    found = [_larger([read[one] for one in by_step], varying.steps, longer) for by_step in varying.shapes]
    tops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost()
    spans, which = facts.rank.spans.iloc[varying.ids], varying.which.tolist()
    start, track = spans["start_ns"].to_numpy(), spans["track"].to_numpy().astype(np.int64)
    inside = nesting.innermost_at(start, track, tops.track, tops.start_ns, tops.end_ns).tolist()
    of_top = dict[int, _Larger]()
    for top, one in zip(inside, (found[row] for row in which), strict=True):
        if top >= 0 and one is not None:
            of_top[top] = max(of_top.get(top, one), one, key=lambda known: known.order)
    if not of_top:
        return None
    mine = np.array(sorted(of_top))
    shown = next((top for top in mine.tolist() if of_top[top].adds), int(mine[0]))
    told, ops, used = of_top[shown], tops.where(mine), steps(facts)
    now = used.numbers[0] + (used.count - 1) / 2
    left = [_left(of_top[top], now) for top in mine.tolist()]
    return Grows(
        measured=Measured.SIZES,
        names=(name_of(facts, int(tops.ids[shown])),),
        rise=told.rise,
        at_start=told.at_start,
        left=float(np.average(left, weights=ops.end_ns - ops.start_ns + 1)),
        work=work_of(facts, ops.ids),
        times=intervals.EMPTY,
        track=int(tops.track[shown]),
        site=sites_by_maker(facts, tops.where(np.array([shown])))[0],
        inputs=told.shapes,
    )


def _varying(facts: Facts) -> VaryingShapes | None:
    rank, numbers = facts.rank, tuple(step.number for step in facts.rank.steps)
    own = rank.varying is None and "shapes" in rank.provenance.recorded
    found = varying_shapes(rank.spans, rank.ops, numbers) if own else rank.varying
    if found is None or len(found.steps) < LEAST_SIZES or set(np.diff(found.steps).tolist()) != {1}:
        return None
    return found


def _larger(by_step: Sequence[Inputs], numbers: Sequence[int], longer: bool) -> _Larger | None:
    """Of the inputs of an op in each of these steps the largest one that grows."""
    found = list[_Larger]()
    for lists in zip(*by_step, strict=False):
        if len({len(tensors) for tensors in lists}) > 1:
            continue
        for tensors in zip(*lists, strict=True):
            shapes = tuple(one.shape for one in tensors)
            if len({len(shape) for shape in shapes}) > 1 or (np.diff([*map(prod, shapes)]) <= 0).any():
                continue
            for along, extents in enumerate(zip(*shapes, strict=True)):
                rise = trend(extents)
                assert rise is not None
                at_start = rise.first - rise.each * numbers[0]
                if _piles_up(extents, rise.each, at_start, longer):
                    joined = tuple(_joined([one.shape for one in tensors], along) for tensors in lists)
                    found.append(_Larger(shapes, rise, at_start, joined[:-1] == extents[1:]))
    return max(found, key=lambda one: one.order, default=None)


def _joined(shapes: Sequence[Shape], along: int) -> int:
    """How far tensors reach, put one after the other."""
    return sum(shape[along] for shape in shapes if len(shape) > along)


def _piles_up(extents: Sequence[int], each: float, at_start: float, longer: bool) -> bool:
    rises = np.diff(extents)
    if rises.min() <= 0 or rises.min() < EVEN * each:
        return False
    equal = bool(rises.min() == rises.max())
    doubled = -each <= at_start and DOUBLED * at_start <= extents[0]
    return sum((equal, equal and len(extents) >= SURE_SIZES, doubled, longer)) >= WITNESSES


def _left(one: _Larger, now: float) -> float:
    """Share of its size in step `now` that there was when the run began; 0 if it grows only since later."""
    return one.at_start / (one.at_start + one.rise.each * now) if one.at_start > 0 else 0.0
