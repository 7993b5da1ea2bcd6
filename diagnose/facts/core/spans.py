"""Spans of the host, and which line of the user's code was running."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from diagnose.facts.core.base import Facts, Missing, fact, once, optional
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.device import device_work, unrecorded_work
from diagnose.facts.core.host import enclosing_op, host_threads
from diagnose.facts.core.steps import Measure, steps
from diagnose.trace import enums, frames, intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

NO_OPS = Missing("framework ops", "Profile with ProfilerActivity.CPU as well.")


@dataclass(frozen=True)
class HostSpans:
    """Some spans, in order of start. Arrays of shape (spans,)."""

    ids: IntArray
    start_ns: IntArray
    end_ns: IntArray
    track: IntArray

    @property
    def times(self) -> Intervals:
        """Normal set of the time in at least one of them."""
        return intervals.union(Intervals(self.start_ns, self.end_ns))

    def where(self, chosen: npt.NDArray[np.bool_] | IntArray) -> HostSpans:
        """Some of them, by mask or position."""
        return HostSpans(self.ids[chosen], self.start_ns[chosen], self.end_ns[chosen], self.track[chosen])

    def outermost(self) -> HostSpans:
        """Those that lie in no other of them."""
        return self.where(self.parents < 0)

    @cached_property
    def parents(self) -> IntArray:
        """Position of the innermost of them that contains each one on its thread, or -1."""
        return intervals.parents(self.track, self.start_ns, self.end_ns)

    def in_steps(self, facts: Facts) -> HostSpans:
        """Those of the used steps, as `in_used_steps`."""
        return self.where(in_used_steps(facts, self.ids))


_NONE = np.zeros(0, dtype=np.int64)


NO_SPANS = HostSpans(_NONE, _NONE, _NONE, _NONE)


def host_spans(facts: Facts, *span_kinds: SpanKind, named: Callable[[str], bool] | None = None) -> HostSpans:
    """Spans of these kinds, on any thread, whose names `named` accepts (asked once per distinct name)."""
    known, kinds_asked = _known(facts), frozenset(span_kinds)
    if kinds_asked not in known:
        known[kinds_asked] = _of_kinds(facts, kinds_asked)
    every = known[kinds_asked]
    if named is None:
        return every
    labels, codes = names_of(facts), facts.rank.spans["name"].cat.codes.to_numpy()[every.ids]
    accepted = np.zeros(len(labels), dtype=bool)
    for code in np.flatnonzero(np.bincount(codes, minlength=len(labels))).tolist():
        accepted[code] = named(labels[code])
    return every.where(accepted[codes])


@once
def names_of(facts: Facts) -> list[str]:
    """The distinct names of spans, by code: one at a time the table takes a microsecond for each."""
    return list(map(str, facts.rank.spans["name"].cat.categories.tolist()))


@once
def _known(facts: Facts) -> dict[frozenset[SpanKind], HostSpans]:
    """All spans of the kinds that were asked for: many ask for the same, and for what contains what."""
    return {}


def _of_kinds(facts: Facts, span_kinds: frozenset[SpanKind]) -> HostSpans:
    spans = facts.rank.spans
    codes, wanted = spans["kind"].cat.codes.to_numpy(), np.zeros(len(SpanKind), dtype=bool)
    wanted[[enums.code(kind) for kind in span_kinds]] = True
    ids = np.flatnonzero(wanted[codes])
    start = spans["start_ns"].to_numpy()[ids]
    end = start + spans["dur_ns"].to_numpy()[ids]
    return HostSpans(ids, start, end, spans["track"].to_numpy()[ids].astype(np.int64))


def used_step(facts: Facts, ids: IntArray) -> IntArray:
    """Which used step each span belongs to, by position, or -1. Shape (ids,).

    It is the one whose mark on the host it starts in, because the host may be steps ahead of the device; of device
    work, the one that launched it. Without steps it is the window.
    """
    used, spans = steps(facts), facts.rank.spans
    if used.measure is Measure.WINDOW:
        start = spans["start_ns"].to_numpy()[ids]
        return np.where((start >= used.start_ns) & (start < used.end_ns), 0, intervals.NONE)
    position = {number: k for k, number in enumerate(used.numbers)}
    of_mark = np.array([*(position.get(mark.number, intervals.NONE) for mark in facts.rank.steps), intervals.NONE])
    found: IntArray = of_mark[spans["step"].to_numpy()[ids]]
    return found


def in_used_steps(facts: Facts, ids: IntArray) -> npt.NDArray[np.bool_]:
    """Which spans belong to used steps, by their marks on the host. Shape (ids,)."""
    return used_step(facts, ids) >= 0


def launched_in(facts: Facts, spans: HostSpans) -> IntArray:
    """For each row of `device_work` the position of the innermost of the spans that it was launched in, or -1."""
    work, table = device_work(facts), facts.rank.spans
    called = np.maximum(work.launch, 0)
    start, track = table["start_ns"].to_numpy()[called], table["track"].to_numpy()[called].astype(np.int64)
    found = intervals.innermost_at(start, track, spans.track, spans.start_ns, spans.end_ns)
    return np.where(work.launch >= 0, found, intervals.NONE)


def on_training_threads(facts: Facts, spans: HostSpans) -> HostSpans:
    """Those of the spans that are on training threads. Raises Missing like host_threads."""
    return spans.where(np.isin(spans.track, host_threads(facts).training))


def idle_under(facts: Facts, times: Intervals) -> int | None:
    """Idle time of the device within a normal set of times, ns per step; None without device work."""
    time = optional(device_time, facts)
    if time is None:
        return None
    return round_half_up(intervals.intersect(times, time.idle).total, steps(facts).count)


def whole_idle(facts: Facts) -> Intervals:
    """Idle time of the device between its first and last work of the whole recording; empty without device work."""
    busy = device_work(facts).of()
    if not busy.size:
        return intervals.EMPTY
    return intervals.subtract(intervals.gaps(busy, int(busy.starts[0]), int(busy.ends[-1])), unrecorded_work(facts))


def members(group: IntArray, groups: int) -> list[IntArray]:
    """Positions of the members of each group from 0 to groups - 1, in order."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.cumsum(np.bincount(group, minlength=groups))[:-1]) if groups else []


def require_ops(facts: Facts) -> None:
    """Without ops, dispatching them and Python between them look the same."""
    if "ops" not in facts.rank.provenance.recorded:
        raise NO_OPS


MOSTLY = 0.5  # Share of some time at one line, from which on that stands for all of it (our choice).


@fact
def frame_sites(facts: Facts) -> dict[int, Site]:
    """Site by code of the `name` category, for frames of the user's own code. Raises Missing without stacks.

    Empty where lines are known from the detail recording or samples only: see `sites_at`.
    """
    if not facts.rank.provenance.knows("stacks"):
        raise Missing("call stacks", "Record with with_stack=True.")
    spans = facts.rank.spans
    names = spans["name"].cat
    is_python = spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.PYTHON)
    sites: dict[int, Site] = {}
    for code in np.unique(names.codes.to_numpy()[is_python]):
        name = names.categories[code]
        if frames.is_user_frame(name, facts.rank.libraries) and (site := frames.frame_site(name)):
            sites[int(code)] = site
    return sites


def sites_at(facts: Facts, moments_ns: IntArray, tracks: IntArray) -> list[Site | None]:
    """The innermost line of the user's code open at each moment on its thread, else on the main thread.

    What a lambda runs is of the function that holds its line. All None where no stacks were recorded.
    """
    try:
        table, sites = user_frames(facts)
    except Missing:
        return [None] * len(moments_ns)
    track = table["track"].to_numpy().astype(np.int64)
    start = table["start_ns"].to_numpy()
    end = start + table["dur_ns"].to_numpy()
    found = intervals.innermost_at(moments_ns, tracks, track, start, end)
    lost = found < 0
    main = np.full(int(lost.sum()), host_threads(facts).main, dtype=np.int64)
    found[lost] = intervals.innermost_at(moments_ns[lost], main, track, start, end)
    of_frame = table["name"].cat.codes.to_numpy()
    named = {(site.file, site.line): site for site in sites.values() if not site.function.startswith("<")}
    held = {code: named.get((site.file, site.line), site) for code, site in sites.items() if site.line}
    return [held.get(int(of_frame[k]), sites[int(of_frame[k])]) if k >= 0 else None for k in found]


def user_frames(facts: Facts) -> tuple[pd.DataFrame, dict[int, Site]]:
    """Frames of the user's code (start_ns, dur_ns, track, name), and the site by code of the name. Raises Missing."""
    sites, lines = frame_sites(facts), facts.rank.lines
    if len(lines):
        names = enumerate(lines["name"].cat.categories)
        return lines, {code: site for code, name in names if (site := frames.frame_site(str(name)))}
    spans = facts.rank.spans
    is_python = spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.PYTHON)
    return spans[is_python & np.isin(spans["name"].cat.codes.to_numpy(), list(sites))], sites


def first_of_function(facts: Facts, site: Site | None, times: Intervals, track: int) -> Site | None:
    """The first line of a site's function that runs on the thread at these times: of a loop, that of its head."""
    if site is None or not facts.rank.provenance.knows("stacks"):
        return site
    table, sites = user_frames(facts)
    same = [code for code, one in sites.items() if (one.file, one.function) == (site.file, site.function) and one.line]
    start, codes = table["start_ns"].to_numpy(), table["name"].cat.codes.to_numpy()
    mine = np.isin(codes, same) & (table["track"].to_numpy() == track)
    mine &= intervals.covered(Intervals(start, start + table["dur_ns"].to_numpy()), times) > 0
    return min((sites[code] for code in np.unique(codes[mine]).tolist()), key=lambda one: one.line, default=site)


def cut_at_frames(facts: Facts, times: Intervals, track: int) -> Intervals:
    """A normal set of times in pieces, in each of which one line of the user's code runs on the thread.

    Raises Missing without call stacks.
    """
    return intervals.cut(times, _edges(facts, track))[0]


def _edges(facts: Facts, track: int) -> IntArray:
    """When frames of the user's code begin and end on a thread. Raises Missing."""
    table, _ = user_frames(facts)
    mine = table[table["track"] == track]
    start = mine["start_ns"].to_numpy()
    return np.concatenate((start, start + mine["dur_ns"].to_numpy()))


def site_of_most(sites: Sequence[Site | None], ns: IntArray) -> Site | None:
    """The line that MOSTLY of some time is at."""
    sums: dict[Site | None, int] = {}
    for site, lasted in zip(sites, ns.tolist(), strict=True):
        sums[site] = sums.get(site, 0) + lasted
    site, most = max(sums.items(), key=lambda item: item[1], default=(None, 0))
    return site if most >= MOSTLY * ns.sum() else None


def site_of_spans(facts: Facts, spans: HostSpans) -> Site | None:
    """The line at which most of the time of host spans goes, each by its middle."""
    return site_of_most(
        sites_at(facts, (spans.start_ns + spans.end_ns) // 2, spans.track), spans.end_ns - spans.start_ns
    )


def sites_of(facts: Facts, ids: IntArray) -> list[Site | None]:
    """The line of the user's code that led to each host span; also from an op's own call stack (old recordings).

    A call of the system runs no Python, so its middle has the line as well: stacks of other steps are placed between
    ops, and less exactly than that it begins.
    """
    spans = facts.rank.spans
    dur_ns = spans["dur_ns"].to_numpy()[ids]
    is_system = spans["kind"].cat.codes.to_numpy()[ids] == enums.code(SpanKind.SYSTEM)
    moments_ns = spans["start_ns"].to_numpy()[ids] + np.where(is_system, dur_ns // 2, 0)
    found = sites_at(facts, moments_ns, spans["track"].to_numpy()[ids].astype(np.int64))
    stacks = facts.rank.ops["stack"]
    if any(site is None for site in found) and len(stacks.cat.categories) > 1:
        for k, op in enumerate(enclosing_op(facts, ids)):
            if found[k] is None and op >= 0 and op in stacks.index:
                found[k] = _from_stack(str(stacks[op]), facts.rank.libraries)
    return found


def _from_stack(stack: str, libraries: Collection[str]) -> Site | None:
    stripped = (frame.strip() for frame in stack.split(";"))
    return next((frames.frame_site(frame) for frame in stripped if frames.is_user_frame(frame, libraries)), None)
