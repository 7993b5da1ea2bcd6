"""From a rank's facts to its dependency graph."""

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, once
from diagnose.facts.core.device import DeviceWork, device_work, unrecorded_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.steps import Measure, steps
from diagnose.replay import calls as host_calls
from diagnose.replay.calls import Calls, Stream, recorded_on, streams, sync_devices
from diagnose.replay.graph import ONLY_IN_EDITS, EdgeKind, Edges, Graph, arranged, edges, joined
from diagnose.replay.threads import Cuts, Movable, Threads, movable, move_edges, threads
from diagnose.trace import intervals
from diagnose.trace.enums import SyncKind
from diagnose.trace.intervals import IntArray, Intervals

RETURN_NS = 3_000  # From the end of awaited work to the return of the call that waited, where no call shows it.
MOST_RETURN_NS = 50_000  # A call that returns later than this after its supposed cause has waited for something else.
LAUNCH_NS = 6_000  # From a launching call's start to its work on an empty stream, if none shows it (5 to 20 us seen).
BACK_TO_BACK_NS = 1_000  # Between queued kernels, where none shows it (0.8 to 4 us seen).
EVENT_NS = 2_000  # From an event to the work that waited for it (0 to 3 us seen).
MOST_DELAY_NS = 1_000_000  # Longer delays of single launches say nothing about the usual one.
UNEXPLAINED_NS = 15_000  # A start later than this after all it depends on has another reason.
SOON_NS = 25_000  # Work on another stream that ended within this before such a start is taken for the reason.


class Stretches(Struct, frozen=True):
    """A rank's own stretches of time, by its own clock, in order. Arrays of shape (stretches,)."""

    from_ns: IntArray
    until_ns: IntArray

    @property
    def moments_ns(self) -> IntArray:
        """All begins, then all ends."""
        return np.concatenate((self.from_ns, self.until_ns))


def own_stretches(facts: Facts) -> Stretches:
    """The stretches before each event of the rank's lane, and after the last; empty if no other rank is known."""
    others, none = facts.rank.peers, np.zeros(0, dtype=np.int64)
    if others is None or not others.job.join_points:
        return Stretches(none, none)
    at = others.job.ranks.index(others.rank)
    sequence, shift = others.job.sequences[at], int(others.job.ahead_ns[at]) - facts.rank.zero_unix_ns
    after = np.concatenate((sequence.bounds_ns[:1], np.maximum.accumulate(sequence.lane.until_ns)))
    until = np.maximum(np.append(sequence.lane.from_ns, sequence.bounds_ns[-1]), after)
    return Stretches(after + shift, until + shift)


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
    """The graph; its marks are the moments of `own_stretches`. Raises Missing without a step to measure, or a host."""
    work, on, found, moving = device_work(facts), streams(facts), host_calls.calls(facts), movable(facts)
    own, waiting = _waits(facts, found, on, work)
    host = threads(facts, found, own, _cuts(facts, moving))
    layout = _layout(facts, host, work, moving)
    before = before_on_stream(work, on)
    parts = [
        host.edges,
        edges(EdgeKind.WORK, layout.work_start, layout.work_end, work.end_ns - work.start_ns, work.ids, work.track),
        _launch_edges(work, before, found, layout),
        _stream_edges(facts, work, before, found, layout),
        event_edges(facts, work, on, layout.work_start, layout.work_end),
        *(
            edges(kind, layout.work_end[some.work], host.call_end[some.call], estimate, found.ids[some.call])
            for kind, some, estimate in waiting
        ),
        *_step_ends(facts, layout, work),
        *move_edges(moving, found, host, layout.work_start, layout.work_end, layout.moved),
    ]
    some = joined(parts)
    some = joined([some, _inferred_events(work, on, some, layout)])
    some = joined([some, _loose_ends(facts, layout, some, work)])
    return arranged(layout.observed_ns, layout.lane, some, layout.bounds, _marks(facts, layout, work))


def _marks(facts: Facts, layout: Layout, work: DeviceWork) -> IntArray:
    """Points of the marked moments: the main thread's on a host alone, else the last start or end of device work."""
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
    """What each call takes by itself, and (edge kind, pairs of call and work, delay of each pair) of their waits."""
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
    """Where host time is cut: begins of movable host spans, then their ends; on a host alone also marks, then steps."""
    on_host = moving.row < 0
    times = [moving.start_ns[on_host], moving.end_ns[on_host]]
    tracks = [moving.track[on_host]] * 2
    if _on_host(facts):
        times.append(np.append(own_stretches(facts).moments_ns, steps(facts).bounds_ns))
        tracks.append(np.full(len(times[-1]), host_threads(facts).main))
    ends = slice(len(times[0]), 2 * len(times[0]))
    most = np.full(sum(map(len, times)), np.iinfo(np.int64).max)
    most[ends] = moving.own_ns[on_host]
    begins = np.ones(len(most), dtype=bool)
    begins[ends] = False
    return Cuts(np.concatenate(times), np.concatenate(tracks).astype(np.int64), begins, most)


def _on_host(facts: Facts) -> bool:
    return not len(device_work(facts).ids)


def _layout(facts: Facts, host: Threads, work: DeviceWork, moving: Movable) -> Layout:
    """The points of the graph in one order: host, start and end of device work, step bounds, moved spans."""
    tracks, bounds = len(facts.rank.tracks), steps(facts).bounds_ns
    first = np.cumsum([len(host.time_ns), 2 * len(work.ids), len(bounds)])
    by_track = np.lexsort((work.start_ns, work.track))
    place = np.empty(len(by_track), dtype=np.int64)
    place[by_track] = first[0] + 2 * np.arange(len(work.ids))
    own_lane = 2 * tracks + 1 + np.arange(len(moving.ids))
    pieces = np.stack((work.start_ns[by_track], work.end_ns[by_track]), axis=1).ravel()
    return Layout(
        host=host,
        work_start=place,
        work_end=place + 1,
        bounds=first[1] + np.arange(len(bounds)),
        moved=first[2] + np.arange(len(moving.ids)),
        observed_ns=np.concatenate((host.time_ns, pieces, bounds, moving.end_ns)),
        lane=np.concatenate(
            (host.track, np.repeat(tracks + work.track[by_track], 2), np.full(len(bounds), 2 * tracks), own_lane)
        ),
    )


def _step_ends(facts: Facts, layout: Layout, work: DeviceWork) -> list[Edges]:
    """A step ends with the last of its work on any stream, and not before the step before it.

    Where steps are measured on the host they end at its marks. The start of a window or of an only step is given.
    """
    used, bounds = steps(facts), layout.bounds
    if _on_host(facts):
        return [edges(EdgeKind.STEP, layout.host.cut[-len(bounds) :], bounds)]
    if used.measure is Measure.WINDOW:
        step, ends_at = np.zeros(len(work.ids), dtype=np.int64), np.array([-1, 0])
    else:
        position = {mark.number: k for k, mark in enumerate(facts.rank.steps)}
        step, ends_at = work.step, np.array([-1, *(position[number] for number in used.numbers)])
    if used.measure is Measure.DEVICE:
        before = step[(step >= 0) & (step < ends_at[1])]
        ends_at[0] = before.max() if len(before) else -1
    order = np.lexsort((work.end_ns, work.track, step))
    rows = order[np.append((np.diff(step[order]) != 0) | (np.diff(work.track[order]) != 0), True)]
    bound_of = np.full(max(int(step.max(initial=0)), int(ends_at.max())) + 2, -1, dtype=np.int64)
    bound_of[ends_at[ends_at >= 0]] = bounds[ends_at >= 0]
    target = np.where(step[rows] >= 0, bound_of[step[rows]], -1)
    first = bounds[:1] if used.measure is Measure.WINDOW else bounds[:0]
    return [
        edges(EdgeKind.STEP, bounds[:-1], bounds[1:]),
        edges(EdgeKind.STEP, layout.work_end[rows[target >= 0]], target[target >= 0]),
        edges(EdgeKind.STEP, layout.work_start[: len(first)], first),
    ]


def _loose_ends(facts: Facts, layout: Layout, all_edges: Edges, work: DeviceWork) -> Edges:
    """Edges into points that depend on nothing: from the main thread's last point before, as long as was observed.
    The same into work that begins late after the work before it, where no launch is known. The given start of a window
    depends on nothing. Moved work may be ready as early as the recording begins."""
    host = layout.host
    mine = np.flatnonzero(host.track == host_threads(facts).main)
    free = np.ones(len(layout.observed_ns), dtype=bool)
    free[all_edges.target[~np.isin(all_edges.kind, ONLY_IN_EDITS)]] = False
    if len(work.ids) and (work.launch < 0).all():
        into = np.isin(all_edges.target, layout.work_start)
        due = layout.observed_ns[all_edges.source[into]] + all_edges.estimate_ns[into]
        late = layout.observed_ns[all_edges.target[into]] - due > UNEXPLAINED_NS
        free[all_edges.target[into][late]] = True
    free[np.append(layout.bounds, layout.moved)] = False
    loose = np.flatnonzero(free)
    before = np.searchsorted(host.time_ns[mine], layout.observed_ns[loose], side="left") - 1
    loose, before = loose[before >= 0], before[before >= 0]
    lag = layout.observed_ns[loose] - host.time_ns[mine[before]]
    after = edges(EdgeKind.AFTER, mine[before], loose, lag)
    first = np.repeat(mine[:1], len(layout.moved))
    return joined([after, edges(EdgeKind.AFTER, first, layout.moved[: len(first)])])


def before_on_stream(work: DeviceWork, on: list[Stream]) -> IntArray:
    """The work that each operation follows on its stream: the last to end by its start, or -1. Shape (operations,).
    Work without a duration is the last to end by its own start: it follows the one before itself."""
    found = np.full(len(work.ids), -1, dtype=np.int64)
    for stream in on:
        rows = np.sort(stream.work)
        by_end = rows[np.argsort(work.end_ns[rows], kind="stable")]
        ended = np.searchsorted(work.end_ns[by_end], work.start_ns[by_end], side="right")
        at = np.minimum(ended, np.arange(len(rows))) - 1
        found[by_end] = np.where(at >= 0, by_end[np.maximum(at, 0)], -1)
    return found


def _launch_edges(work: DeviceWork, before: IntArray, found: Calls, layout: Layout) -> Edges:
    """Work starts after the call that launches it begins, by the usual delay on an empty stream (replay E3)."""
    rows = np.flatnonzero(found.call_of_work >= 0)
    call = found.call_of_work[rows]
    delay = work.start_ns[rows] - found.start_ns[call]
    empty = (before[rows] < 0) | (work.end_ns[before[rows]] <= found.start_ns[call])
    empty &= (delay >= 0) & (delay < MOST_DELAY_NS)
    usual = int(np.median(delay[empty])) if empty.any() else LAUNCH_NS
    return edges(EdgeKind.LAUNCH, layout.host.call_start[call], layout.work_start[rows], usual, work.ids[rows])


def _stream_edges(facts: Facts, work: DeviceWork, before: IntArray, found: Calls, layout: Layout) -> Edges:
    """Work starts after the work before it on its stream, by the usual gap between queued work (replay E4), and after
    what ran between the two and was not recorded, which takes as long whatever is fixed."""
    rows = np.flatnonzero(before >= 0)
    before = before[rows]
    gap = work.start_ns[rows] - work.end_ns[before]
    call_end = np.append(found.end_ns, np.iinfo(np.int64).max)[found.call_of_work[rows]]
    queued = (call_end <= work.end_ns[before] - LAUNCH_NS) & (gap <= UNEXPLAINED_NS)
    usual = int(np.median(gap[queued])) if queued.any() else BACK_TO_BACK_NS
    hidden = intervals.covered(Intervals(work.end_ns[before], work.start_ns[rows]), unrecorded_work(facts))
    lag = np.maximum(usual, hidden)
    return edges(EdgeKind.STREAM, layout.work_end[before], layout.work_start[rows], lag, work.ids[rows])


def event_edges(facts: Facts, work: DeviceWork, on: list[Stream], work_start: IntArray, work_end: IntArray) -> Edges:
    """Recorded waits of a stream for an event on another one (replay E5)."""
    rank = facts.rank
    rows = rank.syncs[
        (rank.syncs["sync_kind"] == SyncKind.STREAM_WAIT_EVENT.value) & (rank.syncs["wait_on_correlation"] > 0)
    ]
    number = rank.spans["correlation"].to_numpy()[rows.index.to_numpy()]
    waiting, awaited, record = (rows[name].to_numpy() for name in ("stream", "wait_on_stream", "wait_on_correlation"))
    source, target = recorded_on(on, awaited, record), np.full(len(rows), -1, dtype=np.int64)
    device = sync_devices(facts, rows.index.to_numpy())
    for stream in on:
        mine = (waiting == stream.stream) & np.isin(device, (stream.device, -1))
        target[mine] = stream.first_correlated(number[mine])
    known = (source >= 0) & (target >= 0)
    source, target = source[known], target[known]
    return edges(EdgeKind.EVENT, work_end[source], work_start[target], EVENT_NS, work.ids[target])


def _inferred_events(work: DeviceWork, on: list[Stream], all_edges: Edges, layout: Layout) -> Edges:
    """Waits that were not recorded: starts that nothing explains, soon after the end of work on another stream."""
    observed_ns, work_start = layout.observed_ns, layout.work_start
    if len(on) < 2:
        return edges(EdgeKind.EVENT, work_start[:0], work_start[:0])
    active = ~np.isin(all_edges.kind, ONLY_IN_EDITS)
    due = np.full(len(observed_ns), np.iinfo(np.int64).min, dtype=np.int64)
    np.maximum.at(due, all_edges.target[active], (observed_ns[all_edges.source] + all_edges.estimate_ns)[active])
    rows = np.flatnonzero((due[work_start] > due.min()) & (work.start_ns - due[work_start] > UNEXPLAINED_NS))
    by_end = np.argsort(work.end_ns, kind="stable")
    at = np.searchsorted(work.end_ns[by_end], work.start_ns[rows], side="right") - 1
    launched = np.full(len(work.ids), np.iinfo(np.int64).max)
    for stream in on:
        launched[stream.work] = stream.launched_ns
    source = np.full(len(rows), -1, dtype=np.int64)
    for back in range(4):
        candidate = by_end[np.maximum(at - back, 0)]
        fits = (at >= back) & (source < 0) & (work.track[candidate] != work.track[rows])
        fits &= (work.start_ns[rows] - work.end_ns[candidate] <= SOON_NS) & (launched[candidate] < launched[rows])
        source[fits] = candidate[fits]
    rows, source = rows[source >= 0], source[source >= 0]
    return edges(EdgeKind.EVENT, layout.work_end[source], work_start[rows], EVENT_NS, work.ids[rows])
