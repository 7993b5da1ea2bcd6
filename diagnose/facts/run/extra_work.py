"""What do steps that take far longer than others do, that the others do not?"""

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import TimeCause, round_half_up
from diagnose.facts.core.host import host_activities, host_threads
from diagnose.facts.core.spans import host_spans, on_training_threads, used_step
from diagnose.facts.core.steps import steps
from diagnose.facts.run.pauses import Spike, checkpoints, gaps_by_line, step_spikes
from diagnose.facts.run.quality import warm_up
from diagnose.facts.run.step_table import Filler, Filling
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

MOST = 0.5  # What fills this share of what a step takes more is why. Chosen.
USUAL = 0.5  # What at least this share of the other steps does too is no extra work. Chosen.
TRACE = 0.1  # Share of it up to which another step has not been at a line: lines are placed that well. Chosen.

_NAMED = (Filling.ANNOTATION, Filling.LINE, Filling.OP)
_OF_OTHERS = (
    TimeCause.GARBAGE_COLLECTION,
    TimeCause.COMPILE,
    TimeCause.CHECKPOINT,
    TimeCause.ALLOCATION,
    TimeCause.SYNC,
    TimeCause.LOADER,
    TimeCause.OTHER_RANK,
    TimeCause.HOST_COPY,
    TimeCause.BLOCKED,
)


class ExtraWork(Struct, frozen=True):
    """Work that some steps do and most others do not, and that makes them far longer."""

    filling: Filling  # ACTIVITY: Python between ops, of which nothing else is known.
    name: str  # Of the annotation or op; the function of a line; "" of Python between ops.
    site: Site | None
    numbers: tuple[int, ...]  # Of the steps, in order.
    ns: int  # How much more of it there is than in other steps, per step that has it.
    period: int | None
    """Steps from one to the next, if there are two at least, and none is missing within the used steps."""
    ids: IntArray  # Its spans, if it is an annotation or op.
    track: int  # The main training thread.
    times: Intervals  # When that thread was in it, if it has no spans.


class LongSteps(Struct, frozen=True):
    """Used steps that took far longer than the median one."""

    median_ns: int
    count: int
    extra: tuple[ExtraWork, ...]  # Most of it first.
    others: tuple[tuple[str, tuple[int, ...]], ...]
    """Numbers of the other long steps by what makes them long: a `TimeCause`, `warm_up`, `device` (more work on the
    device), `profiler`, or `unknown`."""


@fact
def long_steps(facts: Facts) -> LongSteps:
    """Long steps with what they do that others do not. Raises Missing like step_spikes."""
    found = step_spikes(facts)
    extra: dict[_Work, list[tuple[Spike, Filler]]] = {}
    others: dict[str, list[int]] = {}
    overhead = host_spans(facts, SpanKind.OVERHEAD).times
    usual = _usual(facts, found.spikes)
    for spike in found.spikes:
        why = _other_reason(facts, spike, overhead)
        filler = None if why else _extra(spike, usual)
        if filler is None:
            others.setdefault(why or "unknown", []).append(spike.number)
        else:
            extra.setdefault(_work(filler), []).append((spike, filler))
    rows = [_together(facts, rows) for rows in extra.values()]
    return LongSteps(
        median_ns=found.median_ns,
        count=len(found.spikes),
        extra=tuple(sorted(rows, key=lambda row: -row.ns * len(row.numbers))),
        others=tuple((why, tuple(numbers)) for why, numbers in others.items()),
    )


_Work = tuple[Filling, str, Site | None]


def _work(filler: Filler) -> _Work:
    return filler.filling, filler.name, filler.site


def _other_reason(facts: Facts, spike: Spike, overhead: Intervals) -> str:
    """Why a spike is no extra work of the host; empty if it may be."""
    if spike.number in warm_up(facts).warm_up:
        return "warm_up"
    if spike.busy_excess_ns is not None and spike.busy_excess_ns >= MOST * spike.excess_ns:
        return "device"
    saved = optional(checkpoints, facts)
    if saved is not None and spike.number in saved.step[saved.in_steps]:
        return TimeCause.CHECKPOINT.value
    if intervals.clip(overhead, *_bounds(facts, spike.number)).total >= MOST * spike.excess_ns:
        return "profiler"
    activities = [
        filler for filler in spike.fillers if filler.filling is Filling.ACTIVITY and filler.ns >= MOST * spike.excess_ns
    ]
    return next((activity.name for activity in activities if TimeCause(activity.name) in _OF_OTHERS), "")


def _bounds(facts: Facts, number: int) -> tuple[int, int]:
    used = steps(facts)
    at = used.numbers.index(number)
    return int(used.bounds_ns[at]), int(used.bounds_ns[at + 1])


def _extra(spike: Spike, usual: set[_Work]) -> Filler | None:
    """What most of the spike is filled with and other steps do not do; else Python between ops, else None."""
    large = {filler.filling: filler for filler in spike.fillers if filler.ns >= MOST * spike.excess_ns}
    for filling in _NAMED:
        if filling in large and _work(large[filling]) not in usual:
            return large[filling]
    python = large.get(Filling.ACTIVITY)
    return python if python is not None and python.name == TimeCause.PYTHON.value else None


def _usual(facts: Facts, spikes: tuple[Spike, ...]) -> set[_Work]:
    used, long = steps(facts), {spike.number for spike in spikes}
    least = max(USUAL * (used.count - len(long)), 1)
    works = {_work(filler): filler.ns for spike in spikes for filler in spike.fillers if filler.filling in _NAMED}
    seen = {
        work: {used.numbers[k] for k in set(_positions(facts, work, ns).tolist()) if k >= 0}
        for work, ns in works.items()
    }
    return {work for work, numbers in seen.items() if len(numbers - long) >= least}


def _positions(facts: Facts, work: _Work, ns: int) -> IntArray:
    """The used steps, by position, that do it; -1 for none. `ns`: how much of it a long step does."""
    filling, name, site = work
    if filling is Filling.LINE:
        bounds = steps(facts).bounds_ns
        return np.flatnonzero(intervals.covered(Intervals(bounds[:-1], bounds[1:]), _gaps_at(facts, site)) > TRACE * ns)
    same = host_spans(facts, SpanKind.ANNOTATION, SpanKind.OP, SpanKind.COLLECTIVE, named=name.__eq__)
    return used_step(facts, on_training_threads(facts, same).ids)


def _gaps_at(facts: Facts, site: Site | None) -> Intervals:
    gaps, sites = gaps_by_line(facts)
    return gaps.where(np.array([one == site for one in sites], dtype=bool))


def _together(facts: Facts, rows: list[tuple[Spike, Filler]]) -> ExtraWork:
    numbers, fillers = tuple(spike.number for spike, _ in rows), [filler for _, filler in rows]
    first = fillers[0]
    pieces = (
        [] if len(first.ids) else [_times(facts, number, one) for number, one in zip(numbers, fillers, strict=True)]
    )
    return ExtraWork(
        filling=first.filling,
        name="" if first.filling is Filling.ACTIVITY else first.site.function if first.site else first.name,
        site=first.site,
        numbers=numbers,
        ns=round_half_up(sum(one.ns for one in fillers), len(fillers)),
        period=_period(facts, numbers),
        ids=np.concatenate([one.ids for one in fillers]),
        track=host_threads(facts).main,
        times=intervals.merge(*pieces) if pieces else intervals.EMPTY,
    )


def _period(facts: Facts, numbers: tuple[int, ...]) -> int | None:
    distances, used = set(np.diff(numbers).tolist()), steps(facts).numbers
    if len(distances) != 1:
        return None
    (period,) = distances
    whole = numbers[0] - period < used[0] and numbers[-1] + period > used[-1]
    return period if whole else None


def _times(facts: Facts, number: int, filler: Filler) -> Intervals:
    """The idle gaps at a line in a step, or its longest pauses of Python, as many as fill what it takes more."""
    low, high = _bounds(facts, number)
    if filler.filling is Filling.LINE:
        return intervals.clip(_gaps_at(facts, filler.site), low, high)
    pauses = intervals.gaps(intervals.merge(*host_activities(facts).values()), low, high)
    longest = np.argsort(pauses.starts - pauses.ends, kind="stable")
    enough = int(np.searchsorted(np.cumsum((pauses.ends - pauses.starts)[longest]), filler.ns)) + 1
    chosen = np.sort(longest[:enough])
    return Intervals(pauses.starts[chosen], pauses.ends[chosen])
