"""Edits: what a fix changes in a run, as values that rules name and the replay carries out.

An edit selects spans by id: device work, host calls or ops, loader fetches; or host time by `Times`. A span stands for
what it took itself: for device work its duration, for a host span the time that its thread spent in it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.costs.changes import Recost
from diagnose.trace.intervals import IntArray, Intervals


class Estimate(IntEnum):
    """How much a fix is thought to bring."""

    LOW = 0
    LIKELY = 1
    HIGH = 2


class Between(Struct, frozen=True):
    """A parameter that is not known exactly: one value for each `Estimate`."""

    low: float
    likely: float
    high: float

    def at(self, level: Estimate) -> float:
        """The value to use at a level."""
        return (self.low, self.likely, self.high)[level]

    def of_share(self, share: float) -> Between:
        """The shares left of a whole of which only the part `share` is shortened to these."""
        low, likely, high = (1 - (1 - one) * share for one in (self.low, self.likely, self.high))
        return Between(low, likely, high)


Number: TypeAlias = "float | Between"


def at(number: Number, level: Estimate) -> float:
    """A parameter's value at a level."""
    return number.at(level) if isinstance(number, Between) else float(number)


class Times(Struct, frozen=True):
    """Time of one host thread, where no span says it: Python between ops. `pieces` is a normal set."""

    track: int
    pieces: Intervals


Selection: TypeAlias = "IntArray | Times"


class Shorten(Struct, frozen=True, eq=False):
    """What is selected takes only the share `keep` of its time (0..1)."""

    what: Selection
    keep: Number


class Remove(Struct, frozen=True, eq=False):
    """What is selected does not happen: device work with the calls that launch it, host spans with all inside."""

    what: IntArray


class Detach(Struct, frozen=True, eq=False):
    """Nobody waits any more: host calls for the device, device work for events on other streams."""

    what: IntArray


class Move(Struct, frozen=True, eq=False):
    """Loader fetches or copies run beside, on a track of their own, `times_faster` than before; all are still needed.

    Where a moved span was, its result is waited for. A fetch whose batch is ready still takes `ready_ns` of the host.
    """

    what: IntArray
    times_faster: Number
    ready_ns: Number = 300_000  # What a fetch from a worker's queue takes: 0.3 to 1 ms were measured.


class Replace(Struct, frozen=True, eq=False):
    """Groups of device operations each become one, in the place of their first.

    `group` numbers the groups 0..n-1, of the same shape as `what`; `dur_ns` has, for each `Estimate`, one row of n.
    """

    what: IntArray
    group: IntArray
    dur_ns: IntArray


class Own(IntEnum):
    """What a rank does by itself, while it waits for no other."""

    COMPUTE = 0
    OTHER = 1  # Its host prepares, or its device has nothing to do.


class Even(Struct, frozen=True, eq=False):
    """Ranks of a job take the share `keep` of what each took by itself: less, or more. Only where others are known."""

    keep: npt.NDArray[np.float64]  # Shape (ranks, steps) as in `Peers`.
    much: Number = 1.0  # Share of that change which happens.
    of: Own = Own.COMPUTE


class Rechunk(Struct, frozen=True, eq=False):
    """Pipelines cut a batch into more micro-batches. Only where the other ranks are known.

    A step of m micro-batches takes (m - 1) max c + sum c + (m + p - 1) o, for p ranks that compute c for each, and o
    for what each costs besides: m c stays, m o grows. With v stages a rank, all but the longest count 1 / v.
    """

    pipelines: tuple[tuple[int, ...], ...]  # Positions of the ranks of each.
    count: int  # Micro-batches now.
    times: int  # How many become of one.
    stages: int  # Stages a rank.
    cost_ns: Number  # Of one micro-batch more, per step.


Edit: TypeAlias = "Shorten | Remove | Detach | Move | Replace | Recost | Even | Rechunk"


def shares(keep: Number) -> npt.NDArray[np.float64]:
    """A share at each level, bounded to 0..1. Shape (3,)."""
    return np.clip([at(keep, level) for level in Estimate], 0.0, 1.0)
