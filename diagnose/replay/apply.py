"""Edits carried out on a graph: which delays become what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from diagnose.facts.core.base import Facts
from diagnose.facts.core.device import device_work
from diagnose.facts.run.recording_cost import RecordingCost
from diagnose.replay.edits import (
    Detach,
    Edit,
    Estimate,
    Even,
    Move,
    Rechunk,
    Remove,
    Replace,
    Shorten,
    Times,
    at,
    shares,
)
from diagnose.replay.graph import OFF, EdgeKind, Graph
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals


@dataclass(frozen=True)
class Owners:
    """Edges of some kinds by the span that owns them."""

    span: IntArray
    edge: IntArray

    def of(self, ids: IntArray) -> IntArray:
        """The edges that these spans own."""
        first = np.searchsorted(self.span, ids, side="left")
        count = np.searchsorted(self.span, ids, side="right") - first
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        edges: IntArray = self.edge[np.repeat(first, count) + within]
        return edges


class Scenario:
    """Delays and residuals of a graph under edits, at one level. Edits add up; `finish` comes after the last."""

    def __init__(self, desk: Desk, level: Estimate) -> None:
        self.desk, self.level = desk, level
        self._cuts: dict[int, list[tuple[Intervals, float]]] = {}
        self.delay_ns = desk.graph.delay_ns.copy()
        self.residual_ns = desk.graph.residual_ns.copy()
        self.of_ranks: list[Even | Rechunk] = []
        """What happens on all ranks: not in this graph, but where ranks are joined."""
        self._removed: list[IntArray] = []
        self._shortened: list[tuple[IntArray, float]] = []

    @singledispatchmethod
    def apply(self, edit: Edit) -> None:
        """Carry out one edit."""
        raise TypeError(edit)

    @apply.register
    def _(self, edit: Shorten) -> None:
        keep = float(shares(edit.keep)[self.level])
        if isinstance(edit.what, Times):
            self._shorten_host(edit.what.track, edit.what.pieces, keep)
            return
        self._shortened.append((edit.what, keep))
        self._scale(self.desk.owners(EdgeKind.WORK).of(edit.what), keep)
        for track, pieces in self.desk.host_time(edit.what):
            self._shorten_host(track, pieces, keep)

    @apply.register
    def _(self, edit: Remove) -> None:
        work = self.desk.work_within(edit.what)
        self._removed.append(edit.what)
        self._remove_work(work)
        for track, pieces in self.desk.host_time(np.append(edit.what, self.desk.launches_of(work))):
            self._shorten_host(track, pieces, 0.0)
        self._stop_waiting(self.desk.calls_within(edit.what))

    @apply.register
    def _(self, edit: Detach) -> None:
        self._stop_waiting(edit.what)
        events = self.desk.owners(EdgeKind.EVENT).of(edit.what)
        self.delay_ns[events] = OFF
        self.residual_ns[self.desk.graph.edges.target[events]] = 0

    @apply.register
    def _(self, edit: Move) -> None:
        faster = max(at(edit.times_faster, self.level), 1e-9)
        tracks = self.desk.owners(EdgeKind.TRACK).of(edit.what)
        self.delay_ns[tracks] = (self.desk.graph.edges.estimate_ns[tracks] / faster).astype(np.int64)
        self.residual_ns[self.desk.graph.edges.target[tracks]] = 0
        self.delay_ns[self.desk.owners(EdgeKind.DELIVERY).of(edit.what)] = 0
        self._scale(self.desk.owners(EdgeKind.WORK).of(edit.what), 0.0)
        self._stop_waiting(edit.what)
        for track, spans in self.desk.spans_on_host(edit.what):
            edges, stretches = self.desk.host_edges(track)
            place = np.searchsorted(spans.starts, stretches.starts, side="right") - 1
            inside = (place >= 0) & (stretches.ends <= spans.ends[place])
            edges, place = edges[inside], place[inside]
            own = np.bincount(place, weights=self.delay_ns[edges], minlength=spans.size)
            self._scale(edges, np.minimum(edit.ready_ns / np.maximum(own, 1), 1.0)[place])

    @apply.register(Even)
    @apply.register(Rechunk)
    def _(self, edit: Even | Rechunk) -> None:
        self.of_ranks.append(edit)

    @apply.register
    def _(self, edit: Replace) -> None:
        order = np.lexsort((edit.what, edit.group))
        group = edit.group[order]
        first = np.concatenate(([True], group[1:] != group[:-1])) if len(group) else np.zeros(0, dtype=bool)
        self._remove_work(edit.what[order][~first])
        for track, pieces in self.desk.host_time(self.desk.launches_of(edit.what[order][~first])):
            self._shorten_host(track, pieces, 0.0)
        leading = edit.what[order][first]
        known = np.isin(leading, self.desk.owners(EdgeKind.WORK).span)
        edges = self.desk.owners(EdgeKind.WORK).of(leading[known])
        self.delay_ns[edges] = edit.dur_ns[self.level][group[first]][known]

    def happens(self, ids: IntArray) -> npt.NDArray[np.bool_]:
        """Which of these spans no edit removes. Shape (ids,)."""
        found: npt.NDArray[np.bool_] = ~np.isin(ids, np.concatenate([ids[:0], *self._removed]))
        return found

    def share_left(self, ids: IntArray) -> npt.NDArray[np.float64]:
        """The share of its time that each span keeps: device work, or what threads carry out. Shape (ids,)."""
        share = np.ones(len(ids))
        for what, keep in self._shortened:
            share[np.isin(ids, what)] *= keep
        known = np.isin(ids, self.desk.owners(EdgeKind.WORK).span)
        work = self.desk.owners(EdgeKind.WORK).of(ids[known])
        share[known] = self.delay_ns[work] / np.maximum(self.desk.graph.delay_ns[work], 1)
        return share

    def _scale(self, edges: IntArray, keep: float | npt.NDArray[np.float64]) -> None:
        self.delay_ns[edges] = np.rint(self.delay_ns[edges] * keep).astype(np.int64)

    def _remove_work(self, ids: IntArray) -> None:
        self._removed.append(ids)
        for kind in (EdgeKind.WORK, EdgeKind.STREAM, EdgeKind.LAUNCH):
            edges = self.desk.owners(kind).of(ids)
            self.delay_ns[edges] = np.minimum(self.delay_ns[edges], 0)
            self.residual_ns[self.desk.graph.edges.target[edges]] = 0

    def _stop_waiting(self, calls: IntArray) -> None:
        edges = self.desk.owners(EdgeKind.WAIT).of(calls)
        self.delay_ns[edges] = OFF
        self.residual_ns[self.desk.graph.edges.target[edges]] = 0

    def _shorten_host(self, track: int, pieces: Intervals, keep: float) -> None:
        """The time of a thread that lies in `pieces` shrinks to the share `keep`; carried out by `finish`."""
        self._cuts.setdefault(track, []).append((pieces, keep))

    def finish(self) -> None:
        """Carry out what was collected: on host edges, and on what calls do after waiting."""
        for track, cuts in self._cuts.items():
            for edges, stretches in (self.desk.host_edges(track), self.desk.wait_edges(track)):
                on = self.delay_ns[edges] != OFF
                on_track = Intervals(stretches.starts[on], stretches.ends[on])
                self._scale(edges[on], _left(on_track, cuts, self.desk.own_time(track)))
        self._cuts = {}


Clock: TypeAlias = "Callable[[IntArray], npt.NDArray[np.float64]]"


def _left(stretches: Intervals, cuts: list[tuple[Intervals, float]], own_ns: Clock) -> npt.NDArray[np.float64]:
    """The share of each stretch that is left if each cut keeps a share of its pieces; where cuts meet, the product.

    Time is counted as `own_ns` of moments counts it.
    """
    moments = np.sort(np.concatenate([np.concatenate(pieces) for pieces, _ in cuts]))
    if not len(moments):
        return np.ones(stretches.size)
    moments = moments[np.concatenate(([True], moments[1:] > moments[:-1]))]
    kept = np.ones(len(moments))
    for pieces, keep in cuts:
        opened = np.bincount(np.searchsorted(moments, pieces.starts), minlength=len(moments))
        closed = np.bincount(np.searchsorted(moments, pieces.ends), minlength=len(moments))
        kept[np.cumsum(opened - closed) > 0] *= keep
    at = own_ns(moments)
    begins, ends = own_ns(stretches.starts), own_ns(stretches.ends)
    lost = np.concatenate(([0.0], np.cumsum((1.0 - kept[:-1]) * np.diff(at))))
    gone = np.interp(ends, at, lost) - np.interp(begins, at, lost)
    share: npt.NDArray[np.float64] = 1.0 - gone / np.maximum(ends - begins, 1.0)
    return np.clip(share, 0.0, 1.0)


class Desk:
    """A graph with all that edits are looked up by."""

    def __init__(self, facts: Facts, graph: Graph, own: RecordingCost | None = None) -> None:
        """With `own` host time is counted without what recording added."""
        self.facts, self._own = facts, own
        self.graph = graph if own is None else self._without_recording(graph, own)
        self._owners: dict[EdgeKind, Owners] = {}
        self._host: dict[int, tuple[IntArray, Intervals]] = {}
        self._waits: dict[int, tuple[IntArray, Intervals]] = {}

    def scenario(self, edits: Sequence[Edit], level: Estimate) -> Scenario:
        """The graph's delays after all edits, in turn."""
        made = Scenario(self, level)
        for edit in edits:
            made.apply(edit)
        made.finish()
        return made

    def own_time(self, track: int) -> Clock:
        """How a thread's own time goes on."""
        own = self._own
        if own is None or own.track != track:
            return lambda moments: moments.astype(np.float64)
        return lambda moments: np.interp(moments, own.at_ns, own.own_ns)

    def _without_recording(self, graph: Graph, own: RecordingCost) -> Graph:
        some, clock = graph.edges, self.own_time(own.track)
        mine = np.flatnonzero((some.kind == EdgeKind.HOST) & (some.track == own.track) & (some.until_ns > some.from_ns))
        begin, end = some.from_ns[mine], some.until_ns[mine]
        delay_ns = graph.delay_ns.copy()
        delay_ns[mine] = np.rint(delay_ns[mine] * (clock(end) - clock(begin)) / (end - begin)).astype(np.int64)
        return replace(graph, delay_ns=delay_ns)

    def owners(self, kind: EdgeKind) -> Owners:
        """Edges of a kind by owner."""
        if kind not in self._owners:
            edges = np.flatnonzero(self.graph.edges.kind == kind)
            edges = edges[np.argsort(self.graph.edges.owner[edges], kind="stable")]
            self._owners[kind] = Owners(self.graph.edges.owner[edges], edges)
        return self._owners[kind]

    def host_edges(self, track: int) -> tuple[IntArray, Intervals]:
        """The host edges of a thread and the time that each stands for."""
        if track not in self._host:
            some = self.graph.edges
            mine = np.flatnonzero((some.kind == EdgeKind.HOST) & (some.track == track) & (some.until_ns > some.from_ns))
            self._host[track] = mine, Intervals(some.from_ns[mine], some.until_ns[mine])
        return self._host[track]

    def wait_edges(self, track: int) -> tuple[IntArray, Intervals]:
        """The edges that a thread's calls wait by, and the time of the calls."""
        if track not in self._waits:
            spans, owner = self.facts.rank.spans, self.graph.edges.owner
            waits = np.flatnonzero((self.graph.edges.kind == EdgeKind.WAIT) & (owner >= 0))
            mine = waits[spans["track"].to_numpy()[owner[waits]] == track]
            start, dur = spans["start_ns"].to_numpy()[owner[mine]], spans["dur_ns"].to_numpy()[owner[mine]]
            self._waits[track] = mine, Intervals(start, start + dur)
        return self._waits[track]

    def spans_on_host(self, ids: IntArray) -> list[tuple[int, Intervals]]:
        """By thread, these spans in order of start; device work counts for nothing."""
        rank = self.facts.rank
        track = rank.spans["track"].to_numpy()[ids]
        ids = ids[rank.tracks["device"].to_numpy()[track] < 0]
        track = rank.spans["track"].to_numpy()[ids]
        start, dur = rank.spans["start_ns"].to_numpy()[ids], rank.spans["dur_ns"].to_numpy()[ids]
        order = np.argsort(start, kind="stable")
        return [
            (one, Intervals(start[order][mine], (start + dur)[order][mine]))
            for one in _tracks(track)
            for mine in [track[order] == one]
        ]

    def host_time(self, ids: IntArray) -> list[tuple[int, Intervals]]:
        """By thread, when any of these spans was open; device work counts for nothing."""
        rank = self.facts.rank
        track = rank.spans["track"].to_numpy()[ids]
        on_host = rank.tracks["device"].to_numpy()[track] < 0
        ids, track = ids[on_host], track[on_host]
        start, dur = rank.spans["start_ns"].to_numpy()[ids], rank.spans["dur_ns"].to_numpy()[ids]
        return [
            (one, intervals.union(Intervals(start[track == one], (start + dur)[track == one])))
            for one in _tracks(track)
        ]

    def work_within(self, ids: IntArray) -> IntArray:
        """Of these spans the device work, and what is launched from within the host spans."""
        work = device_work(self.facts)
        launch = work.launch[work.launch >= 0]
        launched = work.ids[work.launch >= 0][self._within(launch, ids)]
        return self._all_of(work.ids[self._among(ids)[work.ids]], launched)

    def launches_of(self, work_ids: IntArray) -> IntArray:
        """Calls of which all launched work is among these."""
        work = device_work(self.facts)
        chosen = self._among(work_ids)[work.ids]
        found = self._among(work.launch[chosen & (work.launch >= 0)])
        found[work.launch[~chosen & (work.launch >= 0)]] = False
        return np.flatnonzero(found)

    def calls_within(self, ids: IntArray) -> IntArray:
        """Waiting calls that are, or begin within, these host spans, and those that launch only this device work."""
        waiting = self.owners(EdgeKind.WAIT).span
        waiting = waiting[np.diff(waiting, prepend=-1) > 0]
        return self._all_of(waiting[self._within(waiting, ids)], self.launches_of(ids))

    def _within(self, calls: IntArray, ids: IntArray) -> npt.NDArray[np.bool_]:
        spans = self.facts.rank.spans
        start, track = spans["start_ns"].to_numpy()[calls], spans["track"].to_numpy()[calls]
        inside = self._among(ids)[calls]
        for one, pieces in self.host_time(ids):
            inside |= (track == one) & (intervals.covered(Intervals(start, start + 1), pieces) > 0)
        return inside

    def _among(self, ids: IntArray) -> npt.NDArray[np.bool_]:
        """Of every span whether it is one of these."""
        found = np.zeros(len(self.facts.rank.spans), dtype=bool)
        found[ids] = True
        return found

    def _all_of(self, *ids: IntArray) -> IntArray:
        """All of these spans in order, each once."""
        return np.flatnonzero(self._among(np.concatenate(ids)))


def _tracks(track: IntArray) -> list[int]:
    found: list[int] = np.flatnonzero(np.bincount(track)).tolist()
    return found
