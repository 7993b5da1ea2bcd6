"""What one recorded event costs the host: cheap ops, and launches, are timed without a recording and within one.

In the process that is recorded, as machines differ by several times, and one machine from minute to minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import quantiles

from .alone import alone, failed, uses_gpu
from .foreign import turns

TIMES = 100  # Ops of a block: far fewer launches than those after which the host waits for a device (our choice).
BLOCKS = 20  # Within the recording, and as many without it (our choice).


def event_cost() -> dict[str, float | None] | None:
    """As `EventCost` in the manifest, in some 50 ms; None if it cannot be measured.

    It draws no random numbers, adds nothing to autograd's graph and keeps no memory. What is open already ends after
    its recording, as what is opened within ends within: so it need not be a step apart from others (foreign.py).
    """
    if not turns.take():
        return None
    try:
        found: dict[str, float | None] | None = alone("what recording an event costs", _measured)
        return found
    finally:
        turns.leave()


def _measured() -> dict[str, float | None]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    ops: list[Callable[[], object]] = [partial(torch.empty(0, device="cpu").view, 0)]  # One event each.
    activities = [ProfilerActivity.CPU]
    if uses_gpu():
        ops.append(torch.zeros(1, device="cuda").neg_)  # And a launch.
        activities.append(ProfilerActivity.CUDA)
    before = [_times_ns(op, BLOCKS // 2) for op in ops]
    with profile(activities=activities):
        within = [_times_ns(op, BLOCKS) for op in ops]
    after = [_times_ns(op, BLOCKS // 2) for op in ops]
    without = [_undisturbed(first + last) for first, last in zip(before, after, strict=True)]
    op_ns, *both_ns = [(_undisturbed(times) - less) / TIMES for times, less in zip(within, without, strict=True)]
    return {"op_ns": _if_more(op_ns), "call_ns": _if_more(both_ns[0] - op_ns) if both_ns else None}


def _undisturbed(times_ns: list[int]) -> float:
    """The lower quartile: on a busy machine medians came out below zero in 6 of 50 tries, these in none of 30."""
    return quantiles(times_ns)[0]


def _if_more(ns: float) -> float | None:
    """None: the machine got slower or faster meanwhile by more than an event costs."""
    return ns if ns > 0 else None


def _times_ns(op: Callable[[], object], blocks: int) -> list[int]:
    import torch

    found = []
    for _ in range(blocks):
        if uses_gpu() and alone("waiting for the device", torch.cuda.synchronize, default=failed) is failed:
            raise RuntimeError("a launch may have waited for a place in the queue")
        begun_ns = time.perf_counter_ns()
        for _ in range(TIMES):
            op()
        found.append(time.perf_counter_ns() - begun_ns)
    return found
