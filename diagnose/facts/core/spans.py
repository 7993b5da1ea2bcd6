"""Spans of the host, and which line of the user's code was running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from diagnose.facts.core.base import Facts, Missing, fact, once, optional
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.device import device_gaps, device_work, unrecorded_work
from diagnose.facts.core.host import enclosing_op, host_threads
from diagnose.facts.core.steps import Measure, steps
from diagnose.trace import enums, frames, intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

NO_OPS = Missing("framework ops", "Profile with ProfilerActivity.CPU as well.")


@dataclass(frozen=True)
class HostSpans:
    """Some spans, in order of start unless said otherwise. Arrays of shape (spans,)."""

    ids: IntArray
    start_ns: IntArray
    end_ns: IntArray
    track: IntArray

    @property
    def times(self) -> Intervals:
        """Normal set of the time in at least one of them."""
        return intervals.union(Intervals(self.start_ns, self.end_ns))

    def where(self, chosen: npt.NDArray[np.bool_] | IntArray) -> HostSpans:
        """Some of them, by mask or position, in the order of the positions."""
        return HostSpans(self.ids[chosen], self.start_ns[chosen], self.end_ns[chosen], self.track[chosen])

    def outermost(self) -> HostSpans:
        """Those that lie in no other of them on their thread."""
        return self.where(self.parents < 0)

    @cached_property
    def parents(self) -> IntArray:
        """Position of the innermost of them that contains each one on its thread, or -1."""
        return intervals.parents(self.track, self.start_ns, self.end_ns)

    def open_at(self, moments_ns: IntArray, tracks: IntArray) -> IntArray:
        """Position of the innermost of them that is open at each moment on its thread, or -1."""
        return intervals.innermost_at(moments_ns, tracks, self.track, self.start_ns, self.end_ns)

    def around(self, others: HostSpans) -> IntArray:
        """Position of the innermost of them that is open when each of the others starts, or -1."""
        return self.open_at(others.start_ns, others.track)

    def in_steps(self, facts: Facts) -> HostSpans:
        """Those of the used steps, as `in_used_steps`."""
        return self.where(in_used_steps(facts, self.ids))


NO_SPANS = HostSpans(*np.zeros((4, 0), dtype=np.int64))


def host_spans(facts: Facts, *span_kinds: SpanKind, named: Callable[[str], bool] | None = None) -> HostSpans:
    """All spans of these kinds in the recording, on any thread; with `named`, those whose name it accepts."""
    known, asked = _spans_by_kinds(facts), frozenset(span_kinds)
    if asked not in known:
        wanted = np.zeros(len(SpanKind), dtype=bool)
        wanted[[enums.code(kind) for kind in asked]] = True
        known[asked] = spans_of(facts, np.flatnonzero(wanted[facts.rank.spans["kind"].cat.codes.to_numpy()]))
    every = known[asked]
    if named is None:
        return every
    labels, codes = names_of(facts), facts.rank.spans["name"].cat.codes.to_numpy()[every.ids]
    accepted = np.zeros(len(labels), dtype=bool)
    for code in np.flatnonzero(np.bincount(codes, minlength=len(labels))).tolist():
        accepted[code] = named(labels[code])
    return every.where(accepted[codes])


@once
def names_of(facts: Facts) -> list[str]:
    """The names of spans by their code, as a list: looking up one in the table takes a microsecond."""
    return list(map(str, facts.rank.spans["name"].cat.categories.tolist()))


@once
def _spans_by_kinds(facts: Facts) -> dict[frozenset[SpanKind], HostSpans]:
    """The cache of `host_spans`, which fills it: many ask for the same spans, and for their `parents`."""
    return {}


def spans_of(facts: Facts, ids: IntArray) -> HostSpans:
    """The spans of these ids, in the order of `ids`."""
    start, dur, track = (facts.rank.spans[name].to_numpy()[ids] for name in ("start_ns", "dur_ns", "track"))
    return HostSpans(ids, start, start + dur, track.astype(np.int64))


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
    of_mark = [position.get(mark.number, intervals.NONE) for mark in facts.rank.steps]
    found: IntArray = np.array([*of_mark, intervals.NONE], dtype=np.int64)[spans["step"].to_numpy()[ids]]
    return found


def in_used_steps(facts: Facts, ids: IntArray) -> npt.NDArray[np.bool_]:
    """Which spans belong to used steps, by their marks on the host. Shape (ids,)."""
    return used_step(facts, ids) >= 0


def launched_in(facts: Facts, spans: HostSpans) -> IntArray:
    """For each row of `device_work` the position of the innermost of the spans that launched it, or -1."""
    launch = device_work(facts).launch
    return np.where(launch >= 0, spans.around(spans_of(facts, np.maximum(launch, 0))), intervals.NONE)


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
    return intervals.subtract(device_gaps(facts), unrecorded_work(facts))


def members(group: IntArray, groups: int) -> list[IntArray]:
    """By group from 0 to groups - 1, the positions of its members in order. `group`: that of each position."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.cumsum(np.bincount(group, minlength=groups))[:-1]) if groups else []


def require_ops(facts: Facts) -> None:
    """Raises Missing if no ops were recorded: dispatching ops and Python between them would look the same."""
    if "ops" not in facts.rank.provenance.recorded:
        raise NO_OPS


MOSTLY = 0.5  # A line with this share of some time stands for all of it (our choice).


@fact
def frame_sites(facts: Facts) -> dict[int, Site]:
    """Site by code of the `name` category, for frames of the user's own code. Raises Missing without stacks.

    Empty where lines are known from the detail recording or samples only: see `sites_at`.
    """
    if not facts.rank.provenance.knows("stacks"):
        raise Missing("call stacks", "Record with with_stack=True.")
    names, libraries = names_of(facts), facts.rank.libraries
    codes = np.unique(facts.rank.spans["name"].cat.codes.to_numpy()[host_spans(facts, SpanKind.PYTHON).ids]).tolist()
    own = [code for code in codes if frames.is_user_frame(names[code], libraries)]
    return {code: site for code in own if (site := frames.frame_site(names[code]))}


def sites_at(facts: Facts, moments_ns: IntArray, tracks: IntArray) -> list[Site | None]:
    """The innermost line of the user's code open at each moment on its thread, else on the main thread.

    A lambda's line counts to the named function recorded at that line. All None where no stacks were recorded.
    """
    try:
        table, sites = user_frames(facts)
    except Missing:
        return [None] * len(moments_ns)
    start, track = table["start_ns"].to_numpy(), table["track"].to_numpy().astype(np.int64)
    lines = HostSpans(np.arange(len(table)), start, start + table["dur_ns"].to_numpy(), track)
    found = lines.open_at(moments_ns, tracks)
    lost = found < 0
    found[lost] = lines.open_at(moments_ns[lost], np.full(int(lost.sum()), host_threads(facts).main))
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
    python, spans = host_spans(facts, SpanKind.PYTHON).ids, facts.rank.spans
    return spans.iloc[python[np.isin(spans["name"].cat.codes.to_numpy()[python], list(sites))]], sites


def first_of_function(facts: Facts, site: Site | None, times: Intervals, track: int) -> Site | None:
    """The topmost line of the site's function that runs on the thread in `times` (a loop's head); else `site`."""
    if site is None or not facts.rank.provenance.knows("stacks"):
        return site
    table, sites = user_frames(facts)
    same = [code for code, one in sites.items() if (one.file, one.function) == (site.file, site.function) and one.line]
    start, codes = table["start_ns"].to_numpy(), table["name"].cat.codes.to_numpy()
    runs = np.isin(codes, same) & (table["track"].to_numpy() == track)
    runs &= intervals.covered(Intervals(start, start + table["dur_ns"].to_numpy()), times) > 0
    return min((sites[code] for code in np.unique(codes[runs]).tolist()), key=lambda one: one.line, default=site)


def cut_at_frames(facts: Facts, times: Intervals, track: int) -> Intervals:
    """A normal set of times, cut so that one line of the user's code, or none, runs on the thread in each piece.

    Raises Missing without call stacks.
    """
    table, _ = user_frames(facts)
    frames_of_track = table[table["track"] == track]
    start = frames_of_track["start_ns"].to_numpy()
    return intervals.cut(times, np.concatenate((start, start + frames_of_track["dur_ns"].to_numpy())))[0]


def site_of_most(sites: Sequence[Site | None], ns: IntArray) -> Site | None:
    """The line with most of the time `ns`, if that is MOSTLY of it; None also if most of it has no line."""
    sums: dict[Site | None, int] = {}
    for site, lasted in zip(sites, ns.tolist(), strict=True):
        sums[site] = sums.get(site, 0) + lasted
    site, most = max(sums.items(), key=lambda item: item[1], default=(None, 0))
    return site if most >= MOSTLY * ns.sum() else None


def site_of_spans(facts: Facts, spans: HostSpans) -> Site | None:
    """The line with MOSTLY of the time of host spans, each taken at its middle; None as `site_of_most`."""
    sites = sites_at(facts, (spans.start_ns + spans.end_ns) // 2, spans.track)
    return site_of_most(sites, spans.end_ns - spans.start_ns)


def sites_of(facts: Facts, ids: IntArray) -> list[Site | None]:
    """The line of the user's code that led to each host span; also from an op's own call stack (old recordings).

    It is looked up at the span's start; of a system call in its middle, where no other line can run: the place of
    stacks that come from other steps is not exact.
    """
    spans, libraries = spans_of(facts, ids), facts.rank.libraries
    is_system = facts.rank.spans["kind"].cat.codes.to_numpy()[ids] == enums.code(SpanKind.SYSTEM)
    moments_ns = spans.start_ns + np.where(is_system, (spans.end_ns - spans.start_ns) // 2, 0)
    found = sites_at(facts, moments_ns, spans.track)
    stacks = facts.rank.ops["stack"]
    if any(site is None for site in found) and len(stacks.cat.categories) > 1:
        for k, op in enumerate(enclosing_op(facts, ids)):
            if found[k] is None and op >= 0 and op in stacks.index:
                calls = (frame.strip() for frame in str(stacks[op]).split(";"))
                found[k] = next((frames.frame_site(one) for one in calls if frames.is_user_frame(one, libraries)), None)
    return found
