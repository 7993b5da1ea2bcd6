"""What do the other ranks' recordings tell of this one: who waits for whom?

A collective lasts as long as the last rank lets the others wait for it: from one rank's recording, waiting and
transferring look the same. Every rank gives its `sequence`, and gets back its `Peers`.

Of many ranks some collectives are kept, so that memory is bounded however many there are. Fewer steps are better than
fewer ranks: in each step all meet. Where not even one step of all ranks fits, those ranks are kept that share a group
with the first one (a replica of each dimension that the job is parallel in), and, by turns, those that are held up
least: the others wait for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.communication.matching import cut, join
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.spans import members
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.job import CollectiveSequence, Job, JoinPoint, packed, unpacked
from diagnose.trace.model import IntegrityNote, Peers, Severity

HOW = "Record all ranks at once, as diagnose profile does, and analyse their folder."
MOST_NAMED = 8  # Ranks that a sentence names one by one.


class Compared(Struct, frozen=True):
    """Ranks side by side."""

    job: Job
    waited_ns: IntArray  # For how long each rank stood still and waited for others, in all steps. Shape (ranks,).

    @property
    def awaited(self) -> int | None:
        """The rank that waits least for the others: they wait for it. None if nothing is known of waiting."""
        return self.job.ranks[int(self.waited_ns.argmin())] if self.job.join_points else None

    def peers(self, rank: int) -> Peers:
        """What the comparison says of the rank with this number, on its own clock."""
        job, at = self.job, self.job.ranks.index(rank)
        met = _arrivals([join_point for join_point in job.join_points if join_point.whole])
        own = met.rank == at
        rows = np.stack((job.sequences[at].calls.ids[met.call[own]], met.arrived_ns[own], met.wait_ns[own]))
        ids, arrived_ns, wait_ns = rows[:, np.lexsort(rows[::-1])]
        return Peers(
            rank=rank,
            ranks=job.ranks,
            steps=job.sequences[at].numbers,
            machines=np.array([sequence.machine for sequence in job.sequences], dtype=np.int64),
            devices=np.array([sequence.device for sequence in job.sequences], dtype=np.int64),
            compute_ns=np.stack([sequence.compute_ns for sequence in job.sequences]),
            waited_ns=self.waited_ns,
            met=ids,
            from_ns=arrived_ns + int(job.ahead_ns[at]),
            waits_ns=wait_ns,
            job=job,
        )


def compare(ranks: Mapping[int, CollectiveSequence | None]) -> Compared | None:
    """The ranks side by side; None if one has no sequence, if there is only one, or if no step is used by all."""
    known = [replace(one, rank=rank) for rank, one in ranks.items() if one is not None]
    job = join(known) if len(known) == len(ranks) else None
    return None if job is None else Compared(job, _waited_ns(job))


class _Arrivals(Struct, frozen=True):
    """Each rank that came to each of some join points. Arrays of shape (arrivals,)."""

    rank: IntArray  # Position of its sequence.
    call: IntArray
    arrived_ns: IntArray
    wait_ns: IntArray


def _arrivals(join_points: Sequence[JoinPoint]) -> _Arrivals:
    """All arrivals at the join points, one join point after the other."""
    rows = [(one.ranks, one.calls, one.arrived_ns, one.wait_ns) for one in join_points]
    none = np.zeros(0, dtype=np.int64)
    return _Arrivals(*(np.concatenate(column) for column in zip((none,) * 4, *rows, strict=True)))


def _waited_ns(job: Job) -> IntArray:
    """Total ns that each rank is held up before the last rank of a call arrives, by position of the rank."""
    arrivals = _arrivals(job.join_points)
    found = []
    for sequence, rows in zip(job.sequences, members(arrivals.rank, len(job.sequences)), strict=True):
        held = Intervals(sequence.lane.from_ns[sequence.lane.waits], sequence.lane.until_ns[sequence.lane.waits])
        absent = Intervals(arrivals.arrived_ns[rows], arrivals.arrived_ns[rows] + arrivals.wait_ns[rows])
        found.append(intervals.intersect(intervals.union(held), intervals.union(absent)).total)
    return np.array(found, dtype=np.int64)


@fact
def peers(facts: Facts) -> Peers:
    """What the other ranks tell of this one. Raises Missing if no other was looked at, or none in the same steps."""
    if facts.rank.peers is None:
        raise Missing("the other ranks' recordings", HOW)
    return facts.rank.peers


def waits(facts: Facts) -> Intervals | None:
    """When this rank had come to a collective and the last one had not, a normal set; None if that is not known."""
    others = optional(peers, facts)
    if others is None or not len(others.met):
        return None
    start = others.from_ns - facts.rank.zero_unix_ns
    return intervals.union(Intervals(start, start + others.waits_ns))


MOST_CALLS_OF_JOB = 1_000_000
"""Collectives of all ranks that are put together to a job: some 2.5 GB (`make bench-scale`)."""


class KeptSequence(Struct, frozen=True):
    """A rank's sequence in few bytes, and what tells whether it has to be kept."""

    data: bytes
    calls: int
    recorded_steps: int
    steps: int  # Of these the first, as many as are kept.
    held_share: float  # Share of its steps for which the rank is held up by others or by transfers.
    near: bool  # It shares a group, other than that of all, with the first rank.

    def sequence(self, rank: int) -> CollectiveSequence:
        """The sequence, of the rank with this number."""
        return replace(unpacked(self.data), rank=rank)


def kept(sequence: CollectiveSequence, ranks: int) -> KeptSequence:
    """What is kept of a sequence if there are so many ranks: whole steps, at least one."""
    begins = np.searchsorted(np.sort(sequence.calls.begin_ns), sequence.bounds_ns[1:])
    fitting = int((begins <= MOST_CALLS_OF_JOB // max(ranks, 1)).sum())
    some = cut(sequence, sequence.numbers[: max(fitting, 1)])
    held = some.lane.until_ns - some.lane.from_ns
    groups = [group.ranks for group in sequence.known_groups if 1 < len(group.ranks) < max(sequence.world_size, ranks)]
    return KeptSequence(
        data=packed(some),
        calls=len(some.calls.ids),
        recorded_steps=len(sequence.numbers),
        steps=len(some.numbers),
        held_share=float(held.sum()) / max(int(some.bounds_ns[-1] - some.bounds_ns[0]), 1),
        near=any(0 in group for group in groups),
    )


def chosen(sequences: Mapping[int, KeptSequence], most_calls: int = MOST_CALLS_OF_JOB) -> list[int]:
    """The ranks whose collectives are put together; all, if they are no more than `most_calls`."""
    if sum(sequence.calls for sequence in sequences.values()) <= most_calls:
        return sorted(sequences)
    replica = sorted(sequences, key=lambda rank: (not sequences[rank].near, rank))
    awaited = sorted(sequences, key=lambda rank: (sequences[rank].held_share, rank))
    found, calls = list[int](), 0
    for rank in dict.fromkeys(chain.from_iterable(zip(replica, awaited, strict=True))):
        calls += sequences[rank].calls
        if calls > most_calls:
            break
        found.append(rank)
    return sorted(found)


def compared(
    ranks: Mapping[int, KeptSequence | None], most_calls: int = MOST_CALLS_OF_JOB
) -> tuple[Compared | None, list[IntegrityNote]]:
    """The ranks side by side, as far as they can be and are no more than `most_calls`, and notes on what is left out.

    None, and no notes, if fewer than two can be compared or no step is used by all of them.
    """
    known = {rank: one for rank, one in ranks.items() if one is not None}
    some = chosen(known, most_calls)
    found = compare({rank: known[rank].sequence(rank) for rank in some})
    return found, list(_left_out(ranks, known, some)) if found else []


def _left_out(
    ranks: Mapping[int, KeptSequence | None], known: Mapping[int, KeptSequence], some: Sequence[int]
) -> Iterator[IntegrityNote]:
    """Notes on ranks and steps that are not compared with the others."""
    if incomparable := [str(rank) for rank in ranks if rank not in known]:
        more = f" and {len(incomparable) - MOST_NAMED} more" if len(incomparable) > MOST_NAMED else ""
        yield IntegrityNote(
            f"Not compared with the other ranks: {', '.join(incomparable[:MOST_NAMED])}{more}.",
            "Their recordings have no steps or no comparable collectives, so waits for these ranks are unknown.",
            Severity.NOTE,
        )
    recorded, steps = (max(getattr(one, name) for one in known.values()) for name in ("recorded_steps", "steps"))
    if steps < recorded:
        yield IntegrityNote(
            f"Ranks are compared in the first {steps} of {recorded} recorded steps: the job has too many collectives.",
            "Differences in later steps are not detected.",
            Severity.NOTE,
        )
    if len(some) < len(known):
        yield IntegrityNote(
            f"{len(some):,} of {len(known):,} ranks are compared: the first rank's groups, and ranks that wait least.",
            "Waits for the other ranks are unknown.",
            Severity.NOTE,
        )
