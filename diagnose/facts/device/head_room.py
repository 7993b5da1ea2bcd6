"""How much memory is free where the training computes?"""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.device import device_work
from diagnose.facts.device.memory import memory

UNUSED_SHARE = 0.5
"""Of a machine's memory, taken to be free for its ranks where the CPU computes: what they hold is not recorded (our
choice)."""


@dataclass(frozen=True)
class HeadRoom:
    """Memory that this rank could use besides."""

    bytes: int
    on_host: bool
    """Of the machine, taken as UNUSED_SHARE of this rank's part; else what the device's allocator never reserved."""


@fact
def head_room(facts: Facts) -> HeadRoom:
    """Of the fullest device. Raises Missing like `memory`, and if the size of the memory is not known."""
    if not len(device_work(facts).ids):
        context = facts.rank.context
        whole = context.host.memory_bytes if context else None
        if context is None or not whole:
            raise Missing("the machine's memory", "Record with diagnose profile.")
        return HeadRoom(int(UNUSED_SHARE * whole / max(context.ranks, 1)), True)
    known = memory(facts)
    free = [
        one.capacity_bytes - one.peak_reserved_bytes
        for one in known
        if one.capacity_bytes and one.peak_reserved_bytes is not None
    ]
    if len(free) < len(known) or not free:
        raise Missing("the device's memory", "Record with diagnose profile --memory.")
    return HeadRoom(max(min(free), 0), False)
