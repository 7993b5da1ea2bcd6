"""Host threads as points and edges: what each thread spends between its calls, and how threads take turns."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts
from diagnose.facts.core.host import host_threads
from diagnose.replay.calls import Calls
from diagnose.replay.graph import EdgeKind, Edges, edges, joined
from diagnose.trace import enums, intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals

_ACTIVE_KINDS = (SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.RUNTIME, SpanKind.DRIVER, SpanKind.LOADER)


class Turns(Struct, frozen=True):
    """How threads other than the main one take turns with it. Arrays of shape (turns,)."""

    track: IntArray
    given_ns: IntArray  # When the main thread was last active before the other one began.
    begin_ns: IntArray
    end_ns: IntArray
    back_ns: IntArray  # When the main thread went on; -1 if it had not waited.


def turns(facts: Facts) -> Turns:
    """Bursts of activity of the other training threads (autograd), each between two of the main thread's.

    The main thread waited for a burst if it did nothing while the burst lasted (replay E2).
    """
    threads = host_threads(facts)
    mine = _activity(facts, threads.main)
    found: list[tuple[IntArray, ...]] = []
    for track in threads.training[threads.training != threads.main].tolist():
        busy = _activity(facts, track)
        begun = np.searchsorted(mine.starts, busy.starts, side="right")
        opens = np.concatenate(([True], begun[1:] > begun[:-1]))[: busy.size]
        closes = np.concatenate((opens[1:], [True]))[: busy.size]
        begin, end, next_main = busy.starts[opens], busy.ends[closes], begun[opens]
        before = np.where(next_main > 0, mine.ends[next_main - 1] if mine.size else 0, begin)
        idle = (before <= begin) & (np.searchsorted(mine.starts, end, side="left") == next_main)
        goes_on = idle & (next_main < mine.size)
        back = np.where(goes_on, mine.starts[np.minimum(next_main, mine.size - 1)] if mine.size else -1, -1)
        found.append((np.full(len(begin), track), np.minimum(before, begin), begin, end, back))
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return Turns(none, none, none, none, none)
    return Turns(*(np.concatenate(column).astype(np.int64) for column in zip(*found, strict=True)))


def _activity(facts: Facts, track: int) -> Intervals:
    spans = facts.rank.spans
    kind = spans["kind"].cat.codes.to_numpy()
    rows = np.isin(kind, [enums.code(active_kind) for active_kind in _ACTIVE_KINDS]) & (
        spans["track"].to_numpy() == track
    )
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

    `own_ns`: what each call takes when it has nothing to wait for.
    """
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
    made = Threads(
        time[order], track[order], place[:calls:2], place[1:calls:2], cut, edges(EdgeKind.HOST, given[:0], given[:0])
    )
    in_order = _in_order(made, found, own_ns, cuts.most_ns, _active(main, taken))
    handed = [
        edges(EdgeKind.HOST, given, begin, taken.begin_ns - taken.given_ns, -1, main, taken.given_ns, taken.begin_ns),
        edges(
            EdgeKind.HOST,
            end[waited],
            back,
            (taken.back_ns - taken.end_ns)[waited],
            -1,
            main,
            taken.end_ns[waited],
            taken.back_ns[waited],
        ),
    ]
    return Threads(made.time_ns, made.track, made.call_start, made.call_end, made.cut, joined([in_order, *handed]))


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
