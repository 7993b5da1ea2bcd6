"""How long a step takes on a CUDA device: events at the ends of steps, which are read when the device has passed them.

Nothing here waits for the device.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ..alone import alone, capturing, uses_gpu
from ..clocks import ON_DEVICE, between_ns, device_event

MOST_PENDING = 64  # Events that the device has not come to yet, beyond which none are added (our choice).


class DeviceTimes:
    """Of the thread that trains, on the current stream of its current device."""

    def __init__(self) -> None:
        self._pending: deque[Any] = deque()
        self._free: list[Any] = []

    def step_ended(self) -> list[int]:
        """A step has ended on the host. Returns times in ns between ends that the device has passed since."""
        if not uses_gpu() or capturing():
            return []
        return list(alone(ON_DEVICE, self._passed, default=()))

    def _passed(self) -> list[int]:
        found, pending = list[int](), self._pending
        while len(pending) > 1 and pending[1].query():
            before = pending.popleft()
            found.append(between_ns(before, pending[0]))
            self._free.append(before)
        if len(pending) >= MOST_PENDING:
            pending.clear()  # Times that begin at an earlier end would be those of several steps.
        pending.append(device_event(self._free.pop() if self._free else None))
        return found
