"""What an edit may move to a track of its own: loader fetches, and copies between host and device."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.data.fetches import MOST_READY_NS
from diagnose.replay.calls import Calls
from diagnose.replay.graph import EdgeKind, Edges, edges
from diagnose.replay.threads import Threads
from diagnose.trace import enums
from diagnose.trace.enums import Direction, SpanKind
from diagnose.trace.intervals import IntArray

READY_SHARE = 0.1  # The quantile of a worker loader's fetches that is taken for the cost of a batch that was ready.
STARVED_NS = 500_000  # A fetch from workers waited if it took this much longer than one whose batch was ready.
STARVED_SHARE = 0.05  # Waits of a smaller share of the time between fetches are taken for jitter: workers keep up.
MOST_WORKERS = 16  # Workers in step deliver in bursts; after more ready batches in a row than this they had caught up.


class Movable(Struct, frozen=True):
    """Spans that could run beside the rest: host spans first, then device work, each in order of time."""

    ids: IntArray
    start_ns: IntArray
    end_ns: IntArray
    track: IntArray
    row: IntArray  # Row of `DeviceWork`; -1 for a host span.
    made_ns: IntArray
    """What making it takes: its duration; of a batch that workers were late with, the time since the one before."""
    own_ns: IntArray  # What it takes the host if it has nothing to wait for.
    starved_after: IntArray
    """For a fetch that waited for workers which had no time to catch up, the one before that did; else -1."""


def movable(facts: Facts) -> Movable:
    """Loader fetches of the training threads, and copies from host to device and back."""
    spans, work, copies = facts.rank.spans, device_work(facts), facts.rank.copies
    is_fetch = spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.LOADER)
    fetches = np.flatnonzero(is_fetch & np.isin(spans["track"].to_numpy(), host_threads(facts).training))
    between = copies["direction"].isin([Direction.H2D.value, Direction.D2H.value])
    rows = np.flatnonzero(np.isin(work.ids, copies.index.to_numpy()[between.to_numpy()]))
    ids = np.concatenate((fetches, work.ids[rows]))
    start, lasted = spans["start_ns"].to_numpy()[ids], spans["dur_ns"].to_numpy()[ids]
    names = spans["name"].cat
    by_workers = np.array(["MultiProcessing" in name for name in names.categories], dtype=bool)
    several = np.append(by_workers[names.codes.to_numpy()[fetches]], np.zeros(len(rows), dtype=bool))
    ready = min(int(np.quantile(lasted[several], READY_SHARE)), MOST_READY_NS) if several.any() else 0
    since_last = np.diff(start + lasted, prepend=(start - 1)[:1])
    waited = several & (lasted - ready > np.maximum(STARVED_NS, STARVED_SHARE * since_last))
    starved_after = _starved_after(waited)
    starved = starved_after >= 0
    made = _made(start + lasted, lasted, starved_after)
    return Movable(
        ids=ids,
        start_ns=start,
        end_ns=start + lasted,
        track=spans["track"].to_numpy()[ids].astype(np.int64),
        row=np.concatenate((np.full(len(fetches), -1), rows)),
        made_ns=made,
        own_ns=np.where(starved, ready, lasted),
        starved_after=starved_after,
    )


def _starved_after(waited: npt.NDArray[np.bool_]) -> IntArray:
    """For each fetch that waited the one before it that did, if not too many were ready in between; else -1."""
    found = np.full(len(waited), -1, dtype=np.int64)
    late = np.flatnonzero(waited)
    near = np.diff(late) <= MOST_WORKERS
    found[late[1:][near]] = late[:-1][near]
    return found


def _made(end_ns: IntArray, lasted_ns: IntArray, starved_after: IntArray) -> IntArray:
    """What making each batch takes: workers deliver at one rate from a batch that is waited for to the next."""
    late = np.flatnonzero(starved_after >= 0)
    last = starved_after[late]
    many = late - last
    first = np.repeat(last + 1, many) + np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
    made = lasted_ns.copy()
    made[first] = np.repeat((end_ns[late] - end_ns[last]) // many, many)
    return made


def move_edges(
    moving: Movable, found: Calls, host: Threads, work_start: IntArray, work_end: IntArray, moved: IntArray
) -> list[Edges]:
    """A fetch that waited for workers ends when they deliver: as long after the one before as was seen.

    The other edges only an edit turns on: what is moved follows what was moved before it, and is waited for where it
    was; a copy is issued no earlier than the copy before it was, one batch ahead.
    """
    made = moving.made_ns
    on_device = moving.row >= 0
    fetches = int((~on_device).sum())
    start = np.concatenate((host.cut[:fetches], work_start[moving.row[on_device]]))
    end = np.concatenate((host.cut[fetches : 2 * fetches], work_end[moving.row[on_device]]))
    first = np.zeros(len(moved), dtype=bool)
    first[[at for at in (0, fetches) if at < len(moved)]] = True
    later = np.flatnonzero(~first)
    late = np.flatnonzero(moving.starved_after >= 0)
    last = moving.starved_after[late]
    found_edges = [
        edges(EdgeKind.WAIT, end[last], end[late], moving.end_ns[late] - moving.end_ns[last], moving.ids[late]),
        edges(EdgeKind.TRACK, start[first], moved[first], made[first], moving.ids[first]),
        edges(EdgeKind.TRACK, moved[later - 1], moved[later], made[later], moving.ids[later]),
        edges(EdgeKind.DELIVERY, moved, end, 0, moving.ids),
    ]
    copied = later[on_device[later]]
    call = found.call_of_work[moving.row[copied - 1]]
    copied, call = copied[call >= 0], call[call >= 0]
    if len(call):
        found_edges.append(
            edges(EdgeKind.TRACK, host.call_start[call], moved[copied], made[copied], moving.ids[copied])
        )
    return found_edges
