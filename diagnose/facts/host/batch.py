"""What would a larger batch bring, where the device has memory for it?"""

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import TimeCause
from diagnose.facts.core.host import host_activities, host_threads
from diagnose.facts.core.idle import idle
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import work_table
from diagnose.facts.device.kernels import filling
from diagnose.facts.device.memory import memory
from diagnose.facts.host.python import python_pauses
from diagnose.facts.host.starvation import starvation
from diagnose.facts.optimizer.optimizer import for_parameters
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals

MOST_TIMES = 8
"""The largest step that is advised (our choice): what larger batches do to the training is not for a trace to tell."""
USED_AT_MOST = 0.9
"""Of the device's memory, with the larger batch: the rest is for the context, for libraries and fragments."""
SHORT_NS = 200_000
"""Python pauses up to that are calls of modules and hooks, as many whatever the batch; longer ones may go with it."""


class LargerBatch(Struct, frozen=True):
    """A batch that fits, and what a step does once whatever the batch is; times per step."""

    times: int  # As large as now: a power of two, at most MOST_TIMES; 1 if twice the batch does not fit for sure.
    used_bytes: int  # Most that the allocator held.
    capacity_bytes: int
    host_idle_ns: int
    """Idle time of the device while the host dispatches ops, calls modules, or is in the optimizer's step."""
    host_times: tuple[tuple[int, Intervals], ...]  # Of these: thread and times.
    update_ids: IntArray  # Device work for parameters: updates, and zeroing of gradients.
    update_ns: int
    underfilled_ids: IntArray  # Other kernels that do not fill the device.
    underfilled_ns: int
    filled_share: float  # Of the device, while they run.


@fact
def larger_batch(facts: Facts) -> LargerBatch:
    """By the fullest device. Raises Missing without device work, like `memory`, and if its size was not recorded."""
    table, count = work_table(facts), max(steps(facts).count, 1)
    known = [
        (one.peak_reserved_bytes / one.capacity_bytes, one.peak_reserved_bytes, one.capacity_bytes)
        for one in memory(facts)
        if one.peak_reserved_bytes and one.capacity_bytes
    ]
    if not known:
        raise Missing("reserved GPU memory", "Record with a current PyTorch.")
    share, used, capacity = max(known)
    fits = [times for times in (2, 4, 8) if times <= MOST_TIMES and times * share <= USED_AT_MOST]
    update = for_parameters(facts)
    starved, kernels = optional(starvation, facts), optional(filling, facts)
    pauses = [
        one
        for one in optional(python_pauses, facts) or ()
        if not one.on_cpu and one.idle_ns * count <= SHORT_NS * one.gaps
    ]
    activities = optional(host_activities, facts)
    stepping = activities[TimeCause.OPTIMIZER] if activities else intervals.EMPTY
    under = np.empty(0, dtype=np.int64) if kernels is None else np.setdiff1d(kernels.underfilled_ids, table.ids[update])
    within = np.isin(table.ids, under) & table.in_steps
    return LargerBatch(
        times=max(fits, default=1),
        used_bytes=used,
        capacity_bytes=capacity,
        host_idle_ns=(starved.idle_ns if starved else 0)
        + sum(pause.idle_ns for pause in pauses)
        + sum(one.ns for one in optional(idle, facts) or () if one.cause is TimeCause.OPTIMIZER),
        host_times=(
            *(starved.times if starved else ()),
            *(some for pause in pauses for some in pause.times),
            *([(host_threads(facts).main, stepping)] if stepping.size else []),
        ),
        update_ids=table.ids[update],
        update_ns=int(table.dur_ns[update & table.in_steps].sum()) // count,
        underfilled_ids=under,
        underfilled_ns=int(table.dur_ns[within].sum()) // count,
        filled_share=1.0 if kernels is None else kernels.filled_share,
    )
