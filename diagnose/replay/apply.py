"""Edits carried out on a graph: which delays become what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatchmethod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diagnose.costs.book import cost_book
from diagnose.costs.changes import Recost
from diagnose.facts.communication.host_collectives import host_collectives
from diagnose.facts.core.base import Facts, optional
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


class Owners(Struct, frozen=True):
    """Edges of some kinds by the span that owns them."""

    span: IntArray
    edge: IntArray

    def of(self, ids: IntArray) -> IntArray:
        """The edges that these spans own."""
        return self.with_position(ids)[0]

    def with_position(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """The edges that these spans own, and of each the position of its span in `ids`."""
        first = np.searchsorted(self.span, ids, side="left")
        count = np.searchsorted(self.span, ids, side="right") - first
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        return self.edge[np.repeat(first, count) + within], np.repeat(np.arange(len(ids)), count)


class Reach(Struct, frozen=True):
    """What shortening or removing spans reaches, at every level. Edges are positions in the graph's."""

    work: IntArray  # Edges of device work.
    host: list[tuple[int, Intervals]]  # By thread, the time that is shortened.
    gone: IntArray  # Spans that do not happen.
    waits: IntArray  # Edges by which the host no longer waits.


class Scenario:
    """Delays and residuals of a graph under edits, at one level. Edits add up; `finish` comes after the last."""

    def __init__(self, desk: Desk, level: Estimate) -> None:
        self.desk, self.level = desk, level
        self._cuts: dict[int, list[tuple[Intervals, float]]] = {}
        self.delay_ns = desk.graph.delay_ns.copy()
        self.residual_ns = desk.graph.residual_ns.copy()
        self.of_ranks: list[Even | Rechunk] = []  # On all ranks: where ranks are joined, not in this graph.
        self._recosts: list[Recost] = []
        self._shares: list[tuple[IntArray, npt.NDArray[np.float64]]] = []

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
        reach = self.desk.reach(edit)
        self._shares.append((edit.what, np.full(len(edit.what), keep)))
        self._scale(reach.work, keep)
        for track, pieces in reach.host:
            self._shorten_host(track, pieces, keep)

    @apply.register
    def _(self, edit: Remove) -> None:
        reach = self.desk.reach(edit)
        self._gone(reach.gone)
        self._remove(reach.work)
        for track, pieces in reach.host:
            self._shorten_host(track, pieces, 0.0)
        self._turn_off(reach.waits)

    @apply.register
    def _(self, edit: Detach) -> None:
        for kind in (EdgeKind.WAIT, EdgeKind.EVENT):
            self._turn_off(self.desk.owners(kind).of(edit.what))

    @apply.register
    def _(self, edit: Move) -> None:
        faster = max(at(edit.times_faster, self.level), 1e-9)
        tracks = self.desk.owners(EdgeKind.TRACK).of(edit.what)
        self.delay_ns[tracks] = (self.desk.graph.edges.estimate_ns[tracks] / faster).astype(np.int64)
        self.residual_ns[self.desk.graph.edges.target[tracks]] = 0
        self.delay_ns[self.desk.owners(EdgeKind.DELIVERY).of(edit.what)] = 0
        self._scale(self.desk.owners(EdgeKind.WORK).of(edit.what), 0.0)
        self._turn_off(self.desk.owners(EdgeKind.WAIT).of(edit.what))
        for track, spans in self.desk.spans_on_host(edit.what):
            edges, stretches = self.desk.host_edges(track)
            place = np.searchsorted(spans.starts, stretches.starts, side="right") - 1
            inside = (place >= 0) & (stretches.ends <= spans.ends[place])
            edges, place = edges[inside], place[inside]
            own = np.bincount(place, weights=self.delay_ns[edges], minlength=spans.size)
            self._scale(edges, np.minimum(at(edit.ready_ns, self.level) / np.maximum(own, 1), 1.0)[place])

    @apply.register(Even)
    @apply.register(Rechunk)
    def _(self, edit: Even | Rechunk) -> None:
        self.of_ranks.append(edit)

    @apply.register
    def _(self, edit: Recost) -> None:
        self._recosts.append(edit)

    @apply.register
    def _(self, edit: Replace) -> None:
        order = np.lexsort((edit.what, edit.group))
        group = edit.group[order]
        first = np.concatenate(([True], group[1:] != group[:-1])) if len(group) else np.zeros(0, dtype=bool)
        self._not_launched(edit.what[order][~first])
        leading = edit.what[order][first]
        known = np.isin(leading, self.desk.owners(EdgeKind.WORK).span)
        edges = self.desk.owners(EdgeKind.WORK).of(leading[known])
        before_ns, after_ns = self.delay_ns[edges], edit.dur_ns[self.level][group[first]][known]
        self._shares.append((leading[known], after_ns / np.maximum(before_ns, 1)))
        self.delay_ns[edges] = after_ns

    def _not_launched(self, ids: IntArray) -> None:
        self._gone(ids)
        self._remove(self.desk.edges_of_work(ids))
        for track, pieces in self.desk.host_time(self.desk.launches_of(ids)):
            self._shorten_host(track, pieces, 0.0)

    def _recost(self) -> None:
        """Price all changes of device operations together, so that their order does not matter."""
        book = optional(cost_book, self.desk.facts) if self._recosts else None
        if book is not None:
            left = book.left(self._recosts, self.level)
            work = self.desk.owners(EdgeKind.WORK)
            self._shares.append((left.ids, left.share))
            edges, position = work.with_position(left.ids)
            self._scale(edges, left.share[position])
            on_host = self.desk.is_host(left.ids)
            for share in np.unique(left.share[on_host]):
                for track, pieces in self.desk.host_time(left.ids[on_host & (left.share == share)]):
                    self._shorten_host(track, pieces, float(share))
            self._not_launched(left.gone)
        self._recosts = []

    def _gone(self, ids: IntArray) -> None:
        self._shares.append((ids, np.full(len(ids), np.nan)))

    def left_of(self, ids: IntArray) -> npt.NDArray[np.float64]:
        """Of each of these spans the share that is left of it; NaN: it does not happen."""
        left = np.ones(len(ids))
        for changed, shares_left in self._shares:
            order = np.argsort(changed, kind="stable")
            at = np.minimum(np.searchsorted(changed[order], ids), max(len(changed) - 1, 0))
            hit = changed[order][at] == ids if len(changed) else np.zeros(len(ids), dtype=bool)
            left[hit] *= shares_left[order][at[hit]]
        return left

    def _scale(self, edges: IntArray, keep: float | npt.NDArray[np.float64]) -> None:
        self.delay_ns[edges] = np.rint(self.delay_ns[edges] * keep).astype(np.int64)

    def _remove(self, edges: IntArray) -> None:
        self.delay_ns[edges] = np.minimum(self.delay_ns[edges], 0)
        self.residual_ns[self.desk.graph.edges.target[edges]] = 0

    def _turn_off(self, edges: IntArray) -> None:
        self.delay_ns[edges] = OFF
        self.residual_ns[self.desk.graph.edges.target[edges]] = 0

    def _shorten_host(self, track: int, pieces: Intervals, keep: float) -> None:
        """The time of a thread that lies in `pieces` shrinks to the share `keep`; carried out by `finish`."""
        self._cuts.setdefault(track, []).append((pieces, keep))

    def finish(self) -> None:
        """Carry out what was collected: on device work, on host edges, and on what calls do after waiting."""
        self._recost()
        for track, cuts in self._cuts.items():
            clock = self.desk.own_time(track)
            at, lost = _lost(cuts, clock)
            for edges, stretches in (self.desk.host_edges(track), self.desk.wait_edges(track)):
                on = self.delay_ns[edges] != OFF
                begins, ends = clock(stretches.starts[on]), clock(stretches.ends[on])
                gone = np.interp(ends, at, lost) - np.interp(begins, at, lost)
                self._scale(edges[on], np.clip(1.0 - gone / np.maximum(ends - begins, 1.0), 0.0, 1.0))
        self._cuts = {}


Clock: TypeAlias = "Callable[[IntArray], npt.NDArray[np.float64]]"


def _lost(
    cuts: list[tuple[Intervals, float]], own_ns: Clock
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Moments by `own_ns`, and the time lost until each if each cut keeps a share of its pieces (or a product)."""
    moments = np.sort(np.concatenate([np.concatenate(pieces) for pieces, _ in cuts]))
    if not len(moments):
        return np.zeros(1), np.zeros(1)
    moments = moments[np.concatenate(([True], moments[1:] > moments[:-1]))]
    kept = np.ones(len(moments))
    for pieces, keep in cuts:
        opened = np.bincount(np.searchsorted(moments, pieces.starts), minlength=len(moments))
        closed = np.bincount(np.searchsorted(moments, pieces.ends), minlength=len(moments))
        kept[np.cumsum(opened - closed) > 0] *= keep
    at = own_ns(moments)
    return at, np.concatenate(([0.0], np.cumsum((1.0 - kept[:-1]) * np.diff(at))))


class Desk:
    """A graph with all that edits are looked up by."""

    def __init__(self, facts: Facts, graph: Graph, own: Sequence[RecordingCost] = ()) -> None:
        """With `own` host time of these threads is counted without what recording added."""
        self.facts, self._own = facts, {one.track: one for one in own}
        self.graph = self._without_recording(graph)
        self._owners: dict[EdgeKind, Owners] = {}
        self._host: dict[int, tuple[IntArray, Intervals]] = {}
        self._waits: dict[int, tuple[IntArray, Intervals]] = {}
        self._reach: dict[Shorten | Remove, Reach] = {}

    def scenario(self, edits: Sequence[Edit], level: Estimate) -> Scenario:
        """The graph's delays after all edits, in turn."""
        made = Scenario(self, level)
        for edit in edits:
            made.apply(edit)
        made.finish()
        return made

    def reach(self, edit: Shorten | Remove) -> Reach:
        """What an edit of spans reaches."""
        if edit not in self._reach:
            assert not isinstance(edit.what, Times)
            self._reach[edit] = self._removal(edit.what) if isinstance(edit, Remove) else self._shortening(edit.what)
        return self._reach[edit]

    def _shortening(self, ids: IntArray) -> Reach:
        return Reach(self.owners(EdgeKind.WORK).of(ids), self.host_time(ids), gone=ids[:0], waits=ids[:0])

    def _removal(self, ids: IntArray) -> Reach:
        work = self.work_within(ids)
        return Reach(
            work=self.edges_of_work(work),
            host=self.host_time(np.append(ids, self.launches_of(work))),
            gone=np.concatenate((ids, work, self.asked_within(ids))),
            waits=self.owners(EdgeKind.WAIT).of(self.calls_within(ids)),
        )

    def own_time(self, track: int) -> Clock:
        """How a thread's own time goes on."""
        own = self._own.get(track)
        if own is None:
            return lambda moments: moments.astype(np.float64)
        return lambda moments: np.interp(moments, own.at_ns, own.own_ns)

    def _without_recording(self, graph: Graph) -> Graph:
        some, delay_ns = graph.edges, graph.delay_ns.copy()
        for track in self._own:
            clock = self.own_time(track)
            on_it = (some.kind == EdgeKind.HOST) & (some.track == track) & (some.until_ns > some.from_ns)
            mine = np.flatnonzero(on_it)
            begin, end = some.from_ns[mine], some.until_ns[mine]
            delay_ns[mine] = np.rint(delay_ns[mine] * (clock(end) - clock(begin)) / (end - begin)).astype(np.int64)
        return replace(graph, delay_ns=delay_ns)

    def owners(self, kind: EdgeKind) -> Owners:
        """Edges of a kind by owner."""
        if kind not in self._owners:
            edges = np.flatnonzero(self.graph.edges.kind == kind)
            edges = edges[np.argsort(self.graph.edges.owner[edges], kind="stable")]
            self._owners[kind] = Owners(self.graph.edges.owner[edges], edges)
        return self._owners[kind]

    def edges_of_work(self, ids: IntArray) -> IntArray:
        """The edges of device operations: their time, and what they wait for on their stream and for their launch."""
        kinds = (EdgeKind.WORK, EdgeKind.STREAM, EdgeKind.LAUNCH)
        return np.concatenate([self.owners(kind).of(ids) for kind in kinds])

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

    def is_host(self, ids: IntArray) -> npt.NDArray[np.bool_]:
        """Which of these spans are a thread's."""
        rank = self.facts.rank
        found: npt.NDArray[np.bool_] = rank.tracks["device"].to_numpy()[rank.spans["track"].to_numpy()[ids]] < 0
        return found

    def host_time(self, ids: IntArray) -> list[tuple[int, Intervals]]:
        """By thread, when any of these spans was open; device work counts for nothing."""
        rank, ids = self.facts.rank, ids[self.is_host(ids)]
        track = rank.spans["track"].to_numpy()[ids]
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

    def asked_within(self, ids: IntArray) -> IntArray:
        """Collectives of the host's own that these ops ask for."""
        asked = optional(host_collectives, self.facts)
        return asked.ids[self._among(ids)[asked.op_ids]] if asked is not None else ids[:0]

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
        found = np.zeros(len(self.facts.rank.spans), dtype=bool)
        found[ids] = True
        return found

    def _all_of(self, *ids: IntArray) -> IntArray:
        return np.flatnonzero(self._among(np.concatenate(ids)))


def _tracks(track: IntArray) -> list[int]:
    found: list[int] = np.flatnonzero(np.bincount(track)).tolist()
    return found
