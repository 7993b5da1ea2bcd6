"""Device operations by stream, and host calls that the replay has to see: those that launch them or wait for them."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts
from diagnose.facts.core.device import LAUNCHING, device_work, lost_launches
from diagnose.facts.core.host import BLOCKING, api_calls
from diagnose.replay.graph import JITTER_NS, joined
from diagnose.trace import intervals
from diagnose.trace.enums import Direction, HostMemory, SyncKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import ApiKind

QUEUE_DEPTH = 1023  # Launches that fit into a stream's queue: on public V100 traces launches block at 1022 to 1023.
SEEN_DEPTH = 900  # From here on the deepest queue seen is the limit: 963 and 1014 were seen where streams share it.
BLOCKED_NS = 15_000  # A call of unknown target is taken to have waited only if it lasted longer than this.
STAGED_BYTES = 64 * 1024  # Pageable copies up to this are part of the call (CUDA API synchronisation behaviour).
SYNC_NS = 10_000  # What a wait costs the host where each one seen did wait: a sync takes 10 to 30 us there and back.

FREEING = (ApiKind.FREE, ApiKind.HOST_FREE)


class Stream(Struct, frozen=True):
    """One stream's operations. Positions are rows of `DeviceWork`; arrays of shape (operations,)."""

    track: int
    device: int
    stream: int
    work: IntArray  # In order of launch.
    launched_ns: IntArray  # Start of the launching call; where it is not known, of the work. Sorted.
    correlation: IntArray  # Of the launching call, sorted; -1 where it is not known.

    def last_launched(self, before_ns: IntArray) -> IntArray:
        """The last operation launched before each time, or -1. Shape of `before_ns`."""
        return self._at(np.searchsorted(self.launched_ns, before_ns, side="left") - 1)

    def last_ended(self, end_ns: IntArray, by_ns: IntArray, newest: IntArray) -> IntArray:
        """The last operation that ended by each time, launched no later than `newest` (rows or -1)."""
        ends = np.maximum.accumulate(end_ns[self.work])
        place = np.full(len(end_ns) + 1, -1, dtype=np.int64)
        place[self.work] = np.arange(len(self.work))
        return self._at(np.minimum(np.searchsorted(ends, by_ns, side="right") - 1, place[newest]))

    def last_correlated(self, before: IntArray) -> IntArray:
        """The last operation whose launch has a smaller correlation, or -1. Correlations are given in order of call."""
        return self._at(np.searchsorted(self.correlation, before, side="left") - 1)

    def first_correlated(self, after: IntArray) -> IntArray:
        """The first operation whose launch has a greater correlation, or -1."""
        at = np.searchsorted(self.correlation, after, side="right")
        return np.where(at < len(self.work), self._at(np.minimum(at, len(self.work) - 1)), -1)

    def _at(self, position: IntArray) -> IntArray:
        return np.where(position >= 0, self.work[np.maximum(position, 0)], -1)


def recorded_on(on: list[Stream], stream: IntArray, before: IntArray) -> IntArray:
    """The last operation on a stream of each number whose launch has a smaller correlation, or -1. Shape (events,).
    An event does not say on which device it was recorded: of several, on that which was given work last."""
    found, newest = np.full((2, len(stream)), -1, dtype=np.int64)
    for one in on:
        last = one.last_correlated(before)
        number = np.append(one.correlation, -1)[np.searchsorted(one.correlation, before, side="left") - 1]
        later = (stream == one.stream) & (last >= 0) & (number > newest)
        found, newest = np.where(later, last, found), np.where(later, number, newest)
    return found


def sync_devices(facts: Facts, syncs: IntArray) -> IntArray:
    """The device that waits, or is waited for, at each synchronisation; -1 if that was not recorded."""
    return np.asarray(facts.rank.tracks["device"].to_numpy()[facts.rank.spans["track"].to_numpy()[syncs]])


def streams(facts: Facts) -> list[Stream]:
    """All streams with device work."""
    work, rank = device_work(facts), facts.rank
    start = rank.spans["start_ns"].to_numpy()[work.launch]
    launched = np.where(work.launch >= 0, np.minimum(start, work.start_ns), work.start_ns)
    correlation = rank.spans["correlation"].to_numpy()[work.ids]
    device, stream = rank.tracks["device"].to_numpy(), rank.tracks["stream"].to_numpy()
    found = []
    for track in np.unique(work.track).tolist():
        rows = np.flatnonzero(work.track == track)
        rows = rows[np.lexsort((work.start_ns[rows], launched[rows]))]
        numbers = np.maximum.accumulate(correlation[rows])
        found.append(Stream(track, int(device[track]), int(stream[track]), rows, launched[rows], numbers))
    return found


class Calls(Struct, frozen=True):
    """Launching and waiting calls of the training threads, none in another, by (track, start); also of lost work."""

    ids: IntArray
    start_ns: IntArray
    end_ns: IntArray
    track: IntArray
    kind: npt.NDArray[np.int8]  # Position in `kinds.ApiKind`.
    name: IntArray  # Code of the span's name.
    blocks: npt.NDArray[np.bool_]
    call_of_work: IntArray  # Position of the call that launched each row of `DeviceWork`, or -1.

    def of(self, *api_kinds: ApiKind) -> npt.NDArray[np.bool_]:
        """Which calls are of one of these kinds."""
        return np.isin(self.kind, [list(ApiKind).index(kind) for kind in api_kinds])


def calls(facts: Facts) -> Calls:
    """The calls; of nested ones the outermost, which then launches what the inner ones launch."""
    api, work = api_calls(facts), device_work(facts)
    launching = np.isin(api.ids, np.append(work.launch, lost_launches(facts)))
    taken = np.flatnonzero(launching | api.blocks | api.of(*FREEING))
    parent = intervals.parents(api.track[taken], api.start_ns[taken], api.end_ns[taken])
    outermost = np.arange(len(taken))
    while (up := parent[outermost] >= 0).any():
        outermost[up] = parent[outermost[up]]
    kept = np.flatnonzero(parent < 0)
    kept = kept[np.lexsort((api.start_ns[taken[kept]], api.track[taken[kept]]))]
    place = np.full(len(taken), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    by_id = np.full(len(facts.rank.spans) + 1, -1, dtype=np.int64)
    by_id[api.ids[taken]] = place[outermost]
    rows = taken[kept]
    return Calls(
        ids=api.ids[rows],
        start_ns=api.start_ns[rows],
        end_ns=np.maximum(api.end_ns[rows], api.start_ns[rows]),
        track=api.track[rows],
        kind=api.kind[rows],
        name=facts.rank.spans["name"].cat.codes.to_numpy()[api.ids[rows]].astype(np.int64),
        blocks=api.blocks[rows],
        call_of_work=by_id[work.launch],
    )


class Pairs(Struct, frozen=True):
    """Dependencies of a call's end on a device operation's end, as positions. Arrays of shape (pairs,)."""

    call: IntArray
    work: IntArray


def pairs(call: IntArray, work: IntArray) -> Pairs:
    """Those pairs that have a device operation."""
    known = work >= 0
    return Pairs(call[known], work[known])


def waits(facts: Facts, found: Calls, on: list[Stream]) -> Pairs:
    """What each blocking call waits for: as recorded, by what it copies, else by when it returned."""
    work = device_work(facts)
    copying = np.flatnonzero(found.blocks[found.call_of_work] & (found.call_of_work >= 0))
    parts = [pairs(found.call_of_work[copying], copying)]
    recorded, shown = _recorded(facts, found, on)
    parts.append(recorded)
    syncing = found.of(*BLOCKING, *FREEING) & ~shown
    long_enough = found.end_ns - found.start_ns > BLOCKED_NS
    everything = syncing & (found.of(ApiKind.DEVICE_SYNC) | (found.of(*FREEING) & long_enough))
    one_stream = syncing & (found.of(ApiKind.STREAM_SYNC) | (found.of(ApiKind.EVENT_SYNC) & long_enough))
    asked = np.flatnonzero(everything | one_stream)
    latest, latest_end = np.full(len(asked), -1, dtype=np.int64), np.full(len(asked), -1, dtype=np.int64)
    for stream in on:
        last = stream.last_launched(found.start_ns[asked])
        event = found.of(ApiKind.EVENT_SYNC)[asked]
        last = np.where(event, stream.last_ended(work.end_ns, found.end_ns[asked] + JITTER_NS, last), last)
        end = np.where(last >= 0, work.end_ns[last], -1)
        fits = (last >= 0) & (end <= found.end_ns[asked] + JITTER_NS)
        later = fits & (end > latest_end)
        latest, latest_end = np.where(later, last, latest), np.where(later, end, latest_end)
        parts.append(pairs(asked[everything[asked]], np.where(fits, last, -1)[everything[asked]]))
    parts.append(pairs(asked[one_stream[asked]], latest[one_stream[asked]]))
    return joined(parts)


def _recorded(facts: Facts, found: Calls, on: list[Stream]) -> tuple[Pairs, npt.NDArray[np.bool_]]:
    """The pairs of calls and work that recorded synchronisations show, and a mask of the calls that they tell of."""
    rank = facts.rank
    rows = rank.syncs[rank.syncs["sync_kind"] != SyncKind.STREAM_WAIT_EVENT.value]
    shown = np.zeros(len(found.ids), dtype=bool)
    correlation = rank.spans["correlation"].to_numpy()
    order = np.argsort(correlation[found.ids], kind="stable")
    numbers = correlation[found.ids][order]
    wanted = correlation[rows.index.to_numpy()]
    at = np.minimum(np.searchsorted(numbers, wanted), max(len(order) - 1, 0))
    hit = (wanted > 0) & (numbers[at] == wanted) if len(order) else np.zeros(len(wanted), dtype=bool)
    call, wanted = order[at[hit]] if len(order) else at[hit], wanted[hit]
    kind, waited_stream, wait_on, wait_number = (
        rows[name].to_numpy()[hit] for name in ("sync_kind", "stream", "wait_on_stream", "wait_on_correlation")
    )
    shown[call] = True
    device = sync_devices(facts, rows.index.to_numpy())[hit]
    event = (kind == SyncKind.EVENT.value) & (wait_number > 0)
    parts = [pairs(call[event], recorded_on(on, wait_on[event], wait_number[event]))]
    for stream in on:
        whole = (kind == SyncKind.CONTEXT.value) | ((kind == SyncKind.STREAM.value) & (waited_stream == stream.stream))
        whole &= np.isin(device, (stream.device, -1))
        parts.append(pairs(call[whole], stream.last_correlated(wanted[whole])))
    return joined(parts), shown


def staging(facts: Facts, found: Calls, on: list[Stream]) -> tuple[Pairs, IntArray]:
    """Large copies from pageable memory to the device wait for the work before them on their stream, then take the host
    time. Returns the waits, and for each call the ns that staging takes it, -1 where it stages nothing."""
    copies, work = facts.rank.copies, device_work(facts)
    slow = copies[
        (copies["direction"] == Direction.H2D.value)
        & (copies["host_memory"] == HostMemory.PAGEABLE.value)
        & (copies["bytes"] > STAGED_BYTES)
    ]
    rows = np.searchsorted(work.ids, slow.index.to_numpy())
    call = found.call_of_work[rows]
    rows, call = rows[call >= 0], call[call >= 0]
    before = np.full(len(call), -1, dtype=np.int64)
    for stream in on:
        mine = work.track[rows] == stream.track
        before[mine] = stream.last_launched(found.start_ns[call[mine]])
    begun = np.where(before >= 0, work.end_ns[before], found.start_ns[call])
    begun[begun > found.end_ns[call]] = 0
    own = np.full(len(found.ids), -1, dtype=np.int64)
    own[call] = found.end_ns[call] - np.maximum(begun, found.start_ns[call])
    return pairs(call, before), own


def queued(facts: Facts, found: Calls, on: list[Stream]) -> tuple[Pairs, npt.NDArray[np.bool_]]:
    """Launches wait until the stream's queue has room (replay E8). Returns waits, and which calls met a full queue.
    Lost work is taken to have filled the queue of the launch before it, and to end with the work before it."""
    work, count = device_work(facts), len(found.ids)
    full, track = np.zeros(count, dtype=bool), np.full(count, -1, dtype=np.int64)
    track[found.call_of_work[found.call_of_work >= 0]] = work.track[found.call_of_work >= 0]
    lost = found.of(*LAUNCHING) & (track < 0)
    track_before = track[np.maximum.accumulate(np.where(track >= 0, np.arange(count), 0))]
    parts = [pairs(full.nonzero()[0], full.nonzero()[0])]
    for stream in on:
        launched = stream.work[found.call_of_work[stream.work] >= 0]
        call = found.call_of_work[launched]
        last = np.flatnonzero(np.concatenate((call[1:] != call[:-1], [True]))) if len(call) else call
        lost_here = np.flatnonzero(lost & (track_before == stream.track))
        call, final = np.append(call[last], lost_here), np.append(launched[last], np.full(len(lost_here), -1))
        in_order = np.argsort(found.start_ns[call], kind="stable")
        call, final = call[in_order], final[in_order]
        final = final[np.maximum.accumulate(np.where(final >= 0, np.arange(len(final)), 0))]
        ends = np.maximum.accumulate(np.where(final >= 0, work.end_ns[final], 0))
        depth = np.arange(len(call)) - np.searchsorted(ends, found.start_ns[call], side="right")
        deepest = int(depth.max(initial=0))
        limit = deepest if deepest >= SEEN_DEPTH else QUEUE_DEPTH
        if len(call) > limit:
            parts.append(pairs(call[limit:], final[:-limit]))
        full[call[depth >= limit - 2]] = True
    return joined(parts), full


def freeing(found: Calls, work_end_ns: IntArray, awaited: Pairs) -> IntArray:
    """What each call that frees memory does once nothing runs any more, in ns; -1 for other calls. Shape (calls,)."""
    idle = found.start_ns.copy()
    ends = np.minimum(work_end_ns[awaited.work], found.end_ns[awaited.call])
    np.maximum.at(idle, awaited.call, ends)
    return np.where(found.of(*FREEING), found.end_ns - idle, -1)


def own_times(
    found: Calls, work_end_ns: IntArray, awaited: Pairs, staged_ns: IntArray, full: npt.NDArray[np.bool_]
) -> IntArray:
    """How long each call takes the host when it has nothing to wait for, never more than it took. Shape (calls,)."""
    lasted = found.end_ns - found.start_ns
    waited = np.zeros(len(lasted), dtype=bool)
    waited[awaited.call[work_end_ns[awaited.work] > found.start_ns[awaited.call]]] = True
    waited |= full
    own = lasted.copy()
    for name in np.unique(found.name[waited]).tolist():
        same = found.name == name
        free = lasted[same & ~waited & (staged_ns < 0)]
        usual = int(np.quantile(free, 0.25)) if len(free) else SYNC_NS
        own[same & waited] = np.minimum(lasted[same & waited], usual)
    return np.where(staged_ns >= 0, staged_ns, own)
