"""Device memory: the allocator's peaks where recorded, and calls that allocate or free inside steps."""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import NO_DEVICE, round_half_up
from diagnose.facts.core.host import ALLOCATING, NO_CALLS, api_calls
from diagnose.facts.core.steps import steps


@dataclass(frozen=True)
class Memory:
    """The framework's allocator on one device over the whole recording."""

    device: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None  # None where the recording has no totals (before 2022).
    capacity_bytes: int | None = None  # Of the device; None if it was not recorded.

    @property
    def free_share(self) -> float | None:
        """Of the device's memory, never reserved by the allocator."""
        if not self.capacity_bytes or self.peak_reserved_bytes is None:
            return None
        return 1 - self.peak_reserved_bytes / self.capacity_bytes


@dataclass(frozen=True)
class AllocationCalls:
    """Calls of the driver's allocator (cudaMalloc, cudaFree, cudaHostAlloc, ...) in the used steps."""

    calls: int  # In all used steps.
    host_ns: int  # Host time in them, per step.


@fact
def memory(facts: Facts) -> tuple[Memory, ...]:
    """Peaks per device: by memory events, else what `diagnose profile` asked the allocator. Raises Missing without."""
    events = facts.rank.memory
    events = events[events["device_type"] > 0]
    if not len(events):
        return (_asked(facts),)
    peaks = events.groupby("device")[["allocated_bytes", "reserved_bytes"]].max()

    def known(value: object) -> int | None:
        return int(str(value)) if int(str(value)) >= 0 else None

    sizes = {device.index: device.memory_bytes or None for device in facts.rank.provenance.devices}
    return tuple(
        Memory(
            int(str(device)), known(row["allocated_bytes"]), known(row["reserved_bytes"]), sizes.get(int(str(device)))
        )
        for device, row in peaks.iterrows()
    )


def _asked(facts: Facts) -> Memory:
    """The peaks that the process knew of its device: the one that did most of its work."""
    context, kernels = facts.rank.context, facts.rank.kernels
    told = {} if context is None else context.rank.allocator
    if "most_reserved_bytes" not in told or not len(kernels):
        raise Missing("memory events", "Record with profile_memory=True, or diagnose profile --memory.")
    device = int(kernels["device"].mode().iloc[0])
    sizes = {one.index: one.memory_bytes or None for one in facts.rank.provenance.devices}
    return Memory(device, told.get("most_allocated_bytes"), told["most_reserved_bytes"], sizes.get(device))


@fact
def allocation_calls(facts: Facts) -> AllocationCalls:
    """Allocating calls of the training threads. Raises Missing without runtime calls."""
    if "launches" not in facts.rank.provenance.recorded:
        raise NO_CALLS if "device" in facts.rank.provenance.recorded else NO_DEVICE
    calls, used = api_calls(facts), steps(facts)
    inside = calls.of(*ALLOCATING) & (calls.start_ns >= used.start_ns) & (calls.start_ns < used.end_ns)
    total = int((calls.end_ns - calls.start_ns)[inside].sum())
    return AllocationCalls(int(inside.sum()), round_half_up(total, used.count))
