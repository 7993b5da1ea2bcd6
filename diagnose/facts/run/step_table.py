"""What fills the time that some steps take more than others?"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts
from diagnose.facts.core.spans import NO_SPANS, HostSpans
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals


class Filling(str, Enum):
    """What kind of thing fills the time that a step takes more than others."""

    ACTIVITY = "activity"  # What the training threads do, as in `Cause`.
    ANNOTATION = "annotation"
    OP = "op"
    LINE = "line"  # Of the user's code, while the device was idle.


class Filler(Struct, frozen=True):
    """What most fills the time that a step takes more than others, of its kind."""

    filling: Filling
    name: str  # "" of a LINE.
    site: Site | None  # Of a LINE.
    ns: int  # How much more of it there is than in the median step that is no spike.
    ids: IntArray  # Its spans in the step, of an ANNOTATION or OP.


class StepTable(Struct, frozen=True):
    """Things of one kind that could make steps longer than others."""

    filling: Filling
    names: list[str]
    sites: list[Site | None]
    spans: HostSpans
    label: IntArray  # Position in `names` of each span, or -1. Shape (spans,).
    excess_ns: npt.NDArray[np.float64]
    """Time in each used step beyond that in the median step that is no spike. Shape (names, used)."""

    def top(self, step: int, bounds_ns: IntArray) -> Filler | None:
        """What a step, by position, has most more of."""
        if not self.names:
            return None
        most = int(self.excess_ns[:, step].argmax())
        inside = (self.spans.start_ns < bounds_ns[step + 1]) & (self.spans.end_ns > bounds_ns[step])
        ids = self.spans.ids[inside & (self.label == most)]
        return Filler(self.filling, self.names[most], self.sites[most], int(self.excess_ns[most, step]), ids)


class Labels(Struct, frozen=True):
    """Which label each of some intervals has."""

    position: IntArray  # In `names`, of each interval.
    names: list[str]
    sites: list[Site | None]

    @classmethod
    def named(cls, position: IntArray, names: list[str]) -> Labels:
        """Labels without a place in the user's code."""
        return cls(position, names, [None] * len(names))


def step_table(
    facts: Facts,
    spike: npt.NDArray[np.bool_],
    filling: Filling,
    labels: Labels,
    times: Intervals,
    *,
    spans: HostSpans = NO_SPANS,
    least_ns: int = 1,
) -> StepTable:
    """The table of intervals with labels, of the labels that fill `least_ns` of the used steps that are spikes."""
    bounds = steps(facts).bounds_ns
    within = intervals.covered(times, intervals.union(Intervals(bounds[:-1][spike], bounds[1:][spike])))
    count = len(labels.names)
    kept = np.flatnonzero(np.bincount(labels.position, weights=within, minlength=count) >= max(least_ns, 1))
    position = np.full(count, -1, dtype=np.int64)
    position[kept] = np.arange(len(kept))
    at = position[labels.position]
    chosen = Intervals(times.starts[at >= 0], times.ends[at >= 0])
    ns = time_by_step(facts, chosen, at[at >= 0], len(kept))
    usual = np.median(ns[:, ~spike], axis=1, keepdims=True)
    names, places = [labels.names[k] for k in kept], [labels.sites[k] for k in kept]
    return StepTable(filling, names, places, spans, at if len(spans.ids) else position[:0], ns - usual)


def time_by_step(facts: Facts, times: Intervals, label: IntArray, labels: int) -> IntArray:
    """Time in intervals by label (0 to labels - 1) and used step. Shape (labels, used).

    Linear in the intervals and in how often they cross the bounds of steps.
    """
    bounds = steps(facts).bounds_ns
    first = np.clip(np.searchsorted(bounds, times.starts, side="right") - 1, 0, len(bounds) - 2)
    last = np.clip(np.searchsorted(bounds, times.ends, side="left") - 1, 0, len(bounds) - 2)
    pieces = np.maximum(last - first + 1, 0)
    of = np.repeat(np.arange(times.size), pieces)
    step = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    within = np.minimum(times.ends[of], bounds[step + 1]) - np.maximum(times.starts[of], bounds[step])
    found = np.zeros((labels, len(bounds) - 1), dtype=np.int64)
    np.add.at(found, (label[of], step), np.maximum(within, 0))
    return found
