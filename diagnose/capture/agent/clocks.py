"""How long steps take, without a profiler: the process's clock, and events on the device where there is one."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any


class Clock:
    """Times consecutive steps. Costs a few microseconds a step, and waits for nothing until it is read."""

    def __init__(self, first_step: int) -> None:
        """The step before `first_step` has just ended."""
        self.first_step = first_step
        self._ns = [time.perf_counter_ns()]
        self._events: list[Any] = []
        self._mark()

    def _mark(self) -> None:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def tick(self) -> None:
        """A step has ended."""
        self._ns.append(time.perf_counter_ns())
        self._mark()

    @property
    def steps(self) -> int:
        """That were timed."""
        return len(self._ns) - 1

    def wall_ns(self, last: int | None = None) -> list[int]:
        """Of each step, or of the last ones."""
        ends = self._ns if last is None else self._ns[-last - 1 :]
        return [after - before for before, after in pairwise(ends)]

    def timed(self) -> dict[str, object]:
        """As in `Timed` of the manifest. Waits for the device."""
        device = None
        if self._events and len(self._events) == len(self._ns):
            self._events[-1].synchronize()
            pairs = pairwise(self._events)
            device = [round(before.elapsed_time(after) * 1e6) for before, after in pairs]
        return {"first_step": self.first_step, "wall_ns": self.wall_ns(), "device_ns": device}


WINDOW = 5
"""Steps that are compared with as many before them (our choice)."""

ALIKE = 0.1
"""Share by which their medians may differ (our choice)."""


def steady(clock: Clock) -> bool:
    """Whether the last steps took as long as those before."""
    if clock.steps < 2 * WINDOW:
        return False
    times = clock.wall_ns(last=2 * WINDOW)
    before, after = sorted(times[:WINDOW])[WINDOW // 2], sorted(times[WINDOW:])[WINDOW // 2]
    return abs(after - before) <= ALIKE * before
