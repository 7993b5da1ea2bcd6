"""Edits carried out on a graph: which delays become what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from diagnose.replay.graph import OFF, EdgeKind, Graph, positions
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals

Clock: TypeAlias = "Callable[[IntArray], npt.NDArray[np.float64]]"
OnThreads: TypeAlias = "list[tuple[int, Intervals]]"  # By thread, times of its own.
Shares: TypeAlias = "npt.NDArray[np.float64]"


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
        return self.edge[positions(first, count)], np.repeat(np.arange(len(ids)), count)


class Reach(Struct, frozen=True):
    """What shortening or removing spans reaches, at every level. Edges are positions in the graph's."""

    work: IntArray  # Edges of device work.
    host: OnThreads  # The time that is shortened.
    gone: IntArray  # Spans that do not happen; with collectives of the host's own that they ask for.
    waits: IntArray  # Edges by which the host no longer waits: in calls within, or that launch only what is removed.


class Scenario:
    """Delays and residuals of a graph under edits, which add up, at one level."""

    def __init__(self, index: EditIndex, edits: Iterable[Edit], level: Estimate) -> None:
        self.index, self.level = index, level
        self._cuts: dict[int, list[tuple[Intervals, float]]] = {}
        self.delay_ns = index.graph.delay_ns.copy()
        self.residual_ns = index.graph.residual_ns.copy()
        self.of_ranks: list[Even | Rechunk] = []  # On all ranks: where ranks are joined, not in this graph.
        self._recosts: list[Recost] = []
        self._shares: list[tuple[IntArray, Shares]] = []
        for edit in edits:
            self.apply(edit)
        self._recost()
        self._cut()

    @singledispatchmethod
    def apply(self, edit: Edit) -> None:
        """Carry out one edit."""
        raise TypeError(edit)

    @apply.register
    def _(self, edit: Shorten) -> None:
        keep = float(shares(edit.keep)[self.level])
        if isinstance(edit.what, Times):
            self._shorten_host([(edit.what.track, edit.what.pieces)], keep)
            return
        reach = self.index.reach(edit)
        self._shares.append((edit.what, np.full(len(edit.what), keep)))
        self._scale(reach.work, keep)
        self._shorten_host(reach.host, keep)

    @apply.register
    def _(self, edit: Remove) -> None:
        reach = self.index.reach(edit)
        self._remove(reach.gone, reach.work, reach.host)
        self._turn_off(reach.waits)

    @apply.register
    def _(self, edit: Detach) -> None:
        for kind in (EdgeKind.WAIT, EdgeKind.EVENT):
            self._turn_off(self.index.owners(kind).of(edit.what))

    @apply.register
    def _(self, edit: Move) -> None:  # On the host `ready_ns` stays; else TRACK and DELIVERY edges count.
        faster = max(at(edit.times_faster, self.level), 1e-9)
        tracks = self.index.owners(EdgeKind.TRACK).of(edit.what)
        self.delay_ns[tracks] = (self.index.graph.edges.estimate_ns[tracks] / faster).astype(np.int64)
        self.residual_ns[self.index.graph.edges.target[tracks]] = 0
        self.delay_ns[self.index.owners(EdgeKind.DELIVERY).of(edit.what)] = 0
        self._scale(self.index.owners(EdgeKind.WORK).of(edit.what), 0.0)
        self._turn_off(self.index.owners(EdgeKind.WAIT).of(edit.what))
        for track, spans in self.index.spans_on_host(edit.what):
            edges, stretches = self.index.host_edges(track)
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
    def _(self, edit: Replace) -> None:  # The first of each group takes the new time; the others are not launched.
        order = np.lexsort((edit.what, edit.group))
        group = edit.group[order]
        first = np.diff(group, prepend=-1) > 0
        self._not_launched(edit.what[order][~first])
        leading = edit.what[order][first]
        known = np.isin(leading, self.index.owners(EdgeKind.WORK).span)
        edges = self.index.owners(EdgeKind.WORK).of(leading[known])
        before_ns, after_ns = self.delay_ns[edges], edit.dur_ns[self.level][group[first]][known]
        self._shares.append((leading[known], after_ns / np.maximum(before_ns, 1)))
        self.delay_ns[edges] = after_ns

    def _not_launched(self, ids: IntArray) -> None:  # And calls that launch nothing else take no time.
        self._remove(ids, self.index.edges_of_work(ids), self.index.host_time(self.index.launches_of(ids)))

    def _recost(self) -> None:
        """Price all changes of device operations together, so that their order does not matter."""
        book = optional(cost_book, self.index.facts) if self._recosts else None
        if book is None:
            return
        left = book.left(self._recosts, self.level)
        self._shares.append((left.ids, left.share))
        edges, position = self.index.owners(EdgeKind.WORK).with_position(left.ids)
        self._scale(edges, left.share[position])
        on_host = self.index.is_host(left.ids)
        for share in np.unique(left.share[on_host]):
            self._shorten_host(self.index.host_time(left.ids[on_host & (left.share == share)]), float(share))
        self._not_launched(left.gone)

    def left_of(self, ids: IntArray) -> Shares:
        """Of each of these spans the share that is left of it; NaN: it does not happen."""
        left, share = np.ones(len(ids)), np.ones(len(self.index.facts.rank.spans))
        for changed, shares_left in self._shares:
            share[changed] = shares_left
            left *= share[ids]
            share[changed] = 1.0
        return left

    def _scale(self, edges: IntArray, keep: float | Shares) -> None:
        self.delay_ns[edges] = np.rint(self.delay_ns[edges] * keep).astype(np.int64)

    def _remove(self, ids: IntArray, edges: IntArray, host: OnThreads) -> None:  # `edges`: those of device work.
        self._shares.append((ids, np.full(len(ids), np.nan)))
        self.delay_ns[edges] = np.minimum(self.delay_ns[edges], 0)
        self.residual_ns[self.index.graph.edges.target[edges]] = 0
        self._shorten_host(host, 0.0)

    def _turn_off(self, edges: IntArray) -> None:  # They constrain nothing any more.
        self.delay_ns[edges] = OFF
        self.residual_ns[self.index.graph.edges.target[edges]] = 0

    def _shorten_host(self, host: OnThreads, keep: float) -> None:
        """These times of threads shrink to the share `keep`, once all edits are known."""
        for track, pieces in host:
            self._cuts.setdefault(track, []).append((pieces, keep))

    def _cut(self) -> None:
        """Scale host edges, and calls after they have waited, by the share of their thread's own time that is left."""
        for track, cuts in self._cuts.items():
            clock = self.index.own_time(track)
            at, lost = _lost(cuts, clock)
            for edges, stretches in (self.index.host_edges(track), self.index.wait_edges(track)):
                on = self.delay_ns[edges] != OFF
                begins, ends = clock(stretches.starts[on]), clock(stretches.ends[on])
                gone = np.interp(ends, at, lost) - np.interp(begins, at, lost)
                self._scale(edges[on], np.clip(1.0 - gone / np.maximum(ends - begins, 1.0), 0.0, 1.0))


def _lost(cuts: list[tuple[Intervals, float]], own_ns: Clock) -> tuple[Shares, Shares]:
    """(edges of the cuts on the clock `own_ns`, own time lost until each). Shares multiply where cuts overlap."""
    moments = intervals.distinct(np.concatenate([np.concatenate(pieces) for pieces, _ in cuts]))
    if not len(moments):
        return np.zeros(1), np.zeros(1)
    kept = np.ones(len(moments))
    for pieces, keep in cuts:
        opened = np.bincount(np.searchsorted(moments, pieces.starts), minlength=len(moments))
        closed = np.bincount(np.searchsorted(moments, pieces.ends), minlength=len(moments))
        kept[np.cumsum(opened - closed) > 0] *= keep
    at = own_ns(moments)
    return at, np.concatenate(([0.0], np.cumsum((1.0 - kept[:-1]) * np.diff(at))))


class EditIndex:
    """A graph with all that edits are looked up by."""

    def __init__(self, facts: Facts, graph: Graph, own: Sequence[RecordingCost] = ()) -> None:
        """With `own` host time of these threads is counted without what recording added."""
        self.facts, self._own = facts, {one.track: one for one in own}
        self._owners: dict[EdgeKind, Owners] = {}
        self._host: dict[int, tuple[IntArray, Intervals]] = {}
        self._waits: dict[int, tuple[IntArray, Intervals]] = {}
        self._reach: dict[Shorten | Remove, Reach] = {}
        self.graph = graph
        self.graph = replace(graph, delay_ns=self._without_recording())

    def reach(self, edit: Shorten | Remove) -> Reach:
        """What an edit of spans reaches."""
        if edit not in self._reach:
            assert not isinstance(edit.what, Times)
            self._reach[edit] = self._removal(edit.what) if isinstance(edit, Remove) else self._shortening(edit.what)
        return self._reach[edit]

    def _shortening(self, ids: IntArray) -> Reach:
        return Reach(self.owners(EdgeKind.WORK).of(ids), self.host_time(ids), gone=ids[:0], waits=ids[:0])

    def _removal(self, ids: IntArray) -> Reach:  # Device work within goes too, with calls that launch only it.
        work, asked = self._work_within(ids), optional(host_collectives, self.facts)
        asked_for = ids[:0] if asked is None else asked.ids[self._among(ids)[asked.op_ids]]
        waiting = self.owners(EdgeKind.WAIT).span
        waiting = waiting[np.diff(waiting, prepend=-1) > 0]
        no_waits = self._all_of(waiting[self._within(waiting, ids)], self.launches_of(ids))
        return Reach(
            work=self.edges_of_work(work),
            host=self.host_time(np.append(ids, self.launches_of(work))),
            gone=np.concatenate((ids, work, asked_for)),
            waits=self.owners(EdgeKind.WAIT).of(no_waits),
        )

    def own_time(self, track: int) -> Clock:
        """From moments to a thread's own time, in ns: without what recording added, where that is known."""
        own = self._own.get(track)
        if own is None:
            return lambda moments: moments.astype(np.float64)
        return lambda moments: np.interp(moments, own.at_ns, own.own_ns)

    def _without_recording(self) -> IntArray:  # Delays, those of host edges in own time.
        delay_ns = self.graph.delay_ns.copy()
        for track in self._own:
            clock, (mine, (begin, end)) = self.own_time(track), self.host_edges(track)
            delay_ns[mine] = np.rint(delay_ns[mine] * (clock(end) - clock(begin)) / (end - begin)).astype(np.int64)
        return delay_ns

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

    def spans_on_host(self, ids: IntArray) -> OnThreads:
        """By thread, the times of these spans in order of start; device work is left out."""
        spans, ids = self.facts.rank.spans, ids[self.is_host(ids)]
        ids = ids[np.argsort(spans["start_ns"].to_numpy()[ids], kind="stable")]
        start, track = spans["start_ns"].to_numpy()[ids], spans["track"].to_numpy()[ids]
        end = start + spans["dur_ns"].to_numpy()[ids]
        tracks: list[int] = np.flatnonzero(np.bincount(track)).tolist()
        return [(one, Intervals(start[track == one], end[track == one])) for one in tracks]

    def is_host(self, ids: IntArray) -> npt.NDArray[np.bool_]:
        """Which of these spans are a thread's."""
        rank = self.facts.rank
        return np.asarray(rank.tracks["device"].to_numpy()[rank.spans["track"].to_numpy()[ids]] < 0)

    def host_time(self, ids: IntArray) -> OnThreads:
        """By thread, when any of these spans was open; device work is left out."""
        return [(track, intervals.union(pieces)) for track, pieces in self.spans_on_host(ids)]

    def _work_within(self, ids: IntArray) -> IntArray:
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

    def _within(self, calls: IntArray, ids: IntArray) -> npt.NDArray[np.bool_]:
        """Which of these calls are, or begin within, these host spans."""
        spans = self.facts.rank.spans
        start, track = spans["start_ns"].to_numpy()[calls], spans["track"].to_numpy()[calls]
        inside = self._among(ids)[calls]
        for one, pieces in self.host_time(ids):
            inside |= (track == one) & (intervals.covered(Intervals(start, start + 1), pieces) > 0)
        return inside

    def _among(self, ids: IntArray) -> npt.NDArray[np.bool_]:  # A mask. Shape (spans,).
        found = np.zeros(len(self.facts.rank.spans), dtype=bool)
        found[ids] = True
        return found

    def _all_of(self, *ids: IntArray) -> IntArray:
        return np.flatnonzero(self._among(np.concatenate(ids)))
