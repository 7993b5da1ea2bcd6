"""What becomes of all ranks' collectives and transfers where one rank's are changed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.trace.intervals import IntArray
from diagnose.trace.job import CollectiveSequence, Job

Shares = npt.NDArray[np.float64]


class CallsOfAll:
    """The calls of all ranks of a job in turn, and those that correspond to the calls of one rank.

    A rank that asks for the same in the same order runs the same code: its calls change like those of that rank. A
    collective changes on all ranks that meet in it.
    """

    def __init__(self, job: Job, fixed: int) -> None:
        """`fixed`: position of the rank whose calls are changed."""
        first = np.concatenate(([0], np.cumsum([len(sequence.calls.ids) for sequence in job.sequences])))
        asked = _asked(job.sequences[fixed])
        self.asked_ids = job.sequences[fixed].calls.ids[asked]
        """Spans of that rank's calls, in the order in which it asks for them."""
        alike = [at for at, one in enumerate(job.sequences) if same_calls(one, job.sequences[fixed])]
        self._alike = [first[at] + _asked(job.sequences[at]) for at in alike]
        self._count = int(first[-1])
        self._member = np.concatenate([first[met.ranks] + met.calls for met in job.join_points] or [first[:0]])
        self._join_point = np.repeat(np.arange(len(job.join_points)), [len(met.ranks) for met in job.join_points])

    def left(self, of_asked: Shares) -> Shares:
        """Of each call of each rank the share that is left of it, from those of `asked_ids`; NaN: not asked for."""
        left = np.ones(self._count)
        for calls in self._alike:
            left[calls] = of_asked
        changed = left[self._member] != 1.0
        met, share = self._join_point[changed], left[self._member[changed]]
        count = np.bincount(met, minlength=int(self._join_point.max(initial=-1)) + 1)
        mean = np.bincount(met, weights=share, minlength=len(count)) / np.maximum(count, 1)
        left[self._member] = np.where(count > 0, mean, 1.0)[self._join_point]
        return left


def same_calls(one: CollectiveSequence, other: CollectiveSequence) -> bool:
    """Whether both ask for the same calls in the same order."""
    return _operations(one) == _operations(other)


def _operations(one: CollectiveSequence) -> list[str]:
    call = one.lane.call[~one.lane.waits]
    return ["" if k < 0 else one.operations[one.calls.operation[k]] for k in call.tolist()]


def _asked(one: CollectiveSequence) -> IntArray:
    call: IntArray = one.lane.call[~one.lane.waits & (one.lane.call >= 0)]
    return call
