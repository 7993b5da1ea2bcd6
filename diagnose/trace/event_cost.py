"""The host's own time between recorded events, each of which costs it some."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray

FloatArray = npt.NDArray[np.float64]

EVENT_NS = 2_000.0
"""Of an op or a call, where nobody measured it: 1.4 to 2.8 us in four trainings that an H100 recorded."""

LEAST = 0.05  # Share of a stretch that is left at least, as what an event costs is a mean (our choice).


def moments(starts: IntArray, ends: IntArray, cost_ns: FloatArray) -> tuple[IntArray, FloatArray]:
    """When events begin or end, each moment once, and half of what is spent on the events that do so.

    Arrays of shape (events,), and of shape (moments,).
    """
    at = intervals.distinct(np.append(starts, ends))
    halves = np.append(cost_ns, cost_ns) / 2
    return at, np.bincount(np.searchsorted(at, np.append(starts, ends)), halves, len(at)).astype(np.float64)


def own_ns(at: IntArray, spent_ns: FloatArray) -> FloatArray:
    """The own time from the first moment to each: half of what one spends it spends before, and half after it."""
    length = np.diff(at).astype(np.float64)
    spent = np.minimum((spent_ns[:-1] + spent_ns[1:]) / 2, (1.0 - LEAST) * length)
    return np.concatenate(([0.0], np.cumsum(length - spent)))
