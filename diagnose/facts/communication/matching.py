"""What ranks do together: which call of one rank is which of another, on one clock, and who waits for whom.

Ranks come to the collectives of a group in one order, and so do the two sides of transfers: what is k-th on one is
k-th on the other. A collective of all is over when the last rank has come and the transfer is done: what a rank spends
in it before that is waiting, the rest is transfer. They leave it at the same moment, to some microseconds: by that the
ranks' clocks are set.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from diagnose.facts.communication.pipelines import paired, pipelines
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import BARRIERS, RECV, SEND, Calls, CollectiveSequence, Job, JoinPoint, Pipeline, ProcessGroup

MOST_UNSOUND_SHARE = 0.1
"""Share of the time in a group's collectives for which ranks may have left before others came: beyond that, different
calls were matched. Spans of gloo end up to 3 ms too early where a machine is busy."""
ALIKE_NS = 5_000_000  # Within this, ranks leave collectives of a group that only threads tell apart (gloo).

Sequences = Sequence[CollectiveSequence]
Pipelines = Sequence[Pipeline]
Matched = list[tuple[int, list[tuple[int, int]]]]  # (group, (position of the sequence, call) of each that took part).


def join(sequences: Sequences) -> Job | None:
    """The job of these ranks; None if they are fewer than two, have no common step, or only some have marked steps."""
    ordered = sorted(sequences, key=lambda sequence: sequence.rank)
    if len(ordered) < 2 or len({one.window for one in ordered}) > 1:
        return None
    common = np.array(sorted(set.intersection(*(set(one.numbers) for one in ordered))), dtype=np.int64)
    runs = np.split(common, np.flatnonzero(np.diff(common) > 1) + 1)
    numbers = tuple(max(runs, key=len).tolist())
    if not numbers:
        return None
    same = paired([cut(one, numbers) for one in ordered])
    stages = pipelines(same)
    groups, group_of = _groups(same, stages)
    calls = _collectives(same, groups, group_of)
    pairs = _transfers(same, stages)
    shift, error = _offsets_ns(same, calls, pairs)
    moved = [_shifted(one, int(by)) for one, by in zip(same, shift, strict=True)]
    met = [*_join_points(moved, groups, calls, transfer=False), *_join_points(moved, groups, pairs, transfer=True)]
    return Job(tuple(moved), groups, tuple(group_of), tuple(met), tuple(stages), shift, error)


def cut(one: CollectiveSequence, numbers: tuple[int, ...]) -> CollectiveSequence:
    """The sequence in these steps alone, which follow each other."""
    if one.numbers == numbers:
        return one
    first = one.numbers.index(numbers[0])
    bounds = one.bounds_ns[first : first + len(numbers) + 1]
    lane, calls = one.lane, one.calls
    inside = (lane.from_ns >= bounds[0]) & (lane.from_ns < bounds[-1])
    kept = (calls.begin_ns >= bounds[0]) & (calls.begin_ns < bounds[-1])
    place = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)  # Of each call its position among those kept, or -1.
    rows = np.flatnonzero(inside & ((lane.call < 0) | (place[lane.call] >= 0)))
    of_lane = {name: getattr(lane, name)[rows] for name in lane.__struct_fields__}
    of_calls = {name: getattr(calls, name)[kept] for name in calls.__struct_fields__}
    of_calls["after"] = place[of_calls["after"]]
    of_calls["step"] = np.where(of_calls["step"] >= 0, of_calls["step"] - first, -1)
    return replace(
        one,
        numbers=numbers,
        bounds_ns=bounds,
        compute_ns=one.compute_ns[first : first + len(numbers)],
        calls=Calls(**of_calls),
        lane=replace(lane, **of_lane | {"call": place[of_lane["call"]]}),
    )


def _shifted(sequence: CollectiveSequence, by_ns: int) -> CollectiveSequence:
    """The sequence with all times earlier by so much."""
    if not by_ns:
        return sequence
    calls = replace(sequence.calls, begin_ns=sequence.calls.begin_ns - by_ns, end_ns=sequence.calls.end_ns - by_ns)
    lane = replace(sequence.lane, from_ns=sequence.lane.from_ns - by_ns, until_ns=sequence.lane.until_ns - by_ns)
    return replace(sequence, bounds_ns=sequence.bounds_ns - by_ns, calls=calls, lane=lane)


def _groups(sequences: Sequences, pipelines: Pipelines) -> tuple[tuple[ProcessGroup, ...], list[IntArray]]:
    """The job's process groups, and by rank the position of each call's group in these; -1 if unknown."""
    found: dict[tuple[int, str | int], int] = {}
    groups: list[ProcessGroup] = []
    of_rank = []
    threads = _thread_groups(sequences, pipelines)
    numbers: dict[tuple[object, ...], int] = {}
    number_of: dict[int, int] = {}  # By identity: ranks share groups of thousands of ranks.
    for rank, sequence in enumerate(sequences):
        group_number = np.full(len(sequence.groups) + 1, -1)
        repeats: dict[int, int] = defaultdict(int)
        for k, group in enumerate(sequence.groups):
            known = threads.get((rank, k)) if not group.name and not group.ranks else group
            if known is None:
                continue
            if id(known) not in number_of:
                number_of[id(known)] = numbers.setdefault((known.ranks or known.name, known.use), len(numbers))
            same_ranks = number_of[id(known)]
            key = same_ranks, known.name if threads else repeats[same_ranks]
            repeats[same_ranks] += 1
            group_number[k] = found.setdefault(key, len(found))
            if len(found) > len(groups):
                groups.append(known)
        of_rank.append(group_number[sequence.calls.group])
    return tuple(groups), of_rank


def _thread_groups(sequences: Sequences, pipelines: Pipelines) -> dict[tuple[int, int], ProcessGroup]:
    """The process groups behind groups that only threads tell apart: of those whose ranks leave collectives together.

    By (position of the sequence, position in its groups). Groups of a pipeline's stages are taken last: they only send.
    """
    unnamed = [(at, k) for at, one in enumerate(sequences) for k, group in enumerate(one.groups) if not group.name]
    ends = {(at, k): _call_ends(sequences[at], k) for at, k in unnamed}
    position = {one.rank: at for at, one in enumerate(sequences)}
    everyone = ProcessGroup("", "", tuple(sequence.rank for sequence in sequences))
    known = {id(group): group for one in sequences for group in one.known_groups}  # To tell equal ones takes longer.
    groups = dict.fromkeys(group for group in known.values() if len(group.ranks) > 1) or [everyone]
    stages = {one.ranks for one in pipelines}
    fits: list[tuple[bool, float, ProcessGroup, list[tuple[int, int]]]] = []
    for group in groups:
        for at, k in unnamed:
            if sequences[at].rank == group.ranks[0]:
                spread, members = _together(ends, (at, k), group, position)
                if spread <= ALIKE_NS:
                    fits.append((group.ranks in stages, spread, group, members))
    found: dict[tuple[int, int], ProcessGroup] = {}
    for _, _, group, members in sorted(fits, key=lambda fit: fit[:2]):
        if found.keys().isdisjoint(members):
            found |= dict.fromkeys(members, group)
    return found


_Ends = dict[tuple[str, int, int], int]  # When calls ended, by operation, step and number within these.


def _call_ends(sequence: CollectiveSequence, group: int) -> _Ends:
    """The ends of a rank's calls in one of its groups."""
    repeats: dict[tuple[str, int], int] = defaultdict(int)
    end_of: _Ends = {}
    for row in np.flatnonzero(sequence.calls.group == group).tolist():
        name, step = sequence.operations[int(sequence.calls.operation[row])], int(sequence.calls.step[row])
        end_of[name, step, repeats[name, step]] = int(sequence.calls.end_ns[row])
        repeats[name, step] += 1
    return end_of


def _together(
    ends: dict[tuple[int, int], _Ends], own: tuple[int, int], group: ProcessGroup, position: dict[int, int]
) -> tuple[float, list[tuple[int, int]]]:
    """(ns by which ranks differ in leaving calls, their (sequence, group) keys) of the best match for this group."""
    worst_ns, members = 0.0, [own]
    for rank in group.ranks[1:]:
        if rank in position:
            others = ((_median_spread_ns(ends[own], ends[key]), key) for key in ends if key[0] == position[rank])
            spread_ns, best = min(others, default=(inf, own))
            worst_ns, members = max(worst_ns, spread_ns), [*members, best]
    return worst_ns, members


def _median_spread_ns(first: _Ends, second: _Ends) -> float:
    """Median distance of ends from a constant offset of clocks; infinite if at most half of the calls are shared."""
    shared = first.keys() & second.keys()
    if 2 * len(shared) <= max(len(first), len(second)):
        return inf
    difference = np.array([first[key] - second[key] for key in shared])
    return float(np.median(np.abs(difference - np.median(difference))))


def _collectives(sequences: Sequences, groups: Sequence[ProcessGroup], group_of: Sequence[IntArray]) -> Matched:
    """Those that all recorded ranks of their group, two at least, came to: by recorded number, else by order."""
    together: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for at, one in enumerate(sequences):
        turns: dict[tuple[object, ...], int] = defaultdict(int)
        rising = _rising(one, group_of[at])
        columns = (one.calls.operation, group_of[at], one.calls.step, one.calls.sequence)
        for row, (operation, group, step, sequence) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            place: tuple[object, ...] = (group, one.operations[operation], step)
            if step >= 0 and one.operations[operation].startswith(BARRIERS):
                together[(group, sequence) if group in rising else (*place, turns[place])].append((at, row))
                turns[place] += 1
    recorded = {one.rank for one in sequences}
    recorded_of = [*(len(recorded.intersection(group.ranks)) for group in groups), 0]
    found: Matched = []
    for members in together.values():
        at, row = members[0]
        group, size = int(group_of[at][row]), int(sequences[at].calls.members[row])
        wanted = recorded_of[group] or (size if 0 < size < _world(sequences) else len(sequences))
        if len(members) == wanted > 1:
            found.append((group, members))
    return found


def _world(sequences: Sequences) -> int:
    return max(len(sequences), *(sequence.world_size for sequence in sequences))


def _rising(one: CollectiveSequence, group_of: IntArray) -> set[int]:
    """Groups whose numbers are recorded and rise with every collective (pytorch #192114 wrote wrong ones)."""
    numbers = {group: one.calls.sequence[group_of == group] for group in np.unique(group_of[group_of >= 0]).tolist()}
    return {group for group, some in numbers.items() if some[0] >= 0 and (np.diff(some) > 0).all()}


def _transfers(sequences: Sequences, pipelines: Pipelines) -> Matched:
    """Sends with their recvs: from one rank to another the k-th with the k-th; none where there are not as many."""
    position = {one.rank: at for at, one in enumerate(sequences)}
    ranks, pipeline_of = list(position), {rank: pipeline for pipeline in pipelines for rank in pipeline.ranks}
    calls: dict[tuple[str, int, int], list[tuple[int, int]]] = defaultdict(list)  # By what is done, from and to.
    for at, one in enumerate(sequences):
        peers, pipeline = one.calls.peer, pipeline_of.get(one.rank)
        if pipeline is not None:
            peers = np.where(peers >= 0, peers, pipeline.peers(one.rank, one.calls.stage, one.calls.toward))
        for row in np.flatnonzero(np.isin(peers, ranks) & (one.calls.step >= 0)).tolist():
            name, peer = one.operations[int(one.calls.operation[row])], position[int(peers[row])]
            calls[(name, peer, at) if name == RECV else (name, at, peer)].append((at, row))
    found: Matched = []
    for (name, source, target), sent in calls.items():
        received = calls.get((RECV, source, target), []) if name == SEND else []
        if len(sent) == len(received):
            found += [(-1, list(pair)) for pair in zip(sent, received, strict=True)]
    return found


def _join_points(
    sequences: Sequences, groups: Sequence[ProcessGroup], matched: Matched, transfer: bool
) -> Iterable[JoinPoint]:
    """The join points, without those of a group (or all transfers) whose ranks often leave before others have come."""
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
CERTAIN = 3.0  # Clocks that differ by less than so many times the spread of what tells are taken to be one.


def _offsets_ns(sequences: Sequences, collectives: Matched, transfers: Matched) -> tuple[IntArray, int]:
    """ns by which each rank's clock is ahead of the first host connected with its own, and by which ends still differ.

    Ranks of one machine share a clock. Hosts that only send to each other are placed in the middle of what is possible:
    nothing is received before it was sent.
    """
    hosts: dict[tuple[bool, int], int] = {}
    machines = [(one.machine >= 0, one.machine if one.machine >= 0 else one.rank) for one in sequences]
    host = np.array([hosts.setdefault(name, len(hosts)) for name in machines])
    rows = [(at, k, sequences[at].calls.end_ns[row]) for k, (_, some) in enumerate(collectives) for at, row in some]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    ahead = np.zeros(len(hosts), dtype=np.int64)
    if len(hosts) > 1:
        ahead, part = _by_ends(host, table, len(hosts))
        ahead = _by_transfers(sequences, host, transfers, ahead, part)
    offsets: IntArray = ahead[host]
    at, join_point, end = table.T
    return offsets, int(np.median(np.abs(_from_median(join_point, end - offsets[at])))) if len(table) else 0


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
        off = _median(on, _from_median(join_point, end - found[on]), hosts)
        found += np.where(free, np.trunc(off), 0).astype(np.int64)
    spread = _median(on, np.abs(_from_median(join_point, end - found[on])), hosts)
    found = np.where(np.abs(found - found[part]) <= CERTAIN * spread, found[part], found)
    ahead: IntArray = found - found[part]
    return ahead, part


def _spread_from(
    start: int, found: IntArray, part: IntArray, on: IntArray, join_point: IntArray, end: IntArray
) -> None:
    """Places in `found` and `part` all hosts that collectives connect with `start`, by hosts placed before them."""
    nowhere = np.iinfo(np.int64).min
    while True:
        known = part[on] == start
        first = np.full(int(join_point.max(initial=-1)) + 1, nowhere)
        first[join_point[known]] = (end - found[on])[known]
        rows = np.flatnonzero((part[on] < 0) & (first[join_point] > nowhere))
        if not len(rows):
            return
        new = np.unique(on[rows])
        found[new] = np.trunc(_median(on[rows], end[rows] - first[join_point[rows]], len(found)))[new].astype(np.int64)
        part[new] = start


def _middle(group: IntArray, values: IntArray, groups: int) -> tuple[IntArray, IntArray]:
    """The lower and the upper one of the two in the middle of each group's values; 0 of none. Shape (groups,) each."""
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    ordered = np.append(values[np.lexsort((values, group))], 0)
    low, high = (ordered[np.where(count > 0, first + (count + odd) // 2, len(values))] for odd in (-1, 0))
    return low, high


def _median(group: IntArray, values: IntArray, groups: int) -> npt.NDArray[np.float64]:
    low, high = _middle(group, values, groups)
    return (low + high) / 2


def _from_median(join_point: IntArray, end_ns: IntArray) -> IntArray:
    """How far each end is from the (lower) median of those of its join point."""
    return end_ns - _middle(join_point, end_ns, 0)[0][join_point]


def _by_transfers(
    sequences: Sequences, host: IntArray, transfers: Matched, ahead: IntArray, part: IntArray
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
        most, lowest = least[a, b], -least[b, a]
        apart = 0 if lowest <= 0 <= most else (most + lowest) // 2  # Both may share a clock.
        found[part == b] += int(found[a] - ahead[a]) + apart
        placed.add(b)
