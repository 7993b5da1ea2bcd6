"""Spans of the host, chosen by kind, name, thread and step; and the device work and idle time that goes with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from diagnose.facts.core.base import Facts, Missing, once, optional
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.core.unrecorded_work import unrecorded_work
from diagnose.trace import enums, intervals, nesting
from diagnose.trace.enums import SpanKind
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
        return nesting.parents(self.track, self.start_ns, self.end_ns)

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
        return np.where((start >= used.start_ns) & (start < used.end_ns), 0, nesting.NONE)
    position = {number: k for k, number in enumerate(used.numbers)}
    of_mark = np.array([*(position.get(mark.number, nesting.NONE) for mark in facts.rank.steps), nesting.NONE])
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
    found = nesting.innermost_at(start, track, spans.track, spans.start_ns, spans.end_ns)
    return np.where(work.launch >= 0, found, nesting.NONE)


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
