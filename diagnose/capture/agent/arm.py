"""What an arm of a trial measures beside its steps: losses, memory, and where fixes took effect."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from . import backwards, injection, writes
from .alone import alone, uses_gpu
from .losses import Losses


class Arm:
    """Of one process, from its start."""

    def __init__(self) -> None:
        self._losses = Losses()
        backwards.listen(self._backward)

    def _backward(self, tensors: list[Any]) -> None:
        for tensor in tensors:
            if tensor.numel() == 1:
                self._losses.keep(tensor)

    def found(self) -> dict[str, object]:
        """As `Arm` in the manifest. Waits for the device."""
        return {
            "injected": injection.effects(),
            "refused": injection.refused(),
            "losses": self._losses.found(),
            "peak_bytes": alone("the most memory", device_peak if uses_gpu() else own_peak),
            "reread": writes.reread(),
        }


def device_peak() -> int:
    """Most memory that tensors had on GPUs."""
    torch = sys.modules["torch"]
    return sum(int(torch.cuda.max_memory_allocated(index)) for index in range(torch.cuda.device_count()))


def own_peak() -> int | None:
    """Most resident memory of this process, without its workers; None where the system does not say.

    Not of getrusage: that also holds what the process had before it became this program.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
