"""What each rank takes in each step by itself: computing, and what else it does while it waits for nobody."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.trace.intervals import IntArray
from diagnose.trace.job import CollectiveSequence, Job


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
