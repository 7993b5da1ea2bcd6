"""What interrupts the training now and then: checkpoints, silences, far longer steps? For garbage see `garbage`."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import TimeCause, device_time, round_half_up
from diagnose.facts.core.host import host_activities, host_threads
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.run import marked_ranges
from diagnose.facts.core.spans import (
    HostSpans,
    cut_at_frames,
    host_spans,
    idle_under,
    in_used_steps,
    on_training_threads,
    site_of_spans,
    sites_at,
    whole_idle,
)
from diagnose.facts.core.steps import steps
from diagnose.facts.run.step_table import Filler, Filling, Labels, StepTable, step_table
from diagnose.trace import frames, intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Activity

SILENCE_NS = 50_000_000
"""A host without any event for so long while the device is idle may be collecting garbage (our choice)."""

SPIKE = 1.5  # A step this many times as long as the median one is a spike (our choice).
FILLS = 0.2  # What explains a spike fills at least this share of what the step takes more. Chosen.

_ON_HOST = (SpanKind.OP, SpanKind.LOADER, SpanKind.COLLECTIVE, SpanKind.ANNOTATION, SpanKind.PYTHON)


class Silences(Struct, frozen=True):
    """Times when the host did nothing that is recorded, and the device nothing at all. What they are is a guess."""

    times: Intervals  # Of the whole recording, each at least SILENCE_NS long.
    total: int  # In all used steps.
    idle_ns: int  # Per step.


@fact
def silences(facts: Facts) -> Silences:
    """Long silences of all training threads while the device is idle. Raises Missing without device or host events."""
    used, busy = steps(facts), intervals.merge(*host_activities(facts).values())
    device_time(facts)
    moments = on_training_threads(facts, host_spans(facts, SpanKind.ANNOTATION, SpanKind.PYTHON, SpanKind.MEMORY))
    quiet = intervals.gaps(busy, int(busy.starts.min(initial=0)), int(busy.ends.max(initial=0)))
    edges = intervals.distinct(np.concatenate((quiet.starts, quiet.ends, moments.start_ns, moments.end_ns)))
    pieces = Intervals(edges[:-1], edges[1:])
    long = pieces.ends - pieces.starts >= SILENCE_NS
    pieces = Intervals(pieces.starts[long], pieces.ends[long])
    found = intervals.intersect(intervals.intersect(pieces, quiet), whole_idle(facts))
    long = found.ends - found.starts >= SILENCE_NS
    found = Intervals(found.starts[long], found.ends[long])
    inside = (found.starts >= used.start_ns) & (found.starts < used.end_ns)
    idle_ns = intervals.clip(found, used.start_ns, used.end_ns).total
    return Silences(found, int(inside.sum()), round_half_up(idle_ns, used.count))


class Checkpoints(Struct, frozen=True):
    """Saving the state of the training, on the training threads, in order. Arrays of shape (checkpoints,)."""

    ids: IntArray  # None inside another.
    dur_ns: IntArray
    step: IntArray  # Number of the recorded step it begins in, used or not; -1 none.
    in_steps: npt.NDArray[np.bool_]  # Begins in a used step.
    host_ns: int  # Host time in them, per step.
    idle_ns: int | None  # Idle time of the device under them, per step; None without device work.
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
    used, marks = steps(facts), facts.rank.steps
    during = found.in_steps(facts).times
    numbers = np.array([*(mark.number for mark in marks), -1], dtype=np.int64)
    return Checkpoints(
        ids=found.ids,
        dur_ns=found.end_ns - found.start_ns,
        step=numbers[facts.rank.spans["step"].to_numpy()[found.ids]],
        in_steps=in_used_steps(facts, found.ids),
        host_ns=round_half_up(during.total, used.count),
        idle_ns=idle_under(facts, during),
        site=site_of_spans(facts, found),
    )


def _saves(name: str) -> bool:
    """A save of torch's, or an annotation that says so; checkpointing of activations saves nothing to a file."""
    lower = name.lower()
    said = "save" in lower and ("checkpoint" in lower or "ckpt" in lower) and frames.frame_site(name) is None
    return said or kinds.activity(name) is Activity.CHECKPOINT


class Spike(Struct, frozen=True):
    """A used step that took far longer than the median one."""

    number: int
    ns: int
    excess_ns: int  # How much longer.
    busy_excess_ns: int | None  # How much longer than in the median step the device was busy; None without device work.
    fillers: tuple[Filler, ...]
    """At most one of each kind, longest first; none where nothing recorded fills FILLS of the excess."""


class StepSpikes(Struct, frozen=True):
    """Used steps that took far longer than the median one."""

    median_ns: int
    spikes: tuple[Spike, ...]
    excess_ns: int  # Of all spikes, per used step.
    period: int | None  # Steps from one spike to the next, if there are two at least and all distances are equal.


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
    tables = _tables(facts, spike, int(FILLS * (times[at].min() - median))) if len(at) else []
    spikes = []
    for k in at.tolist():
        excess = int(times[k]) - median
        tops = (table.top(k, used.bounds_ns) for table in tables)
        fillers = [top for top in tops if top and top.ns >= FILLS * excess]
        busy_excess = None if busy is None else int(busy[k] - np.median(busy[~spike]))
        ranked = tuple(sorted(fillers, key=lambda filler: -filler.ns))
        spikes.append(Spike(used.numbers[k], int(times[k]), excess, busy_excess, ranked))
    distances = np.unique(np.diff(at))
    return StepSpikes(
        median_ns=median,
        spikes=tuple(spikes),
        excess_ns=round_half_up(sum(spike.excess_ns for spike in spikes), used.count),
        period=int(distances[0]) if len(distances) == 1 else None,
    )


def _tables(facts: Facts, spike: npt.NDArray[np.bool_], least_ns: int) -> list[StepTable]:
    """What could fill the excess of spikes, as far as it fills `least_ns` of them."""
    made = partial(step_table, facts, spike, least_ns=least_ns)
    own = {activity.value: times for activity, times in host_activities(facts).items()}
    bounds = steps(facts).bounds_ns
    own[TimeCause.PYTHON.value] = intervals.gaps(intervals.merge(*own.values()), int(bounds[0]), int(bounds[-1]))
    own.pop(TimeCause.HOST_NOT_RECORDED.value)
    label = np.repeat(np.arange(len(own)), [times.size for times in own.values()])
    together = Intervals(*(np.concatenate(edges) for edges in zip(*own.values(), strict=True)))
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)).outermost()
    tables = [made(Filling.ACTIVITY, Labels.named(label, list(own)), together)]
    names = facts.rank.spans["name"].cat
    for filling, spans in ((Filling.ANNOTATION, _annotations(facts)), (Filling.OP, ops)):
        codes, label = np.unique(names.codes.to_numpy()[spans.ids], return_inverse=True)
        labels = Labels.named(label, [str(names.categories[code]) for code in codes])
        tables.append(made(filling, labels, Intervals(spans.start_ns, spans.end_ns), spans=spans))
    gaps, sites = gaps_by_line(facts)
    known = np.array([site is not None for site in sites], dtype=bool)
    numbers: dict[Site | None, int] = {}
    label = np.array([numbers.setdefault(site, len(numbers)) for site in sites if site], dtype=np.int64)
    tables.append(made(Filling.LINE, Labels(label, [""] * len(numbers), list(numbers)), gaps.where(known)))
    return tables


def gaps_by_line(facts: Facts) -> tuple[Intervals, Sequence[Site | None]]:
    """Gaps of the device with the lines that they are for; without device work, pauses of the main thread's ops."""
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
