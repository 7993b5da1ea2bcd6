"""What interrupts the training now and then: garbage collections, checkpoints, silences, far longer steps?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import TimeCause, device_time, round_half_up
from diagnose.facts.core.host import host_activities, host_threads
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.inputs import Mask, name_codes
from diagnose.facts.core.run import manifest, marked_ranges
from diagnose.facts.core.spans import (
    NO_SPANS,
    HostSpans,
    cut_at_frames,
    host_spans,
    in_used_steps,
    names_of,
    on_training_threads,
    site_of_spans,
    sites_at,
    used_step,
    whole_idle,
)
from diagnose.facts.core.steps import steps
from diagnose.trace import frames, intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Activity
from diagnose.trace.steps import never_again

_ON_HOST = (SpanKind.OP, SpanKind.LOADER, SpanKind.COLLECTIVE, SpanKind.ANNOTATION, SpanKind.PYTHON)

HOW_COLLECTIONS = "Record with diagnose profile, or stacks and _ExperimentalConfig(record_python_gc_info=True)."

FEW = 0.5  # Of the recorded steps: what is in more of them, the median step without the profiler has as well.


class Collections(Struct, frozen=True):
    """Garbage collections on the training threads, none inside another."""

    ids: IntArray
    total: int  # In all used steps.
    host_ns: int  # Host time in them, per step.
    longest_ns: int  # Longest of the used steps; 0 without any.
    site: Site | None = None  # The line that asks for most of it; None of those that no line asks for.


class GarbageCollections(Struct, frozen=True):
    """Python's garbage collection, except the compiler's own."""

    automatic: Collections  # Those that Python started by itself, but for `once_ids`.
    explicit: Collections  # Those that the program asked for with gc.collect.
    automatic_recorded: bool  # Whether those that Python started by itself can be seen at all.
    once_ids: IntArray  # Long ones that Python started by itself in few steps, and no step without the profiler shows.


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
    started = host_spans(facts, *_ON_HOST, named="Python GC".__eq__)
    automatic = np.isin(found.ids, started.ids)
    once, asked = automatic & _once(facts, found, automatic), found.where(~automatic)
    return GarbageCollections(
        automatic=_collections(facts, found.where(automatic & ~once)),
        explicit=replace(_collections(facts, asked), site=site_of_spans(facts, asked)),
        automatic_recorded=marked or len(started.ids) > 0,
        once_ids=found.ids[once],
    )


def _once(facts: Facts, found: HostSpans, automatic: Mask) -> Mask:
    """Which are at least half as long as the longest automatic one, if few steps have such, and no timed one has."""
    lasted = found.end_ns - found.start_ns
    longest = int(lasted[automatic].max(initial=0))
    long: Mask = 2 * lasted >= longest
    is_frequent = len(set(used_step(facts, found.ids[long & automatic]).tolist()) - {-1}) > FEW * steps(facts).count
    return long & (not is_frequent and never_again(optional(manifest, facts), longest))


def _collections(facts: Facts, found: HostSpans) -> Collections:
    """These garbage collections: how many in used steps, their host ns per step, and the longest."""
    inside = found.in_steps(facts)
    return Collections(
        ids=found.ids,
        total=len(inside.ids),
        host_ns=round_half_up(inside.times.total, steps(facts).count),
        longest_ns=int((inside.end_ns - inside.start_ns).max(initial=0)),
    )


SILENCE_NS = 50_000_000  # A host without events so long while the device is idle may be collecting garbage. Chosen.

SPIKE = 1.5  # A step this many times as long as the median one is a spike (our choice).
FILLS = 0.2  # What explains a spike fills at least this share of what the step takes more. Chosen.


@fact
def silences(facts: Facts) -> int:
    """How often in the used steps all training threads are long silent while the device is idle: why is a guess.

    Raises Missing without device or host events.
    """
    used, busy = steps(facts), intervals.merge(*host_activities(facts).values())
    device_time(facts)
    moments = on_training_threads(facts, host_spans(facts, SpanKind.ANNOTATION, SpanKind.PYTHON, SpanKind.MEMORY))
    quiet = intervals.gaps(busy, int(busy.starts.min(initial=0)), int(busy.ends.max(initial=0)))
    pieces, _ = intervals.cut(quiet, np.concatenate((moments.start_ns, moments.end_ns)))
    pieces = pieces.where(pieces.ends - pieces.starts >= SILENCE_NS)
    found = intervals.intersect(pieces, whole_idle(facts))
    long = found.ends - found.starts >= SILENCE_NS
    return int((long & (found.starts >= used.start_ns) & (found.starts < used.end_ns)).sum())


class Checkpoints(Struct, frozen=True):
    """Saving the state of the training, on the training threads, in order. Arrays of shape (checkpoints,)."""

    ids: IntArray  # None inside another.
    dur_ns: IntArray
    step: IntArray  # Number of the recorded step it begins in, used or not; -1 none.
    in_steps: Mask  # Begins in a used step.
    host_ns: int  # Host time in them, per step.
    site: Site | None  # The line that most of it is for.

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the used steps in which one begins, in order."""
        return tuple(np.unique(self.step[self.in_steps & (self.step >= 0)]).tolist())

    @property
    def longest_ns(self) -> int:
        """Longest of the used steps; 0 without any."""
        return int(self.dur_ns[self.in_steps].max(initial=0))


@fact
def checkpoints(facts: Facts) -> Checkpoints:
    """Saves that were recorded, by frame or annotation. Raises Missing if none was and no stacks were recorded."""
    found = on_training_threads(facts, host_spans(facts, *_ON_HOST, named=_saves)).outermost()
    unseen = "stacks" not in facts.rank.provenance.recorded
    if not len(found.ids) and unseen and Activity.CHECKPOINT.value not in marked_ranges(facts):
        how = 'Record with diagnose profile, with with_stack=True, or save inside record_function("save_checkpoint").'
        raise Missing("checkpoints", how)
    numbers = np.array([*(mark.number for mark in facts.rank.steps), -1], dtype=np.int64)
    return Checkpoints(
        ids=found.ids,
        dur_ns=found.end_ns - found.start_ns,
        step=numbers[facts.rank.spans["step"].to_numpy()[found.ids]],
        in_steps=in_used_steps(facts, found.ids),
        host_ns=round_half_up(found.in_steps(facts).times.total, steps(facts).count),
        site=site_of_spans(facts, found),
    )


def _saves(name: str) -> bool:
    """Whether a name is of a save by torch, or of an annotation that says so; not of activation checkpointing."""
    lower = name.lower()
    said = "save" in lower and ("checkpoint" in lower or "ckpt" in lower) and frames.frame_site(name) is None
    return said or kinds.activity(name) is Activity.CHECKPOINT


class Filling(str, Enum):
    """What kind of thing fills the time that a step takes more than others."""

    ACTIVITY = "activity"  # What the training threads do, as in `TimeCause`.
    ANNOTATION = "annotation"
    OP = "op"
    LINE = "line"  # Of the user's code, while the device was idle.


class Filler(Struct, frozen=True):
    """The activity, annotation, op or line with most of the time that a spike takes more than other steps."""

    filling: Filling
    name: str  # "" of a LINE.
    site: Site | None  # Of a LINE.
    ns: int  # How much more of it there is than in the median step that is no spike.
    ids: IntArray  # Its spans in the step, of an ANNOTATION or OP.


class Spike(Struct, frozen=True):
    """A used step that took far longer than the median one."""

    number: int
    excess_ns: int  # How much longer.
    busy_excess_ns: int | None  # How much longer than in the median step the device was busy; None without device work.
    fillers: tuple[Filler, ...]  # At most one of each kind, longest first; none fills less than FILLS of the excess.


class StepSpikes(Struct, frozen=True):
    """Used steps that took far longer than the median one."""

    median_ns: int
    spikes: tuple[Spike, ...]


@fact
def step_spikes(facts: Facts) -> StepSpikes:
    """Steps longer than SPIKE times the median. Raises Missing with fewer than three used steps."""
    used = steps(facts)
    if used.count < 3:
        raise Missing("three steps or more", "Raise `active` in torch.profiler.schedule, and call prof.step().")
    times, median = used.times_ns, int(np.median(used.times_ns))
    spike = times > SPIKE * median
    at, time = np.flatnonzero(spike), optional(device_time, facts)
    bounds = Intervals(used.bounds_ns[:-1], used.bounds_ns[1:])
    busy = None if time is None else intervals.covered(bounds, time.busy)
    tops = _tops(facts, spike, int(FILLS * (times[at].min() - median))) if len(at) else []
    spikes = []
    for k, some in zip(at.tolist(), zip(*tops, strict=True), strict=True):
        excess = int(times[k]) - median
        fillers = [top for top in some if top and top.ns >= FILLS * excess]
        busy_excess = None if busy is None else int(busy[k] - np.median(busy[~spike]))
        ranked = tuple(sorted(fillers, key=lambda filler: -filler.ns))
        spikes.append(Spike(used.numbers[k], excess, busy_excess, ranked))
    return StepSpikes(median, tuple(spikes))


def _tops(facts: Facts, spike: Mask, least_ns: int) -> list[list[Filler | None]]:
    """For each kind of filling and spike, the activity, annotation, op or line with most extra time; None if none."""
    bounds, top = steps(facts).bounds_ns, partial(_top, facts, spike, least_ns)
    own = {activity.value: times for activity, times in host_activities(facts).items()}
    own[TimeCause.PYTHON.value] = intervals.gaps(intervals.merge(*own.values()), int(bounds[0]), int(bounds[-1]))
    own.pop(TimeCause.HOST_NOT_RECORDED.value)
    label = np.repeat(np.arange(len(own)), [times.size for times in own.values()])
    together = Intervals(*(np.concatenate(edges) for edges in zip(*own.values(), strict=True)))
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)).outermost()
    found = [top(Filling.ACTIVITY, label, [(name, None) for name in own], together)]
    for filling, spans in ((Filling.ANNOTATION, _annotations(facts)), (Filling.OP, ops)):
        codes, label = np.unique(name_codes(facts, spans.ids), return_inverse=True)
        labels = [(names_of(facts)[code], None) for code in codes.tolist()]
        found.append(top(filling, label, labels, Intervals(spans.start_ns, spans.end_ns), spans.ids))
    gaps, sites = gaps_by_line(facts)
    numbers: dict[Site, int] = {}
    label = np.array([numbers.setdefault(site, len(numbers)) for site in sites if site], dtype=np.int64)
    known = np.array([site is not None for site in sites], dtype=bool)
    return [*found, top(Filling.LINE, label, [("", site) for site in numbers], gaps.where(known))]


def _top(
    facts: Facts,
    spike: Mask,
    least_ns: int,
    filling: Filling,
    label: IntArray,
    labels: Sequence[tuple[str, Site | None]],
    times: Intervals,
    ids: IntArray = NO_SPANS.ids,
) -> list[Filler | None]:
    """For each spike, the label with most time beyond the median of other steps; None if all are below `least_ns`."""
    bounds = steps(facts).bounds_ns
    within = intervals.covered(times, intervals.union(Intervals(bounds[:-1][spike], bounds[1:][spike])))
    kept = np.flatnonzero(np.bincount(label, within, len(labels)) >= max(least_ns, 1))
    if not len(kept):
        return [None] * int(spike.sum())
    chosen = np.isin(label, kept)
    ns = time_by_step(facts, times.where(chosen), np.searchsorted(kept, label[chosen]), len(kept))
    excess_ns, found = ns - np.median(ns[:, ~spike], axis=1, keepdims=True), list[Filler | None]()
    for k in np.flatnonzero(spike).tolist():
        most = int(excess_ns[:, k].argmax())
        inside = (label == kept[most]) & (times.starts < bounds[k + 1]) & (times.ends > bounds[k])
        name, site = labels[int(kept[most])]
        found.append(Filler(filling, name, site, int(excess_ns[most, k]), ids[inside] if len(ids) else ids))
    return found


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


def gaps_by_line(facts: Facts) -> tuple[Intervals, Sequence[Site | None]]:
    """Idle gaps of the device with their lines; without device work, pauses of training threads by line of `main`."""
    found = optional(idle_gaps, facts)
    if found is not None:
        return found.gaps, found.sites
    main, bounds = host_threads(facts).main, steps(facts).bounds_ns
    pauses = intervals.gaps(intervals.merge(*host_activities(facts).values()), int(bounds[0]), int(bounds[-1]))
    with suppress(Missing):
        pauses = cut_at_frames(facts, pauses, main)
    return pauses, sites_at(facts, (pauses.starts + pauses.ends) // 2, np.full(pauses.size, main))


def _annotations(facts: Facts) -> HostSpans:
    """Outermost annotations, except marks of steps and what goes on for a used step or longer."""
    bounds = steps(facts).bounds_ns
    named = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: kinds.activity(name) is not Activity.STEP)
    spans = on_training_threads(facts, named)
    whole = np.searchsorted(bounds, spans.end_ns, side="right") - np.searchsorted(bounds, spans.start_ns) > 1
    return spans.where(~whole).outermost()
