"""What the host runs: time by op, and pauses of Python between ops for which the device was idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct, field

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import IDLE_CAUSES, LAUNCHING, TimeCause, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import api_calls, host_activities, host_threads
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.inputs import Mask, name_codes
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.spans import (
    NO_SPANS,
    host_spans,
    in_used_steps,
    members,
    names_of,
    require_ops,
    sites_at,
    whole_idle,
)
from diagnose.facts.core.steps import steps
from diagnose.facts.host.callees import Callee, called, callee, whole_calls
from diagnose.facts.run.pauses import garbage_collections
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import OWN, Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Activity, CalleeKind

T = TypeVar("T")

MOST = 0.5  # Outside the used steps, pauses cause an idle gap if they fill this share of the host's delay.

WORK_NS = 1_000_000
"""Shorter pauses are calls of modules and ops, the start of a backward pass (up to 0.8 ms in planted cases) and what
recording does at the end of a step (0.3 ms). Where the CPU computes they come with computing, and stay."""

SHORT_STEPS_SHARE, SHORT_STEPS_NS = 0.1, 300_000
"""In short steps a pause of this share is work as well, if it is as long. In 86 recordings of planted cases without
their fault the longest pauses, the median of all steps, were at most 8 % of a step (2026-11-22)."""

PIECE_NS, ROUNDS = 100_000, 4
"""A line that pauses at least that long before the same op, that often a step, works in a loop, if those pauses are as
long as one that is work. Calls of modules and ops take a fifth of that; what starts a backward pass and ends it lies on
one line, with up to three pauses of 0.9 ms in planted cases."""

MAKES = 0.5
"""What takes this share of Python's time between ops, and interrupts this share of the collections of garbage, makes
what they are for (our choice): how often Python collects goes by how many objects are made."""

SHORT_NS = 200_000  # Shorter pauses of the device are for calls of modules and hooks, not for a piece of work. Chosen.

USUAL = 0.5  # Pauses in a smaller share of the steps come now and then, as those of logs (our choice).

_PAUSES = (TimeCause.PYTHON, TimeCause.BLOCKED)  # Between ops; waits in the operating system only some recorders tell.

_IN_CALLS = (*LAUNCHING, TimeCause.SYNC, TimeCause.HOST_COPY, TimeCause.HOST_COMPUTE)  # What `whole_calls` do as well.


class Op(Struct, frozen=True):
    """All calls of one framework op on the host."""

    name: str
    calls: int  # In all used steps.
    self_ns: int  # Host time in it and in no op inside it, over all threads, per step.


@fact
def ops(facts: Facts) -> tuple[Op, ...]:
    """Ops of the used steps by name, longest self time first. Raises Missing if none were recorded there.

    Steps are those of the host, which may be ahead of the device.
    """
    spans, used = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE).in_steps(facts), steps(facts)
    if not len(spans.ids):
        raise Missing("framework ops", "Profile with ProfilerActivity.CPU.")
    inner, parent, dur = np.zeros_like(spans.ids), spans.parents, spans.end_ns - spans.start_ns
    np.add.at(inner, parent[parent >= 0], dur[parent >= 0])
    codes, labels = name_codes(facts, spans.ids), names_of(facts)
    total, count = np.bincount(codes, np.maximum(dur - inner, 0)), np.bincount(codes)
    found = [
        Op(labels[code], int(count[code]), round_half_up(int(total[code]), used.count))
        for code in np.flatnonzero(count).tolist()
    ]
    return tuple(sorted(found, key=lambda op: (-op.self_ns, op.name)))


class PythonPause(Struct, frozen=True):
    """Pauses between ops, at one line, for which the device was idle; of a training on the CPU, all of them."""

    site: Site | None  # None: no stacks, or no frame of the user's code was open.
    idle_ns: int  # Of the device, with cause `python` or `blocked`, per step; where the CPU trains, pauses themselves.
    waiting_ns: int  # Of it, while the host waited in the operating system, per step, as far as that was recorded.
    share: float  # `idle_ns` over the step.
    gaps: int  # Idle gaps, or pauses, in all used steps.
    steps_seen: int  # Used steps with at least one of them.
    steps: int  # Used steps.
    optimizer_share: float  # Of the idle time, with the optimizer's step or zeroing of gradients open.
    on_cpu: bool  # The training computes on the CPU: no device was waiting.
    times: tuple[tuple[int, Intervals], ...]
    """Track of each thread that launched what the device waited for, with its pauses in the whole recording. Within the
    used steps those that caused the idle gaps; outside them those at the same line that fill most of an idle gap."""
    collections: IntArray = field(default_factory=lambda: NO_SPANS.ids)
    """Garbage that Python collects by itself in these pauses, where that is for what they make: known on a CPU only."""
    collecting_ns: int = 0  # Time in them, per step.
    callee: Callee | None = None  # The library function with most of it; None: the line itself, or no stacks.

    @property
    def each_ns(self) -> float:
        """Mean idle time of one gap or pause, ns."""
        return self.idle_ns * self.steps / max(self.gaps, 1)

    @property
    def is_usual(self) -> bool:
        """Whether it comes in USUAL of the steps at least, and is not mostly the optimizer's."""
        return self.steps_seen >= USUAL * self.steps and self.optimizer_share < MOST

    @property
    def is_work(self) -> bool:
        """Whether it is a piece of work at a known line, rather than calls of modules and hooks."""
        if self.site is None or (self.callee is not None and self.callee.kind is CalleeKind.TORCH):
            return False
        return self.on_cpu or self.callee is not None or self.each_ns >= SHORT_NS


@fact
def python_pauses(facts: Facts) -> tuple[PythonPause, ...]:
    """Pauses by line, most idle time first. Raises Missing without ops, and like idle_gaps if a device may be used."""
    if trains_on_cpu(facts):
        return _pauses_of_cpu(facts)
    found, work, used = idle_gaps(facts), device_work(facts), steps(facts)
    require_ops(facts)
    late = _late(facts, found.gaps)
    in_calls = intervals.covered(late, whole_calls(facts)) > MOST * (late.ends - late.starts)
    in_calls &= np.isin(found.cause, [IDLE_CAUSES.index(one) for one in _IN_CALLS])
    mine = np.flatnonzero(np.isin(found.cause, [IDLE_CAUSES.index(one) for one in _PAUSES]) | in_calls)
    launch = work.launch[np.searchsorted(work.ids, found.next_work[mine])]
    tracks = facts.rank.spans["track"].to_numpy()[launch].astype(np.int64)
    waited, late = found.gaps.where(mine), late.where(mine)
    name, moments = called(facts).longest(late, tracks)
    places, group = _numbered(zip(sites_at(facts, moments, tracks), tracks.tolist(), strict=True))
    pauses, of_group = _pauses(facts, late, group, places)
    in_optimizer, ns = intervals.covered(waited, _stepping(facts)), waited.ends - waited.starts
    waiting = intervals.covered(waited, host_activities(facts)[TimeCause.BLOCKED])
    kept = np.flatnonzero(of_group >= 0)
    times: dict[Site | None, list[tuple[int, Intervals]]] = {}
    for (site, track), own in zip(places, members(of_group[kept], len(places)), strict=True):
        times.setdefault(site, []).append((track, pauses.where(kept[own])))
    of_site = _numbered(site for site, _ in places)[1][group]
    rows = [
        PythonPause(
            site=site,
            idle_ns=round_half_up(int(ns[gaps].sum()), used.count),
            waiting_ns=round_half_up(int(waiting[gaps].sum()), used.count),
            share=float(ns[gaps].sum()) / max(used.window_ns, 1),
            gaps=len(gaps),
            steps_seen=len(np.unique(np.searchsorted(used.bounds_ns, waited.starts[gaps], side="right"))),
            steps=used.count,
            optimizer_share=float(in_optimizer[gaps].sum() / ns[gaps].sum()),
            on_cpu=False,
            times=tuple(times[site]),
            callee=callee(facts, ns[gaps], name[gaps], times[site]),
        )
        for site, gaps in zip(times, members(of_site, len(times)), strict=True)
    ]
    return tuple(sorted(rows, key=lambda pause: -pause.idle_ns))


def _pauses_of_cpu(facts: Facts) -> tuple[PythonPause, ...]:
    """The pauses of the main thread that are work, by line. Garbage collections in them are subtracted."""
    require_ops(facts)
    used, main, activities = steps(facts), host_threads(facts).main, host_activities(facts)
    collecting = activities[TimeCause.GARBAGE_COLLECTION]
    active = _active(facts, but=(TimeCause.GARBAGE_COLLECTION, TimeCause.BLOCKED))
    pauses = intervals.gaps(active, int(active.starts.min(initial=0)), int(active.ends.max(initial=0)))
    own_ns = pauses.ends - pauses.starts - intervals.covered(pauses, collecting)
    middle = (pauses.starts + pauses.ends) // 2  # It is of the step that has more of it.
    inside = (middle >= used.start_ns) & (middle < used.end_ns)
    python_ns = int(own_ns[inside].sum())
    work_ns = min(WORK_NS, max(SHORT_STEPS_NS, SHORT_STEPS_SHARE * used.mean_ns))
    long = own_ns >= PIECE_NS
    pauses, own_ns, inside = pauses.where(long), own_ns[long], inside[long]
    tracks = np.full(pauses.size, main, dtype=np.int64)
    known, of_site = _numbered(sites_at(facts, called(facts).longest(pauses, tracks)[1], tracks))
    ours = np.array([site is not None for site in known], dtype=bool)
    _, rounds = np.unique(np.stack((of_site, _next_op(facts, main, pauses))), axis=1, return_inverse=True)
    rounds = rounds.reshape(-1)
    loops = np.bincount(rounds[inside], own_ns[inside], rounds.max(initial=-1) + 1) >= work_ns * used.count
    loops &= np.bincount(rounds[inside], minlength=len(loops)) >= ROUNDS * used.count
    works = (own_ns >= work_ns) | (loops[rounds] & ours[of_site])
    return _by_line(facts, pauses.where(works), inside[works], python_ns, collecting)


def _by_line(
    facts: Facts, pauses: Intervals, inside: Mask, python_ns: int, collecting: Intervals
) -> tuple[PythonPause, ...]:
    """Pauses of the main thread on a CPU by line. `python_ns`: of all its pauses in the used steps.

    What a function does itself in one pause counts to one of its lines, as of a loop. Calls of libraries keep theirs.
    """
    used, main, table = steps(facts), host_threads(facts).main, called(facts)
    pieces, owner = table.cut(pauses)
    middle, tracks = (pieces.starts + pieces.ends) // 2, np.full(pieces.size, main, dtype=np.int64)
    name, inside = table.at(middle, tracks), inside[owner]
    step = np.searchsorted(used.bounds_ns, (pauses.starts + pauses.ends) // 2, side="right")[owner]
    own_ns = pieces.ends - pieces.starts - intervals.covered(pieces, collecting)
    sites = _of_functions(sites_at(facts, middle, tracks), owner, name == table.names.index(OWN), own_ns)
    known, of_site = _numbered(sites)
    blocked = host_activities(facts)[TimeCause.BLOCKED]
    in_optimizer, waiting = (intervals.covered(pieces, one) for one in (_stepping(facts), blocked))
    rows = []
    for site, own in zip(known, members(of_site, len(known)), strict=True):
        mine = own[inside[own]]
        ns = int(own_ns[mine].sum())
        at_line = intervals.union(pieces.where(own))
        makes = site is not None and ns >= MAKES * python_ns
        collections = _mostly_in(facts, at_line) if makes else NO_SPANS.ids
        collected_ns = facts.rank.spans["dur_ns"].to_numpy()[collections[in_used_steps(facts, collections)]]
        rows.append(
            PythonPause(
                site=site,
                idle_ns=round_half_up(ns, used.count),
                waiting_ns=round_half_up(int(waiting[mine].sum()), used.count),
                share=ns / max(used.window_ns, 1),
                gaps=len(np.unique(owner[mine])),
                steps_seen=len(np.unique(step[mine])),
                steps=used.count,
                optimizer_share=float(in_optimizer[mine].sum()) / max(ns, 1),
                on_cpu=True,
                times=((main, intervals.subtract(at_line, collecting)),),
                collections=collections,
                collecting_ns=round_half_up(int(collected_ns.sum()), used.count),
                callee=callee(facts, own_ns[mine], name[mine], ((main, at_line),)),
            )
        )
    return tuple(sorted(rows, key=lambda pause: -pause.idle_ns))


def _of_functions(sites: Sequence[Site | None], pause: IntArray, own: Mask, ns: IntArray) -> list[Site | None]:
    """The line of each piece; of `own` ones (in no library call) of one function and pause, that with most time."""
    total, lines = Counter[Site](), dict[tuple[int, str, str], set[Site]]()
    for site, number, dur_ns in zip(sites, np.where(own, pause, -1).tolist(), ns.tolist(), strict=True):
        if site is not None and number >= 0:
            total[site] += dur_ns
            lines.setdefault((number, site.file, site.function), set()).add(site)
    most = {key: max(some, key=lambda site: (total[site], -site.line)) for key, some in lines.items()}
    return [
        most[number, site.file, site.function] if site is not None and of_own else site
        for site, number, of_own in zip(sites, pause.tolist(), own.tolist(), strict=True)
    ]


def _active(facts: Facts, but: tuple[TimeCause, ...]) -> Intervals:
    """When training threads are in any known activity except `but`, and in no `whole_calls`. A normal set."""
    whole = whole_calls(facts)
    known = {cause: own for cause, own in host_activities(facts).items() if cause not in but}
    return intervals.merge(
        *(intervals.subtract(own, whole) if cause in _IN_CALLS else own for cause, own in known.items())
    )


def _next_op(facts: Facts, track: int, pauses: Intervals) -> IntArray:
    """Code of the name of the first op of a thread that starts after each pause; -1 none."""
    ops = host_spans(facts, SpanKind.OP)
    ids = ops.where(ops.track == track).ids
    start = facts.rank.spans["start_ns"].to_numpy()[ids]
    codes = np.append(facts.rank.spans["name"].cat.codes.to_numpy()[ids].astype(np.int64), intervals.NONE)
    return codes[np.searchsorted(start, pauses.ends)]


def _mostly_in(facts: Facts, times: Intervals) -> IntArray:
    """Ids of automatic garbage collections in these times; none if they have under MAKES of the time of all."""
    found = optional(garbage_collections, facts)
    if found is None:
        return NO_SPANS.ids
    ids, table = found.automatic.ids, facts.rank.spans
    start, lasted = table["start_ns"].to_numpy()[ids], table["dur_ns"].to_numpy()[ids]
    inside = intervals.covered(Intervals(start, start + lasted), times) > 0
    return ids[inside] if lasted[inside].sum() >= MAKES * lasted.sum() else NO_SPANS.ids


def _stepping(facts: Facts) -> Intervals:
    calls = (Activity.OPTIMIZER_STEP, Activity.ZERO_GRAD)
    return host_spans(facts, SpanKind.OP, SpanKind.ANNOTATION, named=lambda name: kinds.activity(name) in calls).times


def _numbered(values: Iterable[T]) -> tuple[list[T], IntArray]:
    """The distinct values, and the position of each value in these."""
    known: dict[T, int] = {}
    position = np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)
    return list(known), position


def _late(facts: Facts, gaps: Intervals) -> Intervals:
    """The part of each idle gap before the work that ends it is launched; empty where that is not known."""
    work, start = device_work(facts), facts.rank.spans["start_ns"].to_numpy()
    launch = np.append(work.launch, intervals.NONE)[np.searchsorted(work.start_ns, gaps.ends)]
    return Intervals(gaps.starts, np.clip(np.where(launch >= 0, start[launch], gaps.starts), gaps.starts, gaps.ends))


def _pauses(
    facts: Facts, late: Intervals, group: IntArray, places: list[tuple[Site | None, int]]
) -> tuple[Intervals, IntArray]:
    """Pauses: times in which no training thread has a known activity; and of each its position in `places`, or -1.

    In the used steps it is the place (`group`) of the delay it lies in; outside, its own if it kept the device idle.
    """
    used, calls, active = steps(facts), api_calls(facts), _active(facts, but=(TimeCause.BLOCKED,))
    if not active.size or not late.size:
        return intervals.EMPTY, np.zeros(0, dtype=np.int64)
    pauses = intervals.gaps(active, int(active.starts[0]), int(active.ends[-1]))
    of_group = np.full(pauses.size, intervals.NONE, dtype=np.int64)
    at = np.minimum(np.searchsorted(late.ends, pauses.starts, side="right"), late.size - 1)
    causing = (late.starts[at] < pauses.ends) & (late.ends[at] > pauses.starts)
    of_group[causing] = group[at[causing]]
    outside = (pauses.ends <= used.start_ns) | (pauses.starts >= used.end_ns)
    delays = _late(facts, whole_idle(facts))
    mostly = intervals.covered(delays, pauses) >= MOST * (delays.ends - delays.starts)
    outside &= intervals.covered(pauses, delays.where(mostly)) > 0
    following = np.searchsorted(calls.start_ns, pauses.ends[outside])
    tracks = np.append(calls.track, host_threads(facts).main)[following]
    sites = sites_at(facts, (pauses.starts + pauses.ends)[outside] // 2, tracks)
    number = {place: k for k, place in enumerate(places)}
    found = [number.get(place, intervals.NONE) for place in zip(sites, tracks.tolist(), strict=True)]
    of_group[outside] = np.array(found, dtype=np.int64)
    return pauses, of_group
