"""How much of a device's memory was never reserved."""

from __future__ import annotations

import pytest

from diagnose.facts.device.memory import Memory


@pytest.mark.parametrize(
    ("reserved", "capacity", "share"),
    [(20, 80, 0.75), (80, 80, 0.0), (None, 80, None), (20, None, None), (20, 0, None)],
)
def test_free_share(reserved: int | None, capacity: int | None, share: float | None) -> None:
    assert Memory(0, 10, reserved, capacity).free_share == share
