"""Edges between device operations, and from the calls that launch them."""

import numpy as np

from diagnose.facts.core.base import Facts
from diagnose.facts.core.device import DeviceWork, unrecorded_work
from diagnose.replay.calls import Calls
from diagnose.replay.graph import ONLY_IN_EDITS, EdgeKind, Edges, edges, joined
from diagnose.replay.streams import Stream, recorded_on, sync_devices
from diagnose.trace import intervals
from diagnose.trace.enums import SyncKind
from diagnose.trace.intervals import IntArray, Intervals

LAUNCH_NS = 6_000
"""From a launching call's start to its work's start on an empty stream, where no launch shows it (5 to 20 us seen)."""

BACK_TO_BACK_NS = 1_000  # Between queued kernels, where none shows it (0.8 to 4 us seen).
EVENT_NS = 2_000  # From an event to the work that waited for it (0 to 3 us seen).
MOST_DELAY_NS = 1_000_000  # Longer delays of single launches say nothing about the usual one.
UNEXPLAINED_NS = 15_000  # A start later than this after all it depends on has another reason.
SOON_NS = 25_000  # Work on another stream that ended within this before such a start is taken for the reason.


def before_on_stream(work: DeviceWork, on: list[Stream]) -> IntArray:
    """The work that each operation follows on its stream: the last to end by its start, or -1. Shape (operations,).

    Work without a duration is the last to end by its own start: it follows the one before itself.
    """
    found = np.full(len(work.ids), -1, dtype=np.int64)
    for stream in on:
        rows = np.sort(stream.work)
        by_end = rows[np.argsort(work.end_ns[rows], kind="stable")]
        ended = np.searchsorted(work.end_ns[by_end], work.start_ns[by_end], side="right")
        at = np.minimum(ended, np.arange(len(rows))) - 1
        found[by_end] = np.where(at >= 0, by_end[np.maximum(at, 0)], -1)
    return found


def launch_edges(
    work: DeviceWork, on: list[Stream], found: Calls, launched: IntArray | None, work_start: IntArray
) -> Edges:
    """Work starts after its launching call begins, by the usual delay on an empty stream (replay E3).

    `launched`: the point of each operation's launching call, -1 if it has none.
    """
    if launched is None:
        return edges(EdgeKind.LAUNCH, work_start[:0], work_start[:0])
    rows = np.flatnonzero(launched >= 0)
    call_start = found.start_ns[found.call_of_work[rows]]
    before = before_on_stream(work, on)[rows]
    delay = work.start_ns[rows] - call_start
    empty = ((before < 0) | (work.end_ns[before] <= call_start)) & (delay >= 0) & (delay < MOST_DELAY_NS)
    usual = int(np.median(delay[empty])) if empty.any() else LAUNCH_NS
    return edges(EdgeKind.LAUNCH, launched[rows], work_start[rows], usual, work.ids[rows])


def stream_edges(
    facts: Facts, work: DeviceWork, on: list[Stream], found: Calls, work_start: IntArray, work_end: IntArray
) -> Edges:
    """Work starts after the work before it on its stream, by the usual gap between queued work (replay E4).

    And after what ran between the two and was not recorded, which takes as long whatever is fixed.
    """
    before = before_on_stream(work, on)
    rows = np.flatnonzero(before >= 0)
    gap = work.start_ns[rows] - work.end_ns[before[rows]]
    known = found.call_of_work[rows] >= 0
    call_end = np.full(len(rows), np.iinfo(np.int64).max)
    call_end[known] = found.end_ns[found.call_of_work[rows][known]]
    queued = (call_end <= work.end_ns[before[rows]] - LAUNCH_NS) & (gap <= UNEXPLAINED_NS)
    usual = int(np.median(gap[queued])) if queued.any() else BACK_TO_BACK_NS
    hidden = intervals.covered(Intervals(work.end_ns[before[rows]], work.start_ns[rows]), unrecorded_work(facts))
    return edges(EdgeKind.STREAM, work_end[before[rows]], work_start[rows], np.maximum(usual, hidden), work.ids[rows])


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


def inferred_events(
    work: DeviceWork, on: list[Stream], some: Edges, observed_ns: IntArray, work_start: IntArray, work_end: IntArray
) -> Edges:
    """Waits that were not recorded: starts that nothing explains, soon after the end of work on another stream."""
    none = edges(EdgeKind.EVENT, work_start[:0], work_start[:0])
    if len(on) < 2:
        return none
    active = ~np.isin(some.kind, ONLY_IN_EDITS)
    due = np.full(len(observed_ns), np.iinfo(np.int64).min, dtype=np.int64)
    np.maximum.at(due, some.target[active], (observed_ns[some.source] + some.estimate_ns)[active])
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
    found = edges(EdgeKind.EVENT, work_end[source], work_start[rows], EVENT_NS, work.ids[rows])
    return joined([none, found])
