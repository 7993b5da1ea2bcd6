"""How do the ranks of a job spend its steps, for whom do they wait, in which groups, and what of that is chance?

A rank's step is its own time, of which it computes, and time in which it is held up by a collective or transfer: until
the last rank has come it waits, after that it transfers. What a rank waits is charged to the one that came last.
"""

from collections.abc import Iterator
from enum import Enum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.spans import members
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.job import BARRIERS, RECV, SEND, CollectiveSequence, Job
from diagnose.trace.model import Context

Times = npt.NDArray[np.float64]


class WhyUnmatched(str, Enum):
    """Why it is not known for whom a rank waits in a call."""

    NOT_RECORDED = "not_recorded"  # Ranks of its group have no recording.
    ROOTED = "rooted"  # A broadcast and the like, of which one side need not wait.
    OTHER_SIDE_UNKNOWN = "other_side_unknown"  # A transfer, and the recording does not say from or to whom.
    DIFFERENT = "different"  # The recordings have different calls, or show a rank leaving before another has come.


class Calls(Struct, frozen=True):
    """The calls of all ranks in the steps, one after the other. Arrays of shape (calls,)."""

    rank: IntArray  # Position of the sequence.
    call: IntArray  # Position in its calls.
    join_point: IntArray  # Position in `Job.join_points`; -1 unmatched.
    last_ns: IntArray  # When the last rank came.
    awaited: IntArray  # Position of the sequence that came last; -1 unmatched, as `last_ns`.
    wait_ns: IntArray  # For how long the rank is held up before that.
    transfer_ns: IntArray  # For how long it is held up after that. Of what is unmatched, all.
    whole: npt.NDArray[np.bool_]  # Matched, with all ranks that took part: others may wait for ranks not recorded.


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
    wait, transfer, unmatched = np.stack([by_step for _, by_step in rows], axis=1)
    whole = np.stack([np.diff(sequence.bounds_ns) for sequence in job.sequences])
    return JobTimes(
        compute_ns=compute,
        host_ns=whole - compute - wait - transfer - unmatched,
        wait_ns=wait,
        transfer_ns=transfer,
        unmatched_ns=unmatched,
        caused_ns=_caused(job, np.concatenate([waits for waits, _ in rows], axis=1)),
        calls=calls,
    )


def _calls(job: Job) -> tuple[Calls, IntArray]:
    """All ranks' calls in one table, their waits and transfers still 0, and the row of each rank's first call."""
    counts = [len(sequence.calls.ids) for sequence in job.sequences]
    first = np.concatenate(([0], np.cumsum(counts)))
    join_point, last, awaited = (np.full(first[-1], -1, dtype=np.int64) for _ in range(3))
    whole = np.zeros(first[-1], dtype=bool)
    for number, point in enumerate(job.join_points):
        rows = first[point.ranks] + point.calls
        join_point[rows], last[rows], awaited[rows] = number, point.last_ns, point.ranks[point.arrived_ns.argmax()]
        whole[rows] = point.whole
    rank = np.repeat(np.arange(len(counts)), counts)
    zeros = np.zeros(first[-1], dtype=np.int64)
    call = np.arange(first[-1]) - first[rank]
    return Calls(rank, call, join_point, last, awaited, zeros, zeros.copy(), whole), first


def _rank(one: CollectiveSequence, calls: Calls, first: int) -> tuple[IntArray, IntArray]:
    """Adds its held time to `calls`. Returns its waits (from, until, for whom); (wait, transfer, unmatched) by step."""
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
    return np.stack((begin, come, calls.awaited[at])), np.stack((wait, transfer, unmatched))


def _caused(job: Job, waits: IntArray) -> IntArray:
    """ns that others waited for each rank while it computed, was on its host, or was held up: shape (ranks, 3)."""
    caused_ns = np.zeros((len(job.sequences), 3), dtype=np.int64)
    begin, end, awaited = waits[:, (waits[1] > waits[0]) & (waits[2] >= 0)]
    for rank, (sequence, rows) in enumerate(zip(job.sequences, members(awaited, len(job.sequences)), strict=True)):
        held_ns = np.stack((sequence.lane.from_ns, sequence.lane.until_ns), axis=1).ravel()
        moments = np.maximum.accumulate(np.concatenate((sequence.bounds_ns[:1], held_ns, sequence.bounds_ns[-1:])))
        own, computed = (
            np.interp(end[rows], moments, done) - np.interp(begin[rows], moments, done)
            for part in map(np.cumsum, stretches_ns(sequence))
            for done in [np.concatenate(([0], np.repeat(part[:-1], 2), part[-1:]))]  # At the moments.
        )
        compute, host = round(float(computed.sum())), round(float((own - computed).sum()))
        caused_ns[rank] = compute, host, max(int((end - begin)[rows].sum()) - compute - host, 0)
    return caused_ns


class GroupTimes(Struct, frozen=True):
    """One operation in one process group, or what one rank sends to another. Times are of all steps."""

    group: int  # Position in `Job.groups`; -1: its ranks are all, or it is a transfer.
    transfer: bool
    operation: str  # "send" of transfers.
    ranks: tuple[int, ...]  # Of a transfer: from, to.
    calls: int  # Of one rank.
    bytes: int | None  # Of one rank; None if not known of every call.
    ns: int  # In calls, hidden or not. This and the next two: mean of the ranks, of a transfer the sum of both.
    wait_ns: int  # Held up until the last rank had come.
    transfer_ns: int  # Held up after that.
    bandwidth: float | None  # Bytes over the time from when the last rank came to the end, per second; None unknown.


class Unmatched(Struct, frozen=True):
    """Calls of which it is not known who waits for whom, in all steps."""

    why: WhyUnmatched
    operation: str
    ranks: tuple[int, ...]  # Whose calls they are.
    missing: tuple[int, ...]  # Ranks of their groups that are not recorded, as far as known.
    calls: int  # Of all ranks.
    held_ns: int  # For how long they hold these ranks up, together: waiting, transfer, or both.


def group_times(job: Job, times: JobTimes) -> list[GroupTimes]:
    """By group, operation and (of transfers) pair of ranks, longest held up first; only calls matched on all ranks."""
    calls = times.calls
    rows = np.flatnonzero(calls.whole)
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
    place = of_join_point[calls.join_point[rows]]
    columns = [np.stack((one.calls.bytes, one.calls.begin_ns, one.calls.end_ns)) for one in job.sequences]
    size, begin, end = np.concatenate(columns, axis=1)[:, rows]
    moved = np.maximum(end - calls.last_ns[rows], 0)
    parts = (np.ones_like(size), size < 0, size, end - begin, calls.wait_ns[rows], calls.transfer_ns[rows], moved)
    sums = np.stack([np.bincount(place, weights=part, minlength=len(number)) for part in parts])
    found = []
    for (group, transfer, operation, ranks), own in zip(number, np.rint(sums).astype(np.int64).T.tolist(), strict=True):
        count, unknown, carried, ns, wait, held, after = own
        size_of = max(len(ranks), 1)
        of = 1 if transfer else size_of
        found.append(
            GroupTimes(
                group=group,
                transfer=transfer,
                operation=operation,
                ranks=ranks,
                calls=count // size_of,
                bytes=None if unknown else carried // size_of,
                ns=ns // of,
                wait_ns=wait // of,
                transfer_ns=held // of,
                bandwidth=carried / after * 1e9 if not unknown and after and carried else None,
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
    """For each call in a step without a full match its rank's position and (why, operation, missing ranks, held ns)."""
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


def own_time_ns(job: Job) -> tuple[Times, Times]:
    """(computing, other own time) of each rank in each step. Shapes (ranks, steps)."""
    computing, other = [], []
    for sequence in job.sequences:
        step, (own, computed) = begun(sequence), stretches_ns(sequence)
        count = len(sequence.numbers)
        computing.append(np.bincount(step, weights=computed, minlength=count))
        other.append(np.bincount(step, weights=np.maximum(own - computed, 0), minlength=count))
    return np.stack(computing), np.stack(other)


_T_995 = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250)
"""Quantiles of Student's t for 1 to 9 degrees of freedom: beyond them is chance in 1 of 200 cases. One of several ranks
is the longest by chance as well, so that it must be rare."""
DEVICE_NOISE, CPU_NOISE, SHARED_NOISE = 0.05, 0.25, 0.5
"""Of what a rank takes by itself: ranks of equal work differ by as much all the time. Devices of one model do by some
per cent; of two ranks on two shared cores one took up to 0.22 longer, and 0.33 where both cores were one."""
SIBLINGS = 2  # Logical cores that may be one.


def is_certain(excess_ns: Times) -> bool:
    """Whether the mean over steps is above 0 by more than chance (Student's t). False for a single step."""
    count = len(excess_ns)
    if count < 2:
        return False
    error = float(excess_ns.std(ddof=1)) / np.sqrt(count)
    return bool(excess_ns.mean() > _T_995[min(count - 2, len(_T_995) - 1)] * error)


def require_steps(excess_ns: Times, least_ns: float) -> None:
    """Raises Missing if there is a single step, and its excess is `least_ns` or more: that may be chance."""
    if len(excess_ns) < 2 and float(excess_ns.mean()) >= least_ns:
        how = "Record several steps, and call prof.step() after each."
        raise Missing("whether ranks differ by more than noise", how)


def noise(facts: Facts, on_cpu: bool) -> float:
    """Share of a rank's own time by which equal ranks differ."""
    if not on_cpu:
        return DEVICE_NOISE
    context = facts.rank.context
    return SHARED_NOISE if context is not None and cores_shared(context) else CPU_NOISE


def cores_shared(context: Context) -> bool:
    """Whether the ranks of a machine keep over half of its logical cores busy: two of these may be one core.

    What a rank keeps busy was measured in the steps without the profiler; in recordings that do not say, it is taken
    for as many cores as the rank has threads. False if neither is known.
    """
    cpus, alone = context.host.cpus_allowed, context.rank.unprofiled
    busy = alone.busy_cores if alone is not None and alone.cpu_ns is not None else context.rank.flags.threads
    return cpus is not None and busy is not None and cpus < SIBLINGS * busy * max(context.ranks, 1)
