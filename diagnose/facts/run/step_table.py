"""What fills the time that some steps take more than others, and how long Python collects garbage."""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import Mask
from diagnose.facts.core.run import manifest, marked_ranges
from diagnose.facts.core.spans import (
    NO_SPANS,
    HostSpans,
    host_spans,
    idle_under,
    on_training_threads,
    site_of_spans,
    used_step,
)
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Activity
from diagnose.trace.steps import never_again

HOW_COLLECTIONS = "Record with diagnose profile, or stacks and _ExperimentalConfig(record_python_gc_info=True)."

FEW = 0.5  # Of the recorded steps: what is in more of them, the median step without the profiler has as well.

_AUTOMATIC = "Python GC"
_ON_HOST = (SpanKind.OP, SpanKind.LOADER, SpanKind.COLLECTIVE, SpanKind.ANNOTATION, SpanKind.PYTHON)


class Collections(Struct, frozen=True):
    """Garbage collections on the training threads, none inside another."""

    ids: IntArray
    total: int  # In all used steps.
    host_ns: int  # Host time in them, per step.
    idle_ns: int | None  # Idle time of the device under them, per step; None without device work.
    longest_ns: int  # Longest of the used steps; 0 without any.
    site: Site | None = None  # The line that asks for most of it; None of those that no line asks for.


class GarbageCollections(Struct, frozen=True):
    """Python's garbage collection, except the compiler's own."""

    automatic: Collections  # Those that Python started by itself, but for `once_ids`.
    explicit: Collections  # Those that the program asked for with gc.collect.
    automatic_recorded: bool  # Whether those that Python started by itself can be seen at all.
    once_ids: IntArray
    """Long ones that Python started by itself in few steps, as no step without the profiler shows them."""


@fact
def garbage_collections(facts: Facts) -> GarbageCollections:
    """Collections in the used steps. Raises Missing if none was recorded and there are no stacks to show them.

    torch 2.13 records automatic collections only with stacks and record_python_gc_info both; `diagnose profile`
    all but those of the youngest objects.
    """
    marked = Activity.GARBAGE_COLLECTION.value in marked_ranges(facts)
    named = host_spans(facts, *_ON_HOST, named=lambda name: kinds.activity(name) is Activity.GARBAGE_COLLECTION)
    found = on_training_threads(facts, named).outermost()
    if not len(found.ids) and not marked and "stacks" not in facts.rank.provenance.recorded:
        raise Missing("garbage collections", HOW_COLLECTIONS)
    compiling = host_spans(facts, *_ON_HOST, named=lambda name: kinds.activity(name) is Activity.COMPILE)
    found = found.where(intervals.covered(Intervals(found.start_ns, found.end_ns), compiling.times) == 0)
    started = host_spans(facts, *_ON_HOST, named=lambda name: name == _AUTOMATIC)
    automatic = np.isin(found.ids, started.ids)
    once = automatic & _once(facts, found, automatic)
    return GarbageCollections(
        automatic=_collections(facts, found.where(automatic & ~once)),
        explicit=replace(
            _collections(facts, found.where(~automatic)), site=site_of_spans(facts, found.where(~automatic))
        ),
        automatic_recorded=marked or len(started.ids) > 0,
        once_ids=found.ids[once],
    )


def _once(facts: Facts, found: HostSpans, automatic: Mask) -> Mask:
    """Which are at least half as long as the longest of some, if few steps have those and the others none."""
    lasted = found.end_ns - found.start_ns
    longest = int(lasted[automatic].max(initial=0))
    long: Mask = 2 * lasted >= longest
    often = len(set(used_step(facts, found.ids[long & automatic]).tolist()) - {-1}) > FEW * steps(facts).count
    return long & (not often and never_again(optional(manifest, facts), longest))


def _collections(facts: Facts, found: HostSpans) -> Collections:
    inside = found.in_steps(facts)
    return Collections(
        ids=found.ids,
        total=len(inside.ids),
        host_ns=round_half_up(inside.times.total, steps(facts).count),
        idle_ns=idle_under(facts, inside.times),
        longest_ns=int((inside.end_ns - inside.start_ns).max(initial=0)),
    )


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
