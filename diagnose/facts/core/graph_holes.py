"""Where kernels of a CUDA graph ran that were not recorded: not idle, and not known to be busy either."""

from __future__ import annotations

import numpy as np

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.device import device_work
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import ApiKind, api_kind

TURNAROUND_NS = 10_000
"""A queued kernel starts within 1 to 10 us of the one before (replay survey: 0.8 to 4 us back to back); what is queued
and waits longer waits for something."""


@fact
def graph_holes(facts: Facts) -> Intervals:
    """When nothing was recorded within one replay of a CUDA graph for longer than TURNAROUND_NS; a normal set.

    A replay's kernels are queued at once: between them the device waits for nothing.
    """
    work, spans = device_work(facts), facts.rank.spans
    names = spans["name"].cat
    replays = [code for code, name in enumerate(names.categories) if api_kind(name) is ApiKind.GRAPH_LAUNCH]
    replayed = np.isin(names.codes.to_numpy()[work.launch], replays) & (work.launch >= 0)
    if not replayed.any():
        return intervals.EMPTY
    busy = work.of()
    gaps = intervals.gaps(busy, int(busy.starts[0]), int(busy.ends[-1]))
    following = np.searchsorted(work.start_ns, gaps.ends)
    inside = replayed[following] & (_first_start(work.launch, work.start_ns)[following] < gaps.starts)
    inside &= gaps.ends - gaps.starts > TURNAROUND_NS
    return Intervals(gaps.starts[inside], gaps.ends[inside])


def _first_start(launch: IntArray, start_ns: IntArray) -> IntArray:
    """When the first work that the same call launched starts, of each work in order of start."""
    _, first, number = np.unique(launch, return_index=True, return_inverse=True)
    return start_ns[first[number.reshape(-1)]]
