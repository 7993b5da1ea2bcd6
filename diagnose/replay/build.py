"""From a rank's facts to its dependency graph."""

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, once
from diagnose.facts.core.device import DeviceWork, device_work, unrecorded_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.steps import Measure, steps
from diagnose.replay import calls as host_calls
from diagnose.replay import graph as graphs
from diagnose.replay.calls import Calls
from diagnose.replay.graph import ONLY_IN_EDITS, EdgeKind, Edges, Graph, edges
from diagnose.replay.moves import Movable, movable, move_edges
from diagnose.replay.streams import Stream, own_stretches, streams
from diagnose.replay.threads import Cuts, Threads, threads
from diagnose.replay.work_edges import UNEXPLAINED_NS, event_edges, inferred_events, launch_edges, stream_edges
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals

RETURN_NS = 3_000  # From the end of awaited work to the return of the call that waited, where no call shows it.

MOST_RETURN_NS = 50_000
"""A call that returns later than this after what it is thought to wait for has waited for something else."""


class Layout(Struct, frozen=True):
    """Where the parts stand in the list of points, before the points are put in order."""

    host: Threads
    work_start: IntArray  # Of each row of `DeviceWork`. Shape (operations,).
    work_end: IntArray
    bounds: IntArray  # Where the used steps begin and end. Shape (used + 1,).
    moved: IntArray  # When each movable span would be ready on a track of its own.
    observed_ns: IntArray
    lane: IntArray


@once
def recorded_graph(facts: Facts) -> Graph:
    """The graph of all that was recorded; its marks are the moments of `own_stretches`.

    Raises Missing if no step can be measured, or if nothing was recorded on the host.
    """
    work, on, found, moving = device_work(facts), streams(facts), host_calls.calls(facts), movable(facts)
    own, waiting = _waits(facts, found, on, work)
    host = threads(facts, found, own, _cuts(facts, moving))
    layout = _layout(facts, host, work, moving)
    calls_start, calls_end = host.call_start, host.call_end
    launched = np.where(found.call_of_work >= 0, calls_start[found.call_of_work], -1) if len(calls_start) else None
    parts = [
        host.edges,
        edges(EdgeKind.WORK, layout.work_start, layout.work_end, work.end_ns - work.start_ns, work.ids, work.track),
        launch_edges(work, on, found, launched, layout.work_start),
        stream_edges(facts, work, on, found, layout.work_start, layout.work_end),
        event_edges(facts, work, on, layout.work_start, layout.work_end),
        *(
            edges(kind, layout.work_end[some.work], calls_end[some.call], estimate, found.ids[some.call])
            for kind, some, estimate in waiting
        ),
        *_step_ends(facts, layout, work),
        *move_edges(moving, found, host, layout.work_start, layout.work_end, layout.moved),
    ]
    some = graphs.joined(parts)
    some = graphs.joined(
        [some, inferred_events(work, on, some, layout.observed_ns, layout.work_start, layout.work_end)]
    )
    some = graphs.joined([some, _loose_ends(facts, layout, some, work)])
    marks = _marks(facts, layout, work)
    return graphs.arranged(layout.observed_ns, layout.lane, some, layout.bounds, marks)


def _marks(facts: Facts, layout: Layout, work: DeviceWork) -> IntArray:
    """Points for the marked moments, before points are put in order.

    On the host that is one of the main thread at this moment, else the last end or start of device work until then.
    """
    marked_ns = own_stretches(facts).moments_ns
    if _on_host(facts):
        end = len(layout.host.cut) - len(layout.bounds)
        return layout.host.cut[end - len(marked_ns) : end]
    times_ns, points = np.append(work.start_ns, work.end_ns), np.append(layout.work_start, layout.work_end)
    order = np.argsort(times_ns, kind="stable")  # Of a start and an end at once, the end counts.
    at = np.searchsorted(times_ns[order], marked_ns, side="right") - 1
    return points[order[np.maximum(at, 0)]]


def _waits(
    facts: Facts, found: Calls, on: list[Stream], work: DeviceWork
) -> tuple[IntArray, list[tuple[EdgeKind, host_calls.Pairs, IntArray]]]:
    """What each call takes by itself, and (kind, which, delay) of all that calls wait for on the device."""
    if not len(found.ids):
        return found.start_ns, []
    awaited = host_calls.waits(facts, found, on)
    before, staged = host_calls.staging(facts, found, on)
    room, full = host_calls.queued(facts, found, on)
    frees = host_calls.freeing(found, work.end_ns, awaited)
    own = host_calls.own_times(found, work.end_ns, awaited, np.maximum(staged, frees), full)
    late = found.end_ns[awaited.call] - work.end_ns[awaited.work]
    # What a freeing call does after its wait is its own work; a sync does nothing but return.
    did_wait = (work.end_ns[awaited.work] > found.start_ns[awaited.call]) & (late >= 0) & (late < MOST_RETURN_NS)
    usual = int(np.median(late[did_wait])) if did_wait.any() else RETURN_NS
    behind = Intervals(work.end_ns[awaited.work], found.end_ns[awaited.call])
    lasted = np.maximum(usual, intervals.covered(behind, unrecorded_work(facts)))
    return own, [
        (EdgeKind.WAIT, awaited, np.where(frees[awaited.call] >= 0, frees[awaited.call], lasted)),
        (EdgeKind.WAIT, before, staged[before.call]),
        (EdgeKind.QUEUE, room, np.zeros(len(room.call), dtype=np.int64)),
    ]


def _cuts(facts: Facts, moving: Movable) -> Cuts:
    """Where host time is cut besides calls: movable host spans begin, then all end; then marks, steps of the host."""
    on_host = moving.row < 0
    times = [moving.start_ns[on_host], moving.end_ns[on_host]]
    tracks = [moving.track[on_host]] * 2
    if _on_host(facts):
        times.append(np.append(own_stretches(facts).moments_ns, steps(facts).bounds_ns))
        tracks.append(np.full(len(times[-1]), host_threads(facts).main))
    most = np.full(sum(map(len, times)), np.iinfo(np.int64).max)
    fetches = len(times[0])
    most[fetches : 2 * fetches] = moving.own_ns[on_host]
    begins = np.ones(len(most), dtype=bool)
    begins[fetches : 2 * fetches] = False
    return Cuts(np.concatenate(times), np.concatenate(tracks).astype(np.int64), begins, most)


def _on_host(facts: Facts) -> bool:
    return not len(device_work(facts).ids)


def _layout(facts: Facts, host: Threads, work: DeviceWork, moving: Movable) -> Layout:
    tracks, bounds = len(facts.rank.tracks), steps(facts).bounds_ns
    counts = [len(host.time_ns), 2 * len(work.ids), len(bounds), len(moving.ids)]
    first = np.cumsum([0, *counts])
    start = first[1] + 2 * np.arange(len(work.ids))
    by_track = np.lexsort((work.start_ns, work.track))
    place = np.empty(len(by_track), dtype=np.int64)
    place[by_track] = start
    pieces = np.stack((work.start_ns[by_track], work.end_ns[by_track]), axis=1).ravel()
    return Layout(
        host=host,
        work_start=place,
        work_end=place + 1,
        bounds=first[2] + np.arange(len(bounds)),
        moved=first[3] + np.arange(len(moving.ids)),
        observed_ns=np.concatenate((host.time_ns, pieces, bounds, moving.end_ns)),
        lane=np.concatenate(
            (
                host.track,
                np.repeat(tracks + work.track[by_track], 2),
                np.full(len(bounds), 2 * tracks),
                2 * tracks + 1 + np.arange(len(moving.ids)),
            )
        ),
    )


def _step_ends(facts: Facts, layout: Layout, work: DeviceWork) -> list[Edges]:
    """A step ends with the last of its work on any stream, and not before the step before it.

    Where steps are measured on the host they end at its marks. The start of a window or of an only step is given.
    """
    used, bounds = steps(facts), layout.bounds
    in_order = edges(EdgeKind.STEP, bounds[:-1], bounds[1:], 0)
    if _on_host(facts):
        return [edges(EdgeKind.STEP, layout.host.cut[-len(bounds) :], bounds, 0)]
    if used.measure is Measure.WINDOW:
        step, ends_at = np.zeros(len(work.ids), dtype=np.int64), np.array([-1, 0])
    else:
        position = {mark.number: k for k, mark in enumerate(facts.rank.steps)}
        step, ends_at = work.step, np.array([-1, *(position[number] for number in used.numbers)])
    if used.measure is Measure.DEVICE:
        before = step[(step >= 0) & (step < ends_at[1])]
        ends_at[0] = before.max() if len(before) else -1
    order = np.lexsort((work.end_ns, work.track, step))
    last = np.concatenate((np.diff(step[order]) != 0, [True])) | np.concatenate(
        (np.diff(work.track[order]) != 0, [True])
    )
    rows = order[last]
    bound_of = np.full(max(int(step.max(initial=0)), int(ends_at.max())) + 2, -1, dtype=np.int64)
    bound_of[ends_at[ends_at >= 0]] = bounds[ends_at >= 0]
    target = np.where(step[rows] >= 0, bound_of[step[rows]], -1)
    feeding = edges(EdgeKind.STEP, layout.work_end[rows[target >= 0]], target[target >= 0], 0)
    if used.measure is Measure.WINDOW:
        feeding = graphs.joined([feeding, edges(EdgeKind.STEP, layout.work_start[:1], bounds[:1], 0)])
    return [in_order, feeding]


def _loose_ends(facts: Facts, layout: Layout, some: Edges, work: DeviceWork) -> Edges:
    """Edges into points that depend on nothing: from the main thread's last point before, as long as was observed.

    The same into work that begins late after the work before it, where no launch is known. The given start of a window
    depends on nothing. Moved work may be ready as early as the recording begins.
    """
    host = layout.host
    mine = np.flatnonzero(host.track == host_threads(facts).main)
    free = np.ones(len(layout.observed_ns), dtype=bool)
    free[some.target[~np.isin(some.kind, ONLY_IN_EDITS)]] = False
    if len(work.ids) and (work.launch < 0).all():
        into = np.isin(some.target, layout.work_start)
        due = layout.observed_ns[some.source[into]] + some.estimate_ns[into]
        late = layout.observed_ns[some.target[into]] - due > UNEXPLAINED_NS
        free[some.target[into][late]] = True
    free[layout.bounds] = False
    free[layout.moved] = False
    loose = np.flatnonzero(free)
    before = np.searchsorted(host.time_ns[mine], layout.observed_ns[loose], side="left") - 1
    loose, before = loose[before >= 0], before[before >= 0]
    lag = layout.observed_ns[loose] - host.time_ns[mine[before]]
    after = edges(EdgeKind.AFTER, mine[before], loose, lag)
    first = np.full(len(layout.moved) if len(mine) else 0, mine[0] if len(mine) else 0)
    return graphs.joined([after, edges(EdgeKind.AFTER, first, layout.moved[: len(first)], 0)])
