"""Host threads as points and edges, and what an edit may move to a track of its own."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.core.base import Facts
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.data.fetches import MOST_READY_NS
from diagnose.replay.calls import Calls
from diagnose.replay.graph import EdgeKind, Edges, edges, joined, positions
from diagnose.trace import enums, intervals
from diagnose.trace.enums import Direction, SpanKind
from diagnose.trace.intervals import IntArray, Intervals

_ACTIVE = (SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.RUNTIME, SpanKind.DRIVER, SpanKind.LOADER)


class Turns(Struct, frozen=True):
    """How threads other than the main one take turns with it. Arrays of shape (turns,)."""

    track: IntArray
    given_ns: IntArray  # When the main thread was last active before the other one began.
    begin_ns: IntArray
    end_ns: IntArray
    back_ns: IntArray  # When the main thread went on; -1 if it had not waited.


def turns(facts: Facts) -> Turns:
    """Bursts of activity of the other training threads (autograd), each between two of the main thread's.
    The main thread waited for a burst if it did nothing while the burst lasted (replay E2)."""
    threads = host_threads(facts)
    main = _activity(facts, threads.main)
    found = [(np.zeros(0, dtype=np.int64),) * 5]
    for track in threads.training[threads.training != threads.main].tolist():
        busy = _activity(facts, track)
        begun = np.searchsorted(main.starts, busy.starts, side="right")
        opens = np.concatenate(([True], begun[1:] > begun[:-1]))[: busy.size]
        closes = np.concatenate((opens[1:], [True]))[: busy.size]
        begin, end, next_main = busy.starts[opens], busy.ends[closes], begun[opens]
        before = np.where(next_main > 0, main.ends[next_main - 1] if main.size else 0, begin)
        idle = (before <= begin) & (np.searchsorted(main.starts, end, side="left") == next_main)
        goes_on = idle & (next_main < main.size)
        back = np.where(goes_on, main.starts[np.minimum(next_main, main.size - 1)] if main.size else -1, -1)
        found.append((np.full(len(begin), track), np.minimum(before, begin), begin, end, back))
    return Turns(*(np.concatenate(column).astype(np.int64) for column in zip(*found, strict=True)))


def _activity(facts: Facts, track: int) -> Intervals:
    """When the thread is inside a span that counts as work."""
    spans = facts.rank.spans
    rows = np.isin(spans["kind"].cat.codes.to_numpy(), [enums.code(kind) for kind in _ACTIVE])
    rows &= spans["track"].to_numpy() == track
    start = spans["start_ns"].to_numpy()[rows]
    return intervals.union(Intervals(start, np.maximum(start + spans["dur_ns"].to_numpy()[rows], start + 1)))


class Threads(Struct, frozen=True):
    """Points of host threads, those of a thread contiguous and in order, and the edges between them."""

    time_ns: IntArray
    track: IntArray
    call_start: IntArray  # Point of each call's start. Shape (calls,).
    call_end: IntArray
    cut: IntArray  # Point of each cut that was asked for. Shape (cuts,).
    edges: Edges


class Cuts(Struct, frozen=True):
    """Moments at which a thread's time is cut besides its calls. Arrays of shape (cuts,)."""

    time_ns: IntArray
    track: IntArray
    begins: npt.NDArray[np.bool_]  # Whether something begins at it, rather than ends.
    most_ns: IntArray  # What the thread needs at most for the time up to this cut, if it has nothing to wait for.


def threads(facts: Facts, found: Calls, own_ns: IntArray, cuts: Cuts) -> Threads:
    """Points at the calls' ends, where threads take turns, and at the cuts, with all host edges.
    `own_ns`: what each call takes when it has nothing to wait for."""
    main, taken = host_threads(facts).main, turns(facts)
    waited = taken.back_ns >= 0
    extra_ns = np.concatenate((taken.given_ns, taken.begin_ns, taken.end_ns, taken.back_ns[waited], cuts.time_ns))
    of_main = np.full(len(taken.track), main)
    extra_track = np.concatenate((of_main, taken.track, taken.track, of_main[waited], cuts.track))
    ends = np.stack((found.start_ns, found.end_ns), axis=1).ravel()
    time = np.concatenate((ends, extra_ns))
    track = np.concatenate((np.repeat(found.track, 2), extra_track))
    # Of one moment: what ends before it comes first, then calls, then what begins after it.
    phase = np.repeat([1, 2, 0, 2, 0], [len(ends), *[len(taken.track)] * 3, int(waited.sum())])
    order = np.lexsort((np.concatenate((phase, np.where(cuts.begins, 2, 0))), time, track))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    calls, turn = 2 * len(found.ids), len(taken.track)
    given, begin, end, back, cut = np.split(place[calls:], np.cumsum([turn, turn, turn, int(waited.sum())]))
    none = edges(EdgeKind.HOST, given[:0], given[:0])
    made = Threads(time[order], track[order], place[:calls:2], place[1:calls:2], cut, none)
    in_order = _in_order(made, found, own_ns, cuts.most_ns, _active(main, taken))
    to_other = taken.begin_ns - taken.given_ns
    ended_ns, back_ns = taken.end_ns[waited], taken.back_ns[waited]
    handed = edges(EdgeKind.HOST, given, begin, to_other, -1, main, taken.given_ns, taken.begin_ns)
    handed_back = edges(EdgeKind.HOST, end[waited], back, back_ns - ended_ns, -1, main, ended_ns, back_ns)
    return replace(made, edges=joined([in_order, handed, handed_back]))


def _active(main: int, taken: Turns) -> dict[int, Intervals | None]:
    """For each thread when its time is its own; None: always. The main thread's is not while it waits for a burst."""
    waited = taken.back_ns >= 0
    blocked = intervals.union(Intervals(taken.given_ns[waited], taken.back_ns[waited]))
    low, high = np.iinfo(np.int64).min // 4, np.iinfo(np.int64).max // 4
    found: dict[int, Intervals | None] = {main: intervals.gaps(blocked, low, high) if blocked.size else None}
    for track in np.unique(taken.track).tolist():
        mine = taken.track == track
        found[track] = intervals.union(Intervals(taken.begin_ns[mine], taken.end_ns[mine]))
    return found


def _in_order(
    made: Threads, found: Calls, own_ns: IntArray, most_ns: IntArray, active: dict[int, Intervals | None]
) -> Edges:
    """Edges from each point of a thread to its next; their time is capped by active time and by limits of calls."""
    source = np.flatnonzero(made.track[1:] == made.track[:-1])
    target = source + 1
    begin, end, track = made.time_ns[source], made.time_ns[target], made.track[source]
    takes = end - begin
    for one, times in active.items():
        if times is not None:
            mine = track == one
            takes[mine] = intervals.covered(Intervals(begin[mine], end[mine]), times)
    limit = np.full(len(made.time_ns), np.iinfo(np.int64).max, dtype=np.int64)
    limit[made.cut] = most_ns
    limit[made.call_end] = own_ns
    owner = np.full(len(made.time_ns), -1, dtype=np.int64)
    owner[made.call_end] = found.ids
    takes = np.minimum(takes, limit[target])
    return edges(EdgeKind.HOST, source, target, takes, owner[target], track, begin, begin + takes)


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
    made_ns: IntArray  # What making it takes: its duration; of a late batch of workers, the time since the one before.
    own_ns: IntArray  # What it takes the host if it has nothing to wait for.
    starved_after: IntArray  # Of a fetch that waited for workers that had no time to catch up, the one before; else -1.


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
    # Workers had no time to catch up if not too many batches were ready since the last one that was waited for.
    starved_after, late = np.full(len(waited), -1, dtype=np.int64), np.flatnonzero(waited)
    near = np.diff(late) <= MOST_WORKERS
    starved_after[late[1:][near]] = late[:-1][near]
    return Movable(
        ids=ids,
        start_ns=start,
        end_ns=start + lasted,
        track=spans["track"].to_numpy()[ids].astype(np.int64),
        row=np.concatenate((np.full(len(fetches), -1), rows)),
        made_ns=_made(start + lasted, lasted, starved_after),
        own_ns=np.where(starved_after >= 0, ready, lasted),
        starved_after=starved_after,
    )


def _made(end_ns: IntArray, lasted_ns: IntArray, starved_after: IntArray) -> IntArray:
    """ns to make each batch: its duration; after a batch that was waited for, up to the next, the mean time a batch."""
    waited = np.flatnonzero(starved_after >= 0)
    last = starved_after[waited]
    batches, made_ns = waited - last, lasted_ns.copy()
    made_ns[positions(last + 1, batches)] = np.repeat((end_ns[waited] - end_ns[last]) // batches, batches)
    return made_ns


def move_edges(
    moving: Movable, found: Calls, host: Threads, work_start: IntArray, work_end: IntArray, moved: IntArray
) -> list[Edges]:
    """A fetch that waited for workers ends when they deliver: as long after the one before as was seen.
    The other edges only an edit turns on: what is moved follows what was moved before it, and is waited for where it
    was; a copy is issued no earlier than the copy before it was, one batch ahead."""
    made, on_device = moving.made_ns, moving.row >= 0
    fetches = int((~on_device).sum())
    start = np.concatenate((host.cut[:fetches], work_start[moving.row[on_device]]))
    end = np.concatenate((host.cut[fetches : 2 * fetches], work_end[moving.row[on_device]]))
    first = np.zeros(len(moved), dtype=bool)
    first[[at for at in (0, fetches) if at < len(moved)]] = True
    later = np.flatnonzero(~first)
    late = np.flatnonzero(moving.starved_after >= 0)
    last = moving.starved_after[late]
    copied = later[on_device[later]]
    call = found.call_of_work[moving.row[copied - 1]]
    copied, call = copied[call >= 0], call[call >= 0]
    return [
        edges(EdgeKind.WAIT, end[last], end[late], moving.end_ns[late] - moving.end_ns[last], moving.ids[late]),
        edges(EdgeKind.TRACK, start[first], moved[first], made[first], moving.ids[first]),
        edges(EdgeKind.TRACK, moved[later - 1], moved[later], made[later], moving.ids[later]),
        edges(EdgeKind.DELIVERY, moved, end, 0, moving.ids),
        edges(EdgeKind.TRACK, host.call_start[call], moved[copied], made[copied], moving.ids[copied]),
    ]
