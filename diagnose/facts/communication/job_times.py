"""How do the ranks of a job spend its steps, for whom do they wait, and in which groups?

A rank's step is its own time, of which it computes, and time in which it is held up by a collective or transfer: until
the last rank has come it waits, after that it transfers. What a rank waits is charged to the one that came last.
"""

from collections.abc import Iterator
from enum import Enum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.spans import members
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.job import BARRIERS, RECV, SEND, CollectiveSequence, Job


class WhyUnmatched(str, Enum):
    """Why it is not known for whom a rank waits in a call."""

    NOT_RECORDED = "not_recorded"  # Ranks of its group have no recording.
    ROOTED = "rooted"  # A broadcast and the like, of which one side need not wait.
    OTHER_SIDE_UNKNOWN = "other_side_unknown"  # A transfer, and the recording does not say from or to whom.
    DIFFERENT = "different"
    """The ranks' recordings have different calls, or show a rank leaving before another has come."""


class Calls(Struct, frozen=True):
    """The calls of all ranks in the steps, one after the other. Arrays of shape (calls,)."""

    rank: IntArray  # Position of the sequence.
    call: IntArray  # Position in its calls.
    join_point: IntArray  # Position in `Job.join_points`; -1 unmatched.
    last_ns: IntArray  # When the last rank came.
    awaited: IntArray  # Position of the sequence that came last.
    wait_ns: IntArray  # For how long the rank is held up before that.
    transfer_ns: IntArray  # For how long it is held up after that. Of what is unmatched, all.
    whole: npt.NDArray[np.bool_]
    """Matched, with all ranks that took part: the others may wait for ranks without a recording after that."""


class JobTimes(Struct, frozen=True):
    """Where the time of ranks goes. Arrays of shape (ranks, steps) but for `caused_ns`."""

    compute_ns: IntArray
    host_ns: IntArray  # By itself, without computing.
    wait_ns: IntArray
    transfer_ns: IntArray
    unmatched_ns: IntArray  # Held up by calls whose other ranks are not known: waiting or transfer.
    caused_ns: IntArray
    """What others waited for this rank in all steps: while it computed, was on the host, or was held up itself.

    Shape (ranks, 3). Between two calls a rank is taken to compute evenly.
    """
    calls: Calls


def job_times(job: Job) -> JobTimes:
    """The times of a job's ranks. On each rank and in each step they add up to the step."""
    calls, first = _calls(job)
    rows = [_rank(one, calls, first[at]) for at, one in enumerate(job.sequences)]
    compute = np.stack([sequence.compute_ns for sequence in job.sequences])
    wait, transfer, unmatched = (np.stack(part) for part in zip(*(row.by_step for row in rows), strict=True))
    whole = np.stack([np.diff(sequence.bounds_ns) for sequence in job.sequences])
    return JobTimes(
        compute_ns=compute,
        host_ns=whole - compute - wait - transfer - unmatched,
        wait_ns=wait,
        transfer_ns=transfer,
        unmatched_ns=unmatched,
        caused_ns=_caused(job, rows),
        calls=calls,
    )


def _calls(job: Job) -> tuple[Calls, IntArray]:
    counts = [len(sequence.calls.ids) for sequence in job.sequences]
    first = np.concatenate(([0], np.cumsum(counts)))
    join_point, last, awaited = (np.full(first[-1], -1, dtype=np.int64) for _ in range(3))
    whole = np.zeros(first[-1], dtype=bool)
    for number, met in enumerate(job.join_points):
        at = first[met.ranks] + met.calls
        join_point[at], last[at], awaited[at] = number, met.last_ns, met.ranks[met.arrived_ns.argmax()]
        whole[at] = met.whole
    rank = np.repeat(np.arange(len(counts)), counts)
    none = np.zeros(first[-1], dtype=np.int64)
    call = np.arange(first[-1]) - first[rank]
    return Calls(rank, call, join_point, last, awaited, none, none.copy(), whole), first


class _Waits(Struct, frozen=True):
    """Of one rank: its waiting, waits with whom they are for, and times by step (waiting, transfer, unmatched)."""

    from_ns: IntArray
    until_ns: IntArray
    awaited: IntArray
    by_step: tuple[IntArray, IntArray, IntArray]


def _rank(one: CollectiveSequence, calls: Calls, first: int) -> _Waits:
    lane, rows = one.lane, np.flatnonzero(one.lane.waits)
    at = first + lane.call[rows]
    begin, end, matched = lane.from_ns[rows], lane.until_ns[rows], calls.join_point[at] >= 0
    come = np.where(matched, np.clip(calls.last_ns[at], begin, end), begin)
    np.add.at(calls.wait_ns, at, come - begin)
    np.add.at(calls.transfer_ns, at, end - come)
    every = Intervals(one.bounds_ns[:-1], one.bounds_ns[1:])
    whole = calls.whole[at]
    parts = ((begin, come), (come[whole], end[whole]), (come[~whole], end[~whole]))
    wait, transfer, unmatched = (intervals.covered(every, intervals.union(Intervals(*part))) for part in parts)
    return _Waits(begin, come, calls.awaited[at], (wait, transfer, unmatched))


def _caused(job: Job, waits: list[_Waits]) -> IntArray:
    begin, end, whom = (
        np.concatenate([getattr(wait, name) for wait in waits]) for name in ("from_ns", "until_ns", "awaited")
    )
    found = np.zeros((len(job.sequences), 3), dtype=np.int64)
    late = np.flatnonzero((end > begin) & (whom >= 0))
    for at, (one, rows) in enumerate(zip(job.sequences, members(whom[late], len(job.sequences)), strict=True)):
        mine = late[rows]
        if not len(mine):
            continue
        moments, compute, own = _progress(one)
        computed, by_itself = (
            np.interp(end[mine], moments, done) - np.interp(begin[mine], moments, done) for done in (compute, own)
        )
        whole, part = int((end - begin)[mine].sum()), round(float(computed.sum()))
        host = round(float((by_itself - computed).sum()))
        found[at] = part, host, max(whole - part - host, 0)
    return found


def _progress(one: CollectiveSequence) -> tuple[IntArray, IntArray, IntArray]:
    """At which moments a rank has computed for how long, and been by itself for how long."""
    held = np.stack((one.lane.from_ns, one.lane.until_ns), axis=1).ravel()
    moments = np.maximum.accumulate(np.concatenate((one.bounds_ns[:1], held, one.bounds_ns[-1:])))
    own, compute = (np.cumsum(part) for part in stretches_ns(one))
    done = [np.concatenate(([0], np.repeat(part[:-1], 2), part[-1:])) for part in (compute, own)]
    return moments, done[0], done[1]


class GroupTimes(Struct, frozen=True):
    """One operation in one process group, or what one rank sends to another. Times are of all steps."""

    group: int  # Position in `Job.groups`; -1: its ranks are all, or it is a transfer.
    transfer: bool
    operation: str  # "send" of transfers.
    ranks: tuple[int, ...]  # Of a transfer: from, to.
    calls: int  # Of one rank.
    bytes: int | None  # Of one rank; None if not known of every call.
    ns: int  # In calls, hidden or not: mean of the ranks, as below. Of a transfer the sum of both sides.
    wait_ns: int  # Held up until the last rank had come.
    transfer_ns: int  # Held up after that.
    bandwidth: float | None
    """Bytes over the time from when the last rank came to the end, hidden or not, per second; None if not known."""


class Unmatched(Struct, frozen=True):
    """Calls of which it is not known who waits for whom, in all steps."""

    why: WhyUnmatched
    operation: str
    ranks: tuple[int, ...]  # Whose calls they are.
    missing: tuple[int, ...]  # Ranks of their groups that are not recorded, as far as known.
    calls: int  # Of all ranks.
    held_ns: int  # For how long they hold these ranks up, together: waiting, transfer, or both.


def group_times(job: Job, times: JobTimes) -> list[GroupTimes]:
    """The groups with what meets in them, longest held up first."""
    calls = times.calls
    rows = np.flatnonzero(calls.whole)
    if not len(rows):
        return []
    number: dict[tuple[int, bool, str, tuple[int, ...]], int] = {}
    of_join_point = np.zeros(len(job.join_points), dtype=np.int64)
    for at, one in enumerate(job.join_points):
        if not one.whole:
            continue
        who = tuple(job.sequences[rank].rank for rank in one.ranks.tolist())
        sequence = job.sequences[int(one.ranks[0])]
        operation = sequence.operations[int(sequence.calls.operation[one.calls[0]])]
        known = job.groups[one.group].ranks if one.group >= 0 else ()
        key = (one.group, one.transfer, operation, who if one.transfer else known or tuple(sorted(who)))
        of_join_point[at] = number.setdefault(key, len(number))
    names = list(number)
    place = of_join_point[calls.join_point[rows]]
    columns = [np.array([one.calls.bytes, one.calls.end_ns - one.calls.begin_ns]) for one in job.sequences]
    size, lasted = (column[rows] for column in np.concatenate(columns, axis=1))
    moved = np.concatenate([one.calls.end_ns for one in job.sequences])[rows] - calls.last_ns[rows]

    def total(values: IntArray) -> IntArray:
        return np.rint(np.bincount(place, weights=values, minlength=len(names))).astype(np.int64)

    unknown = total((size < 0).astype(np.int64)) > 0
    sums = [total(one) for one in (np.ones_like(size), size, lasted, calls.wait_ns[rows], calls.transfer_ns[rows])]
    after = total(np.maximum(moved, 0))
    found = []
    for at, (group, transfer, operation, ranks) in enumerate(names):
        count, carried, ns, wait, held = (int(one[at]) for one in sums)
        rate = carried / int(after[at]) * 1e9 if not unknown[at] and after[at] and carried else None
        members = max(len(ranks), 1)
        of = 1 if transfer else members
        found.append(
            GroupTimes(
                group=group,
                transfer=transfer,
                operation=operation,
                ranks=ranks,
                calls=count // members,
                bytes=None if unknown[at] else carried // members,
                ns=ns // of,
                wait_ns=wait // of,
                transfer_ns=held // of,
                bandwidth=rate,
            )
        )
    return sorted(found, key=lambda one: -(one.wait_ns + one.transfer_ns))


def unmatched(job: Job, times: JobTimes) -> list[Unmatched]:
    """What could not be matched, longest first."""
    found: dict[tuple[WhyUnmatched, str], list[tuple[int, tuple[int, ...], int]]] = {}
    for at, (why, operation, missing, held) in _unmatched(job, times):
        found.setdefault((why, operation), []).append((at, missing, held))
    made = [
        Unmatched(
            why,
            operation,
            tuple(sorted({job.sequences[at].rank for at, _, _ in some})),
            tuple(sorted({rank for _, missing, _ in some for rank in missing})),
            len(some),
            sum(held for _, _, held in some),
        )
        for (why, operation), some in found.items()
    ]
    return sorted(made, key=lambda one: -one.held_ns)


def _unmatched(job: Job, times: JobTimes) -> Iterator[tuple[int, tuple[WhyUnmatched, str, tuple[int, ...], int]]]:
    calls, recorded = times.calls, set(job.ranks)
    world = max(len(job.sequences), *(one.world_size for one in job.sequences))
    for row in np.flatnonzero(~calls.whole).tolist():
        at, call = int(calls.rank[row]), int(calls.call[row])
        sequence = job.sequences[at]
        if sequence.calls.step[call] < 0:
            continue
        operation = sequence.operations[int(sequence.calls.operation[call])]
        group, peer = int(job.group_of[at][call]), int(sequence.calls.peer[call])
        ranks = job.groups[group].ranks if group >= 0 else ()
        missing = tuple(rank for rank in ranks if rank not in recorded)
        members = len(ranks) or max(int(sequence.calls.members[call]), 0) or world
        if operation in (SEND, RECV):
            why = WhyUnmatched.OTHER_SIDE_UNKNOWN if peer < 0 else WhyUnmatched.DIFFERENT
            if peer >= 0 and peer not in recorded:
                why, missing = WhyUnmatched.NOT_RECORDED, (peer,)
        elif not operation.startswith(BARRIERS):
            why = WhyUnmatched.ROOTED
        else:
            why = WhyUnmatched.NOT_RECORDED if missing or members > len(recorded) else WhyUnmatched.DIFFERENT
        yield at, (why, operation, missing, int(times.calls.transfer_ns[row]))


def begun(one: CollectiveSequence) -> IntArray:
    """Position of the step that each stretch of own time is in. Shape (events + 1,)."""
    count = np.concatenate(([0], np.cumsum((one.lane.call < 0) & ~one.lane.waits)))
    return np.minimum(count, len(one.numbers) - 1)


def stretches_ns(one: CollectiveSequence) -> tuple[IntArray, IntArray]:
    """(own, computing) of a rank before each of its events and after the last. Shapes (events + 1,)."""
    reached = one.lane.until_ns[-1] if len(one.lane.until_ns) else one.bounds_ns[0]
    last = max(int(one.bounds_ns[-1] - reached), 0)
    computing = min(max(int(one.compute_ns.sum() - one.lane.compute_ns.sum()), 0), last)
    return np.append(one.lane.own_ns, last), np.append(one.lane.compute_ns, computing)


def own_time_ns(job: Job) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(computing, other own time) of each rank in each step. Shapes (ranks, steps)."""
    computing, other = [], []
    for sequence in job.sequences:
        step, (own, computed) = begun(sequence), stretches_ns(sequence)
        count = len(sequence.numbers)
        computing.append(np.bincount(step, weights=computed, minlength=count))
        other.append(np.bincount(step, weights=np.maximum(own - computed, 0), minlength=count))
    return np.stack(computing), np.stack(other)
