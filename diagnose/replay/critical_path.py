"""What a step waits for: the critical path of the recorded steps, as stretches of time of one kind each.

The path is walked back from the end of the last used step, at every event to the one that it waited for (Kelley and
Walker 1959; of programs, Yang and Miller 1988). What is not on it could be shorter without the steps being shorter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import astuple, replace

from diagnose.facts.core.base import Facts, Missing, once
from diagnose.facts.core.breakdown import ON_DEVICE, PATH_CAUSES, TimeCause, shared_out
from diagnose.facts.core.device import TURNAROUND_NS, WorkClass, device_work
from diagnose.facts.core.host import host_activities
from diagnose.facts.core.spans import cut_at_frames, sites_at
from diagnose.facts.core.steps import steps
from diagnose.replay.build import recorded_graph
from diagnose.replay.graph import OFF, EdgeKind, Graph, joined
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals


class Chain(Struct, frozen=True):
    """Stretches of time, each of an edge, without gaps from the first bound of the used steps to the last.
    Arrays of shape (stretches,). Clocks of host and device differ a little, so that a stretch may be empty."""

    edge: IntArray  # Position in `Graph.edges`; -1 for time before a point that depends on nothing.
    start_ns: IntArray
    delay_end_ns: IntArray  # Up to here it is the edge's delay; the rest, to `end_ns`, is residual.
    end_ns: IntArray

    @property
    def unexplained_ns(self) -> int:
        """Time on the chain that only residuals explain."""
        return int((self.end_ns - self.delay_end_ns)[self.edge >= 0].sum())


def chain(graph: Graph) -> Chain:
    """The chain: at every point the edge that demands the latest time is the one that was waited for.
    Delays are no longer than observed: of edges that demand the same it is that whose full delay reaches farthest."""
    begin = int(graph.observed_ns[graph.bounds[0]])
    all_edges, observed = graph.edges, graph.observed_ns
    binding = _binding(graph)
    before = np.where((binding >= 0) & (observed > begin), all_edges.source[binding], -1).tolist()
    points, point = list[int](), int(graph.bounds[-1])
    while (up := before[point]) >= 0:
        points.append(point)
        point = up
    edge = binding[points[::-1]]
    reached = np.minimum.accumulate(observed[[*points, point]])[::-1]
    start, stop = np.maximum(reached[:-1], begin), reached[1:]
    explained = np.clip(observed[all_edges.source[edge]] + graph.delay_ns[edge], start, stop)
    if len(reached) and reached[0] > begin:  # Nothing is known of what came before.
        edge, explained = np.append(-1, edge), np.append(begin, explained)
        start, stop = np.append(begin, start), np.append(reached[0], stop)
    return Chain(edge, start, explained, stop)


@once
def recorded_chain(facts: Facts) -> Chain:
    """The chain of all that was recorded. Raises Missing like `recorded_graph`."""
    return chain(recorded_graph(facts))


def _binding(graph: Graph) -> IntArray:
    """For each point the edge into it that was waited for, or -1. Shape (points,)."""
    all_edges = graph.edges
    found = np.full(len(graph.observed_ns), -1, dtype=np.int64)
    if not len(all_edges.target):
        return found
    begun, on = graph.observed_ns[all_edges.source], graph.delay_ns != OFF
    first = np.flatnonzero(np.diff(all_edges.target, prepend=-1))  # Edges are sorted by target.
    size = np.diff(first, append=len(all_edges.target))
    latest = np.where(on, begun + graph.delay_ns, OFF)
    last = on & (latest == np.repeat(np.maximum.reduceat(latest, first), size))
    farthest = np.where(last, begun + all_edges.estimate_ns, OFF)
    chosen = last & (farthest == np.repeat(np.maximum.reduceat(farthest, first), size))
    found[all_edges.target[first]] = np.maximum.reduceat(np.where(chosen, np.arange(len(chosen)), -1), first)
    return found


MOST_LINES = 150  # Source lines that have parts of their own: those with most time.

_CODE = {kind: code for code, kind in enumerate(PATH_CAUSES)}
_OF_CLASS = np.array([_CODE[TimeCause(one.name.lower())] for one in WorkClass], dtype=np.int8)
_ON_HOST = (EdgeKind.HOST, EdgeKind.WAIT, EdgeKind.QUEUE)  # Edges along a thread, or into the end of a call of one.
_OF_WORK = (EdgeKind.WORK, EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.EVENT)  # Edges that device work owns.
_NAMED = {
    EdgeKind.LAUNCH: TimeCause.LAUNCH,
    EdgeKind.STREAM: TimeCause.BETWEEN_KERNELS,
    EdgeKind.EVENT: TimeCause.DEVICE_WAIT,
    **dict.fromkeys(_ON_HOST, TimeCause.PYTHON),
}
_OF_CALLS = (TimeCause.ALLOCATION, TimeCause.SYNC, TimeCause.HOST_COPY)
_BY_NAME = [_CODE[one] for one in (*ON_DEVICE, *_OF_CALLS)]  # What the names of owners say more of.
_KIND_OF_EDGE = np.array([_CODE[_NAMED.get(one, TimeCause.UNEXPLAINED)] for one in EdgeKind], dtype=np.int8)


class CriticalPath(Struct, frozen=True):
    """Stretches without gaps or overlaps from the first used step's start to the last one's end. Shape (stretches,)."""

    start_ns: IntArray
    end_ns: IntArray
    kind: npt.NDArray[np.int8]  # Position in `PATH_CAUSES`.
    owner: IntArray  # Span id of the device work, host call or fetch that it is about; -1 where there is none.
    sites: tuple[Site | None, ...]  # The line of the user's code that ran, or that launched the work.


@once
def critical_path(facts: Facts) -> CriticalPath:
    """The path. Raises Missing if no step can be measured, or if nothing was recorded on the host."""
    found = _split_on_host(facts, _stretches(facts, recorded_chain(facts))).cut(steps(facts).bounds_ns)
    sites, known = np.full(len(found.track), None, dtype=object), found.track >= 0
    moment = np.where(found.moment_ns >= 0, found.moment_ns, found.start_ns)
    sites[known] = sites_at(facts, moment[known], found.track[known])
    return CriticalPath(found.start_ns, found.end_ns, found.kind, found.owner, tuple(sites.tolist()))


class _Stretches(Struct, frozen=True):
    """Stretches on their way to a path. Arrays of shape (stretches,)."""

    start_ns: IntArray
    end_ns: IntArray
    kind: npt.NDArray[np.int8]
    owner: IntArray
    track: IntArray  # The thread whose line it is of, or -1.
    moment_ns: IntArray  # When that thread was at the line; -1: at the start, as it is this thread's own time.

    def at(self, rows: IntArray | npt.NDArray[np.bool_]) -> _Stretches:
        return _Stretches(*(column[rows] for column in astuple(self)))

    def cut(self, moments_ns: IntArray) -> _Stretches:
        pieces, row = intervals.cut(Intervals(self.start_ns, self.end_ns), moments_ns)
        return replace(self.at(row), start_ns=pieces.starts, end_ns=pieces.ends)

    @property
    def on_host(self) -> npt.NDArray[np.bool_]:
        return (self.track >= 0) & (self.moment_ns < 0)


def _stretches(facts: Facts, found: Chain) -> _Stretches:
    """Each edge of the chain as a stretch of its kind; where that ends before the edge, an unexplained one follows.

    `call`: what launched the device work, or the fetch that delivered a batch. A launch explains the time until its
    call returns, a queue the turnaround between two kernels, work and threads all of theirs.
    """
    all_edges, work, spans = recorded_graph(facts).edges, device_work(facts), facts.rank.spans
    start, end = spans["start_ns"].to_numpy(), (spans["start_ns"] + spans["dur_ns"]).to_numpy()
    known = found.edge >= 0
    edge = np.where(known, all_edges.kind[found.edge], EdgeKind.AFTER)
    owner = np.where(known, all_edges.owner[found.edge], -1)
    row = np.searchsorted(work.ids, owner)
    of_work = np.isin(edge, _OF_WORK)
    call = np.full(len(edge), -1, dtype=np.int64)
    call[of_work] = work.launch[row[of_work]]
    delivered = (edge == EdgeKind.WAIT) & np.isin(owner, np.flatnonzero(spans["kind"] == SpanKind.LOADER.value))
    call[delivered] = owner[delivered]
    kind = _KIND_OF_EDGE[edge]
    kind[delivered] = _CODE[TimeCause.LOADER]
    kind[edge == EdgeKind.WORK] = _OF_CLASS[work.work_class[row[edge == EdgeKind.WORK]]]
    on_host = np.isin(edge, _ON_HOST) & ~delivered
    explained = np.where(edge == EdgeKind.LAUNCH, np.maximum(found.delay_end_ns, end[call]), found.delay_end_ns)
    queued = np.isin(edge, (EdgeKind.STREAM, EdgeKind.EVENT))
    explained = np.where(queued, found.start_ns + TURNAROUND_NS, explained)
    explained = np.where(on_host | delivered | (edge == EdgeKind.WORK), found.end_ns, explained)
    explained = np.where(kind == _CODE[TimeCause.UNEXPLAINED], found.start_ns, np.minimum(explained, found.end_ns))
    track = np.where(edge == EdgeKind.HOST, all_edges.track[found.edge], spans["track"].to_numpy()[owner])
    track = np.where(on_host, track, np.where(call >= 0, spans["track"].to_numpy()[call], -1)).astype(np.int64)
    moment = np.where(on_host | (call < 0), -1, start[call])
    first = _Stretches(found.start_ns, explained, kind, owner, track, moment)
    none, unexplained = np.full_like(owner, -1), np.full_like(kind, _CODE[TimeCause.UNEXPLAINED])
    rest = _Stretches(explained, found.end_ns, unexplained, owner, none, none)
    return _joined(first, rest)


def _joined(*parts: _Stretches) -> _Stretches:
    """All stretches of all parts that are not empty, in order of time."""
    all_parts = joined(parts)
    order = np.argsort(all_parts.start_ns, kind="stable")
    return all_parts.at(order[(all_parts.end_ns > all_parts.start_ns)[order]])


def _split_on_host(facts: Facts, found: _Stretches) -> _Stretches:
    """Threads' time by what they do, and by the line of the user's code that runs."""
    own, activities = found.at(found.on_host), host_activities(facts)
    parts = [found.at(~found.on_host)]
    for track in np.unique(own.track).tolist():
        mine = own.at(own.track == track)
        try:
            lines = cut_at_frames(facts, Intervals(mine.start_ns, mine.end_ns), track).starts
        except Missing:
            lines = mine.start_ns
        mine = mine.cut(np.concatenate([lines, *(edge for one in activities.values() for edge in one)]))
        kind = np.full(len(mine.kind), _CODE[TimeCause.PYTHON], dtype=np.int8)
        for activity, times in activities.items():
            kind[intervals.holds(times, mine.start_ns)] = _CODE[activity]
        parts.append(replace(mine, kind=kind))
    return _joined(*parts)


class PathPart(Struct, frozen=True):
    """Stretches of the path of one kind, at one line of code, mean of the used steps."""

    kind: TimeCause
    site: Site | None  # That ran, or that launched the work; None: not known, or too little time.
    ns: int  # Per step.
    share: float  # `ns` over the step.
    stretches: int  # In all used steps.
    mostly: str  # Name of the device work or host call that takes half of its time or more; "" where none does.
    moment: float  # Where in its step the mean moment of it lies, from 0 (start) to 1 (end).


@once
def path_parts(facts: Facts) -> tuple[PathPart, ...]:
    """The path by kind and line, largest first; the parts add up to the mean step. Raises Missing as the path does."""
    path, used = critical_path(facts), steps(facts)
    sites, site = _main_sites(path)
    keys, group = np.unique(path.kind.astype(np.int64) * len(sites) + site, return_inverse=True)
    group, ns = group.reshape(-1), path.end_ns - path.start_ns
    total, stretches = np.bincount(group, ns), np.bincount(group)
    step = np.searchsorted(used.bounds_ns, path.start_ns, side="right") - 1
    middle = (path.start_ns + path.end_ns) / 2 - used.bounds_ns[step]
    moment = np.bincount(group, weights=middle / used.times_ns[step] * ns) / total
    mostly = _main_names(facts, path, group, total)
    order = np.argsort(-total, kind="stable").tolist()
    rounded = shared_out([int(total[k]) for k in order], used.count)
    return tuple(
        PathPart(
            kind=PATH_CAUSES[int(keys[k]) // len(sites)],
            site=sites[int(keys[k]) % len(sites)],
            ns=per_step,
            share=per_step / used.mean_ns,
            stretches=int(stretches[k]),
            mostly=mostly.get(k, ""),
            moment=float(moment[k]),
        )
        for k, per_step in zip(order, rounded, strict=True)
        if per_step
    )


def _main_sites(path: CriticalPath) -> tuple[list[Site | None], IntArray]:
    """All lines, None first, and the position of each stretch's: 0 where it is not among the MOST_LINES longest."""
    number: dict[Site | None, int] = {None: 0}
    site = np.array([number.setdefault(one, len(number)) for one in path.sites], dtype=np.int64)
    total = np.bincount(site, path.end_ns - path.start_ns)
    return list(number), np.where(np.isin(site, np.argsort(-total, kind="stable")[:MOST_LINES]), site, 0)


def _main_names(facts: Facts, path: CriticalPath, group: IntArray, total: npt.NDArray[Any]) -> dict[int, str]:
    """By group the name of the device work or blocking call that takes half of its time or more; not there: none."""
    names = facts.rank.spans["name"].cat
    owned = np.flatnonzero(np.isin(path.kind, _BY_NAME) & (path.owner >= 0))
    pairs = np.stack((group[owned], names.codes.to_numpy()[path.owner[owned]]))
    distinct, which = np.unique(pairs, axis=1, return_inverse=True)
    ns = np.bincount(which.reshape(-1), (path.end_ns - path.start_ns)[owned])
    most = np.flatnonzero(2 * ns >= total[distinct[0]])
    return {int(distinct[0, k]): str(names.categories[distinct[1, k]]) for k in most}
