"""How long a step takes on a CUDA device: events at the ends of steps, which are read when the device has passed them.

Nothing here waits for the device.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

MOST_PENDING = 64  # Events that the device has not come to yet, beyond which none are added (our choice).


class DeviceTimes:
    """Of the thread that trains, on the current stream of its current device."""

    def __init__(self) -> None:
        self._pending: deque[Any] = deque()
        self._free: list[Any] = []

    def step_ended(self) -> list[int]:
        """A step has ended on the host. Returns times in ns between ends that the device has passed since."""
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return []
        found, pending = list[int](), self._pending
        while len(pending) > 1 and pending[1].query():
            before = pending.popleft()
            found.append(round(before.elapsed_time(pending[0]) * 1e6))
            self._free.append(before)
        if len(pending) >= MOST_PENDING:
            pending.clear()  # Times that begin at an earlier end would be those of several steps.
        event = self._free.pop() if self._free else cuda.Event(enable_timing=True)
        event.record()
        pending.append(event)
        return found
