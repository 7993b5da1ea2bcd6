"""What ranks do together: which call of one rank is which of another, on one clock, and who waits for whom.

Ranks come to the collectives of a group in one order, and so do the two sides of transfers: what is k-th on one is
k-th on the other. A collective of all is over when the last rank has come and the transfer is done: what a rank spends
in it before that is waiting, the rest is transfer. They leave it at the same moment, to some microseconds: by that the
ranks' clocks are set.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from diagnose.facts.communication.pipelines import paired, pipelines
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import BARRIERS, RECV, SEND, Calls, CollectiveSequence, Job, JoinPoint, Pipeline, ProcessGroup

MOST_UNSOUND_SHARE = 0.1
"""Of the time in a group's collectives: if for more of it ranks had left before others had come, they are not the same
ones. Spans of gloo end up to 3 ms too early where a machine is busy."""

ALIKE_NS = 5_000_000
"""Ranks of one group leave its collectives within this, where only threads tell groups apart (gloo, a busy machine)."""


def join(sequences: Sequence[CollectiveSequence]) -> Job | None:
    """The job that these ranks are. None if there are fewer than two, or no step that all of them use.

    Nor are steps of some the recorded window of others.
    """
    ordered = sorted(sequences, key=lambda sequence: sequence.rank)
    common = set.intersection(*(set(one.numbers) for one in ordered)) if ordered else set()
    numbers = _run(sorted(common))
    if len(ordered) < 2 or not numbers or len({one.window for one in ordered}) > 1:
        return None
    same = paired([cut(one, numbers) for one in ordered])
    laid = pipelines(same)
    groups, group_of = _groups(same, laid)
    calls = _collectives(same, groups, group_of)
    pairs = _transfers(same, laid)
    shift, error = offsets_ns(same, calls, pairs)
    moved = [_shifted(one, int(by)) for one, by in zip(same, shift, strict=True)]
    met = [*_met(moved, groups, calls, transfer=False), *_met(moved, groups, pairs, transfer=True)]
    return Job(tuple(moved), groups, tuple(group_of), tuple(met), tuple(laid), shift, error)


def _run(numbers: list[int]) -> tuple[int, ...]:
    best: list[int] = []
    run: list[int] = []
    for number in numbers:
        run = [*run, number] if run and number == run[-1] + 1 else [number]
        best = run if len(run) > len(best) else best
    return tuple(best)


def cut(one: CollectiveSequence, numbers: tuple[int, ...]) -> CollectiveSequence:
    """The sequence in these steps alone, which follow each other."""
    if one.numbers == numbers:
        return one
    first = one.numbers.index(numbers[0])
    bounds = one.bounds_ns[first : first + len(numbers) + 1]
    lane, calls = one.lane, one.calls
    inside = (lane.from_ns >= bounds[0]) & (lane.from_ns < bounds[-1])
    kept = (calls.begin_ns >= bounds[0]) & (calls.begin_ns < bounds[-1])
    known = (lane.call < 0) | kept[np.maximum(lane.call, 0)]
    place = np.cumsum(kept) - 1
    rows = np.flatnonzero(inside & known)
    parts = {name: getattr(lane, name)[rows] for name in lane.__struct_fields__}
    parts["call"] = np.where(parts["call"] >= 0, place[np.maximum(parts["call"], 0)], -1)
    held = {name: getattr(calls, name)[kept] for name in calls.__struct_fields__}
    before = np.maximum(held["after"], 0)
    held["after"] = np.where((held["after"] >= 0) & kept[before], place[before], -1)
    held["step"] = np.where(held["step"] >= 0, held["step"] - first, -1)
    return replace(
        one,
        numbers=numbers,
        bounds_ns=bounds,
        compute_ns=one.compute_ns[first : first + len(numbers)],
        calls=Calls(**held),
        lane=replace(lane, **parts),
    )


def _shifted(one: CollectiveSequence, by_ns: int) -> CollectiveSequence:
    if not by_ns:
        return one
    calls = replace(one.calls, begin_ns=one.calls.begin_ns - by_ns, end_ns=one.calls.end_ns - by_ns)
    lane = replace(one.lane, from_ns=one.lane.from_ns - by_ns, until_ns=one.lane.until_ns - by_ns)
    return replace(one, bounds_ns=one.bounds_ns - by_ns, calls=calls, lane=lane)


def _groups(
    sequences: Sequence[CollectiveSequence], laid: Sequence[Pipeline]
) -> tuple[tuple[ProcessGroup, ...], list[IntArray]]:
    found: dict[tuple[int, str | int], int] = {}
    groups: list[ProcessGroup] = []
    of_rank = []
    threads = _thread_groups(sequences, laid)
    numbers: dict[tuple[object, ...], int] = {}
    number_of: dict[int, int] = {}  # By identity: ranks share groups of thousands of ranks.
    for at, one in enumerate(sequences):
        place = np.full(len(one.groups) + 1, -1)
        seen: dict[int, int] = defaultdict(int)
        for k, group in enumerate(one.groups):
            told = threads.get((at, k)) if not group.name and not group.ranks else group
            if told is None:
                continue
            if id(told) not in number_of:
                number_of[id(told)] = numbers.setdefault((told.ranks or told.name, told.use), len(numbers))
            alike = number_of[id(told)]
            key = alike, told.name if threads else seen[alike]
            seen[alike] += 1
            if key not in found:
                found[key] = len(groups)
                groups.append(told)
            place[k] = found[key]
        of_rank.append(place[one.calls.group])
    return tuple(groups), of_rank


def _thread_groups(
    sequences: Sequence[CollectiveSequence], laid: Sequence[Pipeline]
) -> dict[tuple[int, int], ProcessGroup]:
    """Of groups that only their threads tell apart: those whose ranks leave their collectives together.

    By (position of the sequence, position in its groups). Groups of a pipeline's stages are taken last: they only send.
    """
    unnamed = [(at, k) for at, one in enumerate(sequences) for k, group in enumerate(one.groups) if not group.name]
    ends = {(at, k): _ends(sequences[at], k) for at, k in unnamed}
    position = {one.rank: at for at, one in enumerate(sequences)}
    everyone = ProcessGroup("", "", tuple(sequence.rank for sequence in sequences))
    known = {
        id(group): group for sequence in sequences for group in sequence.known_groups
    }  # To tell equal ones takes longer.
    told = dict.fromkeys(group for group in known.values() if len(group.ranks) > 1)
    stages = {one.ranks for one in laid}
    fits: list[tuple[bool, float, int, ProcessGroup, list[tuple[int, int]]]] = []
    for order, group in enumerate(told or [everyone]):
        for at, k in unnamed:
            if sequences[at].rank == group.ranks[0]:
                spread, members = _together(ends, (at, k), group, position)
                if spread <= ALIKE_NS:
                    fits.append((group.ranks in stages, spread, order, group, members))
    found: dict[tuple[int, int], ProcessGroup] = {}
    for _, _, _, group, members in sorted(fits, key=lambda fit: fit[:3]):
        if not any(member in found for member in members):
            found |= dict.fromkeys(members, group)
    return found


_Ends = dict[tuple[str, int, int], int]  # By operation, step and turn.


def _ends(one: CollectiveSequence, group: int) -> _Ends:
    mine = np.flatnonzero(one.calls.group == group)
    turns: dict[tuple[str, int], int] = defaultdict(int)
    found: _Ends = {}
    for row in mine.tolist():
        name, step = one.operations[int(one.calls.operation[row])], int(one.calls.step[row])
        found[name, step, turns[name, step]] = int(one.calls.end_ns[row])
        turns[name, step] += 1
    return found


def _together(
    ends: dict[tuple[int, int], _Ends], own: tuple[int, int], group: ProcessGroup, position: dict[int, int]
) -> tuple[float, list[tuple[int, int]]]:
    """How far apart (ns) ranks leave the same collectives if they are a group, and the threads' groups that do so."""
    worst, members = 0.0, [own]
    for rank in group.ranks[1:]:
        best, chosen = float("inf"), None
        for other in (key for key in ends if key[0] == position.get(rank)):
            both = ends[own].keys() & ends[other].keys()
            if 2 * len(both) > max(len(ends[other]), len(ends[own])):
                difference = np.array([ends[own][key] - ends[other][key] for key in both])
                apart = float(np.median(np.abs(difference - np.median(difference))))
                if apart < best:
                    best, chosen = apart, other
        if rank in position:
            worst = max(worst, best)
            members += [chosen] if chosen is not None else []
    return worst, members


Matched = list[tuple[int, list[tuple[int, int]]]]  # (group, (position of the sequence, call) of each that took part).


def _collectives(
    sequences: Sequence[CollectiveSequence], groups: Sequence[ProcessGroup], group_of: Sequence[IntArray]
) -> Matched:
    """Those that all recorded ranks of their group came to: at least two, and known to be all that were recorded."""
    together: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for at, one in enumerate(sequences):
        turns: dict[tuple[object, ...], int] = defaultdict(int)
        rising = _rising(one, group_of[at])
        columns = (one.calls.operation, group_of[at], one.calls.step, one.calls.sequence)
        for row, (operation, group, step, sequence) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            name = one.operations[operation]
            if not name.startswith(BARRIERS) or step < 0:
                continue
            place: tuple[object, ...] = (group, name, step)
            key = (group, sequence) if group in rising else (*place, turns[place])
            turns[place] += 1
            together[key].append((at, row))
    recorded = {one.rank for one in sequences}
    recorded_of = [len(recorded.intersection(group.ranks)) for group in groups]
    found: Matched = []
    for members in together.values():
        at, row = members[0]
        group = int(group_of[at][row])
        size = max(int(sequences[at].calls.members[row]), 0)
        known = recorded_of[group] if group >= 0 else 0
        wanted = known or (size if 0 < size < _world(sequences) else len(sequences))
        if len(members) == wanted > 1:
            found.append((group, members))
    return found


def _world(sequences: Sequence[CollectiveSequence]) -> int:
    return max(len(sequences), *(sequence.world_size for sequence in sequences))


def _rising(one: CollectiveSequence, group_of: IntArray) -> set[int]:
    """Groups whose numbers are recorded and rise with every collective (pytorch #192114 wrote wrong ones)."""
    found = set()
    for group in np.unique(group_of[group_of >= 0]).tolist():
        sequence = one.calls.sequence[group_of == group]
        if len(sequence) and (sequence >= 0).all() and (np.diff(sequence) > 0).all():
            found.add(group)
    return found


def _transfers(sequences: Sequence[CollectiveSequence], laid: Sequence[Pipeline]) -> Matched:
    """Sends with what receives them: of two ranks the k-th with the k-th."""
    position = {one.rank: at for at, one in enumerate(sequences)}
    sent: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    received: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for at, one in enumerate(sequences):
        peers = _peers(one, laid)
        for row in np.flatnonzero((peers >= 0) & (one.calls.step >= 0)).tolist():
            name, peer = one.operations[int(one.calls.operation[row])], position.get(int(peers[row]))
            if peer is None:
                continue
            if name == SEND:
                sent[at, peer].append((at, row))
            elif name == RECV:
                received[peer, at].append((at, row))
    found: Matched = []
    for pair, ours in sent.items():
        theirs = received.get(pair, [])
        if len(ours) == len(theirs):
            found += [(-1, [a, b]) for a, b in zip(ours, theirs, strict=True)]
    return found


def _peers(one: CollectiveSequence, laid: Sequence[Pipeline]) -> IntArray:
    """The other rank of each transfer, as recorded or by the pipeline; -1 unknown."""
    mine = next((pipeline for pipeline in laid if one.rank in pipeline.ranks), None)
    if mine is None:
        return one.calls.peer
    by_stage = mine.peers(one.rank, one.calls.stage, one.calls.toward)
    return np.where(one.calls.peer >= 0, one.calls.peer, by_stage)


def _met(
    sequences: Sequence[CollectiveSequence], groups: Sequence[ProcessGroup], matched: Matched, transfer: bool
) -> Iterable[JoinPoint]:
    """The join points, without those of a group whose ranks leave before others have come."""
    made: dict[int, list[JoinPoint]] = defaultdict(list)
    lasted, late = dict[int, int](), dict[int, int]()
    for group, members in matched:
        ranks, calls = (np.array(column, dtype=np.int64) for column in zip(*members, strict=True))
        begin = np.array([sequences[at].calls.begin_ns[row] for at, row in members])
        end = np.array([sequences[at].calls.end_ns[row] for at, row in members])
        first_out = int(end[1:].min()) if transfer else int(end.min())  # A send may be over before it is received.
        lasted[group] = lasted.get(group, 0) + int((end - begin).mean())
        late[group] = late.get(group, 0) + max(int(begin.max()) - first_out, 0)
        if transfer and sequences[int(ranks[0])].on_cpu:
            end[0] = min(end[0], end[1])  # It is seen to be over only when somebody asks.
        size = len(groups[group].ranks) if group >= 0 else 0
        size = size or max(int(sequences[int(ranks[0])].calls.members[calls[0]]), 0) or _world(sequences)
        made[group].append(JoinPoint(group, transfer, ranks, calls, begin, end, transfer or len(members) >= size))
    for group, some in made.items():
        if late[group] <= MOST_UNSOUND_SHARE * lasted[group]:
            yield from some


ROUNDS = 6  # Of moving each rank to the median of those it meets; two suffice where all meet (chosen).

CERTAIN = 3.0
"""Clocks that differ by less than so many times the spread of what tells are taken to be one (ranks of one host)."""


def offsets_ns(
    sequences: Sequence[CollectiveSequence],
    collectives: Sequence[tuple[int, list[tuple[int, int]]]],
    transfers: Sequence[tuple[int, list[tuple[int, int]]]],
) -> tuple[IntArray, int]:
    """By how much each rank's clock is ahead of the first rank's of its host, and how far ends still differ.

    Ranks that are known to share a clock are not moved. Those that only send to each other are placed in the middle of
    what is possible: nothing is received before it was sent.
    """
    apart = [
        (sequence.machine >= 0, sequence.machine if sequence.machine >= 0 else sequence.rank) for sequence in sequences
    ]
    hosts = {name: k for k, name in enumerate(dict.fromkeys(apart))}
    host = np.array([hosts[name] for name in apart])
    rows = [
        (at, k, int(sequences[at].calls.end_ns[row])) for k, (_, some) in enumerate(collectives) for at, row in some
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    ahead = np.zeros(len(hosts), dtype=np.int64)
    if len(hosts) > 1:
        ahead, part = _by_ends(host, table, len(hosts))
        ahead = _by_transfers(sequences, host, transfers, ahead, part)
    offsets: IntArray = ahead[host]
    return offsets, _left(table, offsets)


def _by_ends(host: IntArray, table: IntArray, hosts: int) -> tuple[IntArray, IntArray]:
    """Offsets by the ends of collectives, and which hosts these connect: those of one number. Shape (hosts,) each."""
    found, part = np.zeros(hosts, dtype=np.int64), np.full(hosts, -1, dtype=np.int64)
    at, join_point, end = table.T
    on = host[at]
    for start in range(hosts):
        if part[start] < 0:
            part[start] = start
            _spread_from(start, found, part, on, join_point, end)
    free = part != np.arange(hosts)
    for _ in range(ROUNDS if len(table) else 0):
        left = end - found[on]
        off = _halfway(on, left - _median_of(join_point, left)[join_point], hosts)
        found += np.where(free, np.trunc(off), 0).astype(np.int64)
    left = end - found[on]
    spread = _halfway(on, np.abs(left - _median_of(join_point, left)[join_point]), hosts)
    found = np.where(np.abs(found - found[part]) <= CERTAIN * spread, found[part], found)
    ahead: IntArray = found - found[part]
    return ahead, part


def _spread_from(
    start: int, found: IntArray, part: IntArray, on: IntArray, join_point: IntArray, end: IntArray
) -> None:
    """Places all hosts that are connected to one, by those placed before them: clocks may be seconds apart."""
    nowhere = np.iinfo(np.int64).min
    while True:
        known = part[on] == start
        first = np.full(int(join_point.max(initial=-1)) + 1, nowhere)
        first[join_point[known]] = (end - found[on])[known]
        rows = np.flatnonzero((part[on] < 0) & (first[join_point] > nowhere))
        if not len(rows):
            return
        new = np.unique(on[rows])
        found[new] = np.trunc(_halfway(on[rows], end[rows] - first[join_point[rows]], len(found)))[new].astype(np.int64)
        part[new] = start


def _halfway(group: IntArray, values: IntArray, groups: int) -> npt.NDArray[np.float64]:
    """The median of each group's values, the mean of two in the middle; 0 of none. Shape (groups,)."""
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    some = np.append(values[order], 0)
    low, high = (np.minimum(first + (count + odd) // 2, len(values)) for odd in (-1, 0))
    return np.where(count > 0, (some[np.maximum(low, first)] + some[high]) / 2, 0.0)


def _median_of(group: IntArray, values: IntArray) -> IntArray:
    """The (lower) median of each group's values, by group. Shape (groups,)."""
    order = np.lexsort((values, group))
    count = np.bincount(group)
    first = np.cumsum(count) - count
    found: IntArray = np.append(values[order], 0)[np.minimum(first + (count - 1) // 2, len(values))]
    return found


def _by_transfers(
    sequences: Sequence[CollectiveSequence],
    host: IntArray,
    transfers: Sequence[tuple[int, list[tuple[int, int]]]],
    ahead: IntArray,
    part: IntArray,
) -> IntArray:
    """Places hosts that no collective connects, by the middle of the bounds that transfers between them set."""
    found, placed = ahead.copy(), {int(part[0])}
    least: dict[tuple[int, int], int] = {}
    for _, ((sender, sent), (receiver, received)) in transfers:
        begin = int(sequences[sender].calls.begin_ns[sent]) - int(ahead[host[sender]])
        end = int(sequences[receiver].calls.end_ns[received]) - int(ahead[host[receiver]])
        pair = int(part[host[sender]]), int(part[host[receiver]])
        least[pair] = min(least.get(pair, end - begin), end - begin)
    while True:
        edge = next(((a, b) for a, b in least if a in placed and b not in placed and (b, a) in least), None)
        if edge is None:
            return found
        a, b = edge
        base = int(found[a] - ahead[a])
        most, lowest = least[a, b], -least[b, a]
        known = lowest <= 0 <= most  # Both may share a clock.
        found[part == b] += base if known else base + (most + lowest) // 2
        placed.add(b)


def _left(table: IntArray, offsets: IntArray) -> int:
    if not len(table):
        return 0
    at, join_point, end = table.T
    left = end - offsets[at]
    return int(np.median(np.abs(left - _median_of(join_point, left)[join_point])))
