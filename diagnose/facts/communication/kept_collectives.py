"""Which collectives of a job of many ranks are kept, so that its memory is bounded however many there are.

Fewer steps are better than fewer ranks: in each step all meet. Where not even one step of all ranks fits, those ranks
are kept that share a group with the first one (a replica of each dimension that the job is parallel in), and, by turns,
those that are held up least: the others wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from diagnose.facts.communication.matching import cut
from diagnose.facts.communication.peers import Compared, compare
from diagnose.trace.job import CollectiveSequence
from diagnose.trace.model import IntegrityNote, Severity
from diagnose.trace.packing import packed, unpacked

MOST_CALLS_OF_JOB = 1_000_000
"""Collectives of all ranks that are put together to a job: some 2.5 GB (`make bench-scale`)."""


@dataclass(frozen=True)
class KeptSequence:
    """A rank's sequence in few bytes, and what tells whether it has to be kept."""

    data: bytes
    calls: int
    recorded_steps: int
    steps: int
    """Of these the first, as many as are kept."""
    held_share: float
    """Share of its steps for which the rank is held up by others or by transfers."""
    near: bool
    """It shares a group, other than that of all, with the first rank."""

    def sequence(self, rank: int) -> CollectiveSequence:
        """The sequence, of the rank with this number."""
        return replace(unpacked(self.data), rank=rank)


def kept(sequence: CollectiveSequence, ranks: int) -> KeptSequence:
    """What is kept of a sequence if there are so many ranks: whole steps, at least one."""
    some = _within(sequence, MOST_CALLS_OF_JOB // max(ranks, 1))
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


def _within(sequence: CollectiveSequence, most_calls: int) -> CollectiveSequence:
    begins = np.searchsorted(np.sort(sequence.calls.begin_ns), sequence.bounds_ns[1:])
    fitting = int((begins <= most_calls).sum())
    return cut(sequence, sequence.numbers[: max(fitting, 1)])


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

    None if fewer than two can be compared.
    """
    known = {rank: one for rank, one in ranks.items() if one is not None}
    some = chosen(known, most_calls)
    found = compare({rank: known[rank].sequence(rank) for rank in some})
    return found, list(_left_out(ranks, known, some)) if found else []


MOST_NAMED = 8
"""Ranks that a sentence names one by one."""


def _left_out(
    ranks: Mapping[int, KeptSequence | None], known: Mapping[int, KeptSequence], some: Sequence[int]
) -> Iterator[IntegrityNote]:
    if strange := [str(rank) for rank in ranks if rank not in known]:
        more = f" and {len(strange) - MOST_NAMED} more" if len(strange) > MOST_NAMED else ""
        yield IntegrityNote(
            f"Not compared with the other ranks: {', '.join(strange[:MOST_NAMED])}{more}.",
            "Their recordings show no step, or no collective that can be compared. Whether the others wait for them is"
            " not known.",
            Severity.NOTE,
        )
    recorded, steps = (max(getattr(one, name) for one in known.values()) for name in ("recorded_steps", "steps"))
    if steps < recorded:
        yield IntegrityNote(
            f"Ranks are compared in the first {steps} of {recorded} recorded steps: there are too many collectives for"
            " all.",
            "What differs in later steps only is not seen.",
            Severity.NOTE,
        )
    if len(some) < len(known):
        yield IntegrityNote(
            f"The collectives of {len(some):,} of {len(known):,} ranks are compared: of the first rank's groups, and of"
            " the ranks that are held up least.",
            "Whether the others wait for one that is not among them is not known.",
            Severity.NOTE,
        )
