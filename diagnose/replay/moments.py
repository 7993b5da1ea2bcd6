"""The moments between which a rank goes on by itself, where the other ranks of its job are known."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts
from diagnose.trace.intervals import IntArray


class Stretches(Struct, frozen=True):
    """A rank's own stretches of time, by its own clock, in order. Arrays of shape (stretches,)."""

    from_ns: IntArray
    until_ns: IntArray

    @property
    def moments_ns(self) -> IntArray:
        """All begins, then all ends."""
        return np.concatenate((self.from_ns, self.until_ns))


def own_stretches(facts: Facts) -> Stretches:
    """Before each event of the rank's lane, and after the last one. None if no other rank is known."""
    others, none = facts.rank.peers, np.zeros(0, dtype=np.int64)
    if others is None or not others.job.join_points:
        return Stretches(none, none)
    at = others.job.ranks.index(others.rank)
    sequence, shift = others.job.sequences[at], int(others.job.ahead_ns[at]) - facts.rank.zero_unix_ns
    after = np.concatenate((sequence.bounds_ns[:1], np.maximum.accumulate(sequence.lane.until_ns)))
    until = np.maximum(np.append(sequence.lane.from_ns, sequence.bounds_ns[-1]), after)
    return Stretches(after + shift, until + shift)
