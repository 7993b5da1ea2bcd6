"""Longer steps: what do some do that others do not, and do they get longer from one to the next?"""

from collections.abc import Collection, Sequence
from enum import Enum

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.autograd.backward import backward_nodes, forward_ops
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import TimeCause, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_activities, host_threads
from diagnose.facts.core.inputs import Work, name_of, work_of
from diagnose.facts.core.run import manifest
from diagnose.facts.core.spans import host_spans, on_training_threads, sites_of, used_step
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.run.growth import (
    LEAST_STEPS,
    RARE_TIME,
    RISE,
    Grows,
    Measured,
    Trend,
    growing_sizes,
    trend,
    what_grows,
)
from diagnose.facts.run.pauses import Filler, Filling, Spike, checkpoints, gaps_by_line, step_spikes
from diagnose.facts.run.quality import warm_up
from diagnose.facts.run.timed_steps import uneven
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

MOST = 0.5  # What fills this share of what a step takes more is why. Chosen.
USUAL = 0.5  # What at least this share of the other steps does too is no extra work. Chosen.
TRACE = 0.1  # Share of it up to which another step has not been at a line: lines are placed that well. Chosen.

_NAMED = (Filling.ANNOTATION, Filling.LINE, Filling.OP)
# Activities of the host that may be extra work; of the others other rules tell.
_EXTRA = (TimeCause.PYTHON, TimeCause.OPS, TimeCause.LAUNCH, TimeCause.HOST_COMPUTE, TimeCause.OPTIMIZER)


class ExtraWork(Struct, frozen=True):
    """Work that some steps do and most others do not, and that makes them far longer."""

    filling: Filling  # ACTIVITY: Python between ops, of which nothing else is known.
    name: str  # Of the annotation or op; the function of a line; "" of Python between ops.
    site: Site | None
    numbers: tuple[int, ...]  # Of the steps, in order.
    ns: int  # How much more of it there is than in other steps, per step that has it.
    period: int | None  # Steps from one to the next, if there are two at least, none missing within the used steps.
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
    rows = [_extra_work(facts, rows) for rows in extra.values()]
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
    """Why a spike is no extra work of the host, as `LongSteps.others` names it; "" if it may be."""
    if spike.number in warm_up(facts).warm_up:
        return "warm_up"
    if spike.busy_excess_ns is not None and spike.busy_excess_ns >= MOST * spike.excess_ns:
        return "device"
    saved = optional(checkpoints, facts)
    if saved is not None and spike.number in saved.step[saved.in_steps]:
        return TimeCause.CHECKPOINT.value
    if intervals.clip(overhead, *_bounds(facts, spike.number)).total >= MOST * spike.excess_ns:
        return "profiler"
    large = (one for one in spike.fillers if one.filling is Filling.ACTIVITY and one.ns >= MOST * spike.excess_ns)
    return next((one.name for one in large if TimeCause(one.name) not in _EXTRA), "")


def _bounds(facts: Facts, number: int) -> tuple[int, int]:
    """Start and end of the used step of this number, ns."""
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
    """Work of spikes that most other steps do as well, so that it does not explain a spike."""
    used, long = steps(facts), {spike.number for spike in spikes}
    least = max(USUAL * (used.count - len(long)), 1)
    works = {_work(filler): filler.ns for spike in spikes for filler in spike.fillers if filler.filling in _NAMED}
    seen = {
        work: {used.numbers[k] for k in set(_positions(facts, work, ns).tolist()) if k >= 0}
        for work, ns in works.items()
    }
    return {work for work, numbers in seen.items() if len(numbers - long) >= least}


def _positions(facts: Facts, work: _Work, ns: int) -> IntArray:
    """Positions of used steps that do this work, some repeated; -1: outside. `ns`: how much of it a long step does."""
    filling, name, site = work
    if filling is Filling.LINE:
        bounds = steps(facts).bounds_ns
        return np.flatnonzero(intervals.covered(Intervals(bounds[:-1], bounds[1:]), _gaps_at(facts, site)) > TRACE * ns)
    same = host_spans(facts, SpanKind.ANNOTATION, SpanKind.OP, SpanKind.COLLECTIVE, named=name.__eq__)
    return used_step(facts, on_training_threads(facts, same).ids)


def _gaps_at(facts: Facts, site: Site | None) -> Intervals:
    gaps, sites = gaps_by_line(facts)
    return gaps.where(np.array([one == site for one in sites], dtype=bool))


def _extra_work(facts: Facts, rows: list[tuple[Spike, Filler]]) -> ExtraWork:
    """Work that several spikes have in common, with its mean time and its period in steps."""
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
    """Distance in steps between these, if it is constant and the recording misses none at its ends; else None."""
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


RARE = 0.01  # Chance of a rise that is taken for one: of counts, which vary by what steps do (our choice).


class Count(str, Enum):
    """What is counted in each recorded step."""

    NODES = "backward nodes"
    OPS = "ops of the forward pass"
    WORK = "kernels and copies"


class Kept(Struct, frozen=True):
    """Nodes of earlier steps' graphs, which backward passes go through again."""

    count: Trend  # How many of them are older than the step before, by recorded step.
    nodes: Trend  # All that backward passes run.
    forward: tuple[int, int]  # Fewest and most ops of a step outside of backward passes.
    work: Work  # What it takes to go through it.
    op: str  # The outermost op that made the last of it, in the step before; "" if that is not recorded.
    site: Site | None


class Growth(Struct, frozen=True):
    """How steps change over the recording."""

    time: Trend | None  # ns of each step without the profiler, of as much work; None unless they surely get longer.
    counts: dict[Count, Trend]  # What surely rises from step to step.
    kept: Kept | None
    grows: tuple[Grows, ...]  # What most of it is; none where `kept` is why, and where nothing stands out.


@fact
def growth(facts: Facts) -> Growth:
    """Raises Missing with fewer than LEAST_STEPS recorded steps, and without marked ones."""
    if len(facts.rank.steps) < LEAST_STEPS or steps(facts).measure is Measure.WINDOW:
        raise Missing("four steps or more", "Raise `active` in torch.profiler.schedule, and call prof.step().")
    counts = {count: rise for count, values in _counts(facts).items() if (rise := trend(values)).chance <= RARE}
    kept, time = _kept(facts), _timed_growth(facts)
    return Growth(time, counts, kept, () if kept else _grows(facts, counts, time is not None))


def _timed_growth(facts: Facts) -> Trend | None:
    """The trend of steps timed before and after the recording, by whole cycles; None unless they surely get longer."""
    known = optional(manifest, facts)
    if known is None or known.unprofiled is None or uneven(facts) is not None:
        return None
    series, cycle = [known.unprofiled, *filter(None, [known.unprofiled_after])], known.cycle
    number = np.concatenate([one.first_step + np.arange(len(one.wall_ns)) for one in series])
    first = [k for k in range(0, len(number) - cycle + 1, cycle) if number[k + cycle - 1] - number[k] < cycle]
    at = number[first].tolist()

    def cycles(*times: Sequence[int]) -> list[float]:
        """The mean step of each; none where times are not known of each step."""
        values = np.concatenate(times)
        return [float(values[k : k + cycle].mean()) for k in first] if len(values) == len(number) else []

    device, cpu = cycles(*(one.device_ns or () for one in series)), cycles(*(one.cpu_times_ns for one in series))
    times = device or cycles(*(one.wall_ns for one in series))
    if len(times) < LEAST_STEPS:
        return None
    found, length = trend(times, at), at[-1] - at[0]
    if found.chance > RARE_TIME or found.each * length < RISE * np.median(times):
        return None
    # A machine that others use makes steps longer, and no more to compute.
    if not device and cpu and trend(cpu, at).chance > RARE_TIME:
        return None
    # The ends of a line of its slope through the median time: single times vary by more than a step adds.
    begin = float(np.median(np.array(times) - found.each * (np.array(at) - at[0])))
    return replace(found, first=begin, last=begin + found.each * length)


def _counts(facts: Facts) -> dict[Count, list[int]]:
    """Counts of nodes, ops and device work in each recorded step but the last, which may be cut off."""
    found, nodes, work = dict[Count, IntArray](), optional(backward_nodes, facts), device_work(facts)
    if nodes is not None:
        spans = {Count.NODES: nodes.spans, Count.OPS: forward_ops(facts)[0]}
        found = {count: _step_of(facts, one.start_ns) for count, one in spans.items()}
    if len(work.ids):
        found[Count.WORK] = work.step
    every = len(facts.rank.steps)
    return {count: np.bincount(step[step >= 0], minlength=every)[:-1].tolist() for count, step in found.items()}


def _step_of(facts: Facts, times: IntArray) -> IntArray:
    """Position of the recorded step that has begun last, -1 before the first."""
    return np.searchsorted([one.start_ns for one in facts.rank.steps], times, side="right") - 1


def _kept(facts: Facts) -> Kept | None:
    """Backward nodes of earlier steps: a node's number tells in which step its forward op ran.

    None unless there are more of them in each step, from steps before the last one too: what is carried over once, as
    where a step ends between forward and backward pass, does not grow.
    """
    nodes = optional(backward_nodes, facts)
    if nodes is None:
        return None
    ops, main, table = host_spans(facts, SpanKind.OP), host_threads(facts).main, facts.rank.ops
    number, thread = (table[one].reindex(ops.ids, fill_value=-1).to_numpy() for one in ("sequence", "forward_thread"))
    forward = (ops.track == main) & (number >= 0) & (thread <= 0)
    made, number = ops.where(forward), number[forward]
    first_op = np.searchsorted(made.start_ns, [one.start_ns for one in facts.rank.steps])
    if first_op[-1] == len(number):
        return None
    first_number, last = number[first_op], len(first_op) - 1
    node_number = table["sequence"].reindex(nodes.spans.ids, fill_value=-1).to_numpy()
    step = _step_of(facts, nodes.spans.start_ns)
    old = (node_number >= 0) & ~nodes.adds & (step >= 0) & (node_number < first_number[step])

    def per_step(step: IntArray) -> list[int]:
        """In each recorded step from the second to the last."""
        counts: list[int] = np.bincount(step[step > 0], minlength=last + 1)[1:].tolist()
        return counts

    counts = per_step(step[old & (step > 0) & (node_number < first_number[step - 1])])
    if (np.diff(counts) <= 0).any():
        return None
    maker = made.where(number <= int(node_number[old & (step == last)].max())).ids[-1:]
    outer_ops = ops.where(ops.track == main).outermost()
    maker = outer_ops.ids[np.searchsorted(outer_ops.ids, maker, side="right") - 1]
    forward_counts = per_step(_step_of(facts, forward_ops(facts)[0].start_ns))
    return Kept(
        count=trend(counts),
        nodes=trend(per_step(step)),
        forward=(min(forward_counts), max(forward_counts)),
        work=work_of(facts, nodes.spans.ids[old]),
        op=name_of(facts, int(maker[0])) if len(maker) else "",
        site=sites_of(facts, maker)[0] if len(maker) else None,
    )


def _grows(facts: Facts, counts: Collection[Count], longer: bool) -> tuple[Grows, ...]:
    """What grows by counts (if some rise), by sizes, and by time (if steps get `longer`), without ops named before."""
    measured = Measured.WORK if set(counts) == {Count.WORK} else Measured.OPS
    found = list[Grows]()
    for one in (
        what_grows(facts, measured) if counts else None,
        growing_sizes(facts, longer),
        what_grows(facts, Measured.TIME) if longer else None,
    ):
        known = np.concatenate([np.zeros(0, dtype=np.int64), *(other.work.ids for other in found if other.work)])
        if one and not (one.work and np.isin(one.work.ids, known).any()):
            found.append(one)
    return tuple(found)
