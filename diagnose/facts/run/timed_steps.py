"""How long do steps take without the profiler, over whole epochs, and how much longer when they are recorded?"""

import itertools
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.run import HOW, manifest, trains_on_cpu
from diagnose.facts.core.steps import LONG, Measure, steps
from diagnose.trace.intervals import IntArray
from diagnose.trace.manifest import Epochs, Timed

UNRECORDED_SHARE = 0.1  # Of the time, from which on long unrecorded steps are told, and left out of the mean. Chosen.


class Unrecorded(Struct, frozen=True):
    """Steps without the profiler that took LONG times as long as the median one, if none of the used steps did."""

    timed: int  # All steps without the profiler.
    long: int
    ratio: float  # How many times as long as the others they are, both on average; 0 without any.
    share: float  # Of the time of all steps without the profiler.
    every: int | None  # Steps from one to the next, the median; None with fewer than two, or if as many were recorded.


UNEVEN = 0.1  # Coefficient of variation of steps' nodes, from which on these tell how much a step does. Chosen.


def uneven(facts: Facts) -> tuple[Timed, Timed] | None:
    """(unprofiled, recorded) steps, if how much they do differs, by autograd nodes; None if alike, or not counted."""
    alone, recorded = manifest(facts).unprofiled, manifest(facts).timing
    if alone is None or recorded is None:
        return None
    counted = all(len(one.nodes) == len(one.wall_ns) and min(one.nodes, default=0) > 0 for one in (alone, recorded))
    nodes = np.array([*alone.nodes, *recorded.nodes], dtype=float)
    return (alone, recorded) if counted and nodes.std() > UNEVEN * nodes.mean() else None


@fact
def unrecorded(facts: Facts) -> Unrecorded:
    """Raises Missing if no steps were timed without the profiler, and if the trace marks no steps.

    Steps that do more than others, by the nodes that they make, may take as much longer.
    """
    alone, sized = manifest(facts).unprofiled, uneven(facts)
    times = () if alone is None else alone.device_ns or alone.wall_ns
    if not times or min(times) <= 0 or steps(facts).measure is Measure.WINDOW:
        raise Missing("unprofiled step times", HOW)
    each = times if sized is None else [ns / nodes for ns, nodes in zip(times, sized[0].nodes, strict=False)]
    used = steps(facts).times_ns if sized is None else np.array(sized[1].wall_ns) / np.array(sized[1].nodes)
    usual = statistics.median(each)
    seen = bool((used > LONG * np.median(used)).any())
    long = [] if seen else [at for at, ns in enumerate(each) if ns > LONG * usual]
    gap = round(statistics.median(b - a for a, b in itertools.pairwise(long))) if len(long) > 1 else 0
    return Unrecorded(
        timed=len(times),
        long=len(long),
        ratio=_times_as_long(each, long) if long else 0.0,
        share=sum(times[at] for at in long) / sum(times),
        every=gap if gap > len(used) else None,
    )


def _times_as_long(each: Sequence[float], long: Sequence[int]) -> float:
    others = [time for at, time in enumerate(each) if at not in long]
    return statistics.fmean(each[at] for at in long) / statistics.fmean(others)


class Slowdown(Struct, frozen=True):
    """What recording costs, by the training process's own clock or by events on the device."""

    unprofiled_ns: int
    """Mean time of a step without the profiler: what comes now and then counts, but not steps of a kind that was not
    recorded."""
    mean_ns: int  # The same of all kinds; the first step of an epoch weighs as often as it comes in a whole one.
    ratio: float | None
    """Median time of a step of the timing recording over that, by one clock; of as much work, if steps do more or less.
    None if it was not timed."""
    by_phase: bool = False  # Whether what recording adds is known by phase, so that savings are of steps without it.
    longer_ns: Mapping[str, int] = field(default_factory=dict)
    """By phase that was timed, of what all steps take longer on average than the recorded kind."""
    unrecorded: Unrecorded | None = None  # Longer steps, none of which was recorded, where they take much of the time.
    size: float = 1.0
    """How many times as much recorded steps do as those without the profiler, in nodes of autograd's graph; 1 where
    steps are alike, or nobody counted."""


@fact
def slowdown(facts: Facts) -> Slowdown:
    """How much longer recorded steps take. Raises Missing if no steps were timed without the profiler.

    And if the trace marks no steps: then there is nothing to compare.
    """
    alone, recorded, cycle = manifest(facts).unprofiled, manifest(facts).timing, manifest(facts).cycle
    clocks = () if alone is None else [_whole(one, cycle) for one in (alone.device_ns, alone.wall_ns)]
    times = next((one for one in clocks if _mean(_usual(facts, one))), None)
    usual_ns, other = _mean(_usual(facts, times)), optional(unrecorded, facts)
    if alone is None or times is None or usual_ns is None or steps(facts).measure is Measure.WINDOW:
        raise Missing("unprofiled step times", HOW)
    mean_ns = _over_epochs(times, alone.first_step + len(alone.wall_ns) - len(times), manifest(facts).epochs)
    other = other if other is not None and other.share >= UNRECORDED_SHARE else None
    found = Slowdown(min(usual_ns, mean_ns), mean_ns, None, unrecorded=other)
    found = replace(found, longer_ns=_longer_ns(alone, comparable(facts), found.mean_ns - found.unprofiled_ns))
    if recorded is None:
        return found
    by_phase = _timed_by_phase(alone) and _timed_by_phase(recorded) and trains_on_cpu(facts)
    on_device = _median(recorded.device_ns or ()), _median(alone.device_ns or ())
    slow, plain = on_device if all(on_device) else (_median(recorded.wall_ns), _median(alone.wall_ns))
    ratio = slow / plain if slow and plain else None
    sized = uneven(facts)
    if sized is None or not ratio:
        return replace(found, ratio=ratio, by_phase=by_phase)
    size = statistics.fmean(sized[1].nodes) / statistics.fmean(sized[0].nodes)
    each = [statistics.fmean(one.device_ns if all(on_device) and one.device_ns else one.wall_ns) for one in sized]
    return replace(found, ratio=each[1] / each[0] / size, by_phase=by_phase, size=size)


def _over_epochs(times_ns: tuple[int, ...], first: int, epochs: Epochs | None) -> int:
    """Mean ns of steps numbered from `first`. An epoch's first step weighs as it does in a whole epoch, if known."""
    if epochs is None or not epochs.steps or epochs.steps < 2:
        return round(statistics.fmean(times_ns))
    begins = [epochs.place(first + at) == 0 for at in range(len(times_ns))]
    beginning = [ns for ns, begin in zip(times_ns, begins, strict=True) if begin]
    others = [ns for ns, begin in zip(times_ns, begins, strict=True) if not begin]
    if not others or not (beginning or epochs.first_step_ns):
        return round(statistics.fmean(times_ns))
    usual, longer = statistics.fmean(others), statistics.fmean(beginning or [epochs.first_step_ns or 0])
    return round(usual + (longer - usual) / epochs.steps)


def _longer_ns(alone: Timed, usual: IntArray, longer_ns: int) -> dict[str, int]:
    """By phase, mean ns by which all steps are longer than those at `usual`; together `longer_ns` at most."""
    if not longer_ns or not _timed_by_phase(alone) or not len(usual):
        return {}
    times = {phase: np.array(each, dtype=float) for phase, each in alone.phases_ns.items()}
    found = {phase: max(each.mean() - each[usual].mean(), 0.0) for phase, each in times.items()}
    most = min(1.0, longer_ns / max(sum(found.values()), 1.0))
    return {phase: int(ns * most) for phase, ns in found.items()}


def _timed_by_phase(timed: Timed) -> bool:
    """Whether each phase has a time for each step, as a manifest that somebody wrote may not."""
    return bool(timed.phases_ns) and all(len(one) == len(timed.wall_ns) for one in timed.phases_ns.values())


def comparable(facts: Facts) -> IntArray:
    """Positions of the steps without the profiler that are in whole cycles, and of a kind that was recorded."""
    alone, sized, other = manifest(facts).unprofiled, uneven(facts), optional(unrecorded, facts)
    if alone is None:
        return np.zeros(0, dtype=np.int64)
    each = np.array(alone.wall_ns, dtype=float) / (1.0 if sized is None else np.array(alone.nodes, dtype=float))
    most = np.inf if other is None or other.share < UNRECORDED_SHARE else LONG * float(np.median(each))
    whole = len(_whole(alone.wall_ns, manifest(facts).cycle) or ())
    return np.flatnonzero((each <= most) & (np.arange(len(each)) >= len(each) - whole))


def _whole(times_ns: tuple[int, ...] | None, cycle: int) -> tuple[int, ...] | None:
    """The times of the last whole cycles, so that long steps count in proportion; all if there is no whole one."""
    most = len(times_ns or ()) // max(cycle, 1) * max(cycle, 1)
    return times_ns[-most:] if times_ns and most else times_ns


def _usual(facts: Facts, times_ns: tuple[int, ...] | None) -> tuple[int, ...]:
    """The times, without unrecorded kinds of steps if these take UNRECORDED_SHARE of the time; () without any."""
    other, sized = optional(unrecorded, facts), uneven(facts)
    if not times_ns or other is None or other.share < UNRECORDED_SHARE:
        return times_ns or ()
    nodes = (1,) * len(times_ns) if sized is None else sized[0].nodes[-len(times_ns) :]
    most = LONG * statistics.median(ns / count for ns, count in zip(times_ns, nodes, strict=False))
    return tuple(ns for ns, count in zip(times_ns, nodes, strict=False) if ns / count <= most)


def _mean(times_ns: tuple[int, ...]) -> int | None:
    """The mean; None without times, or if one is not positive."""
    return round(statistics.fmean(times_ns)) if times_ns and min(times_ns) > 0 else None


def _median(times_ns: tuple[int, ...]) -> int | None:
    return round(statistics.median(times_ns)) if times_ns and min(times_ns) > 0 else None


class Epoch(Struct, frozen=True):
    """An epoch, as the latest whole ones were before anything was recorded."""

    steps: int
    step_ns: int  # Mean, with all that is between epochs.
    between_ns: int  # An epoch: evaluation, saving and the like, by which its first step is longer than the others.
    starting_ns: int  # An epoch: until its first batch is there, by workers that start.

    @property
    def starting_share(self) -> float:
        """Share of an epoch that it takes until the first batch is there."""
        return self.starting_ns / max(self.steps * self.step_ns, 1)


@fact
def epoch(facts: Facts) -> Epoch:
    """Raises Missing if no whole epoch was seen, once steps were steady, and if the trace marks no steps."""
    known = manifest(facts).epochs
    if known is None or not known.steps or known.step_ns is None or steps(facts).measure is Measure.WINDOW:
        raise Missing("a whole epoch before the recording", HOW)
    starting, longer = known.starting_ns or 0, 0
    if known.first_step_ns is not None and known.steps > 1:
        other = (known.steps * known.step_ns - known.first_step_ns) / (known.steps - 1)
        longer = max(round(known.first_step_ns - other), 0)
    return Epoch(
        steps=known.steps,
        step_ns=known.step_ns,
        between_ns=min(max(longer - starting, 0), known.between_ns or 0),
        starting_ns=starting,
    )
