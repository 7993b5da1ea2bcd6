"""Device memory: the allocator's peaks, what is free, what grows, and calls that allocate inside steps."""

import numpy as np
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import NO_DEVICE, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import ALLOCATING, NO_CALLS, api_calls, asking_ops
from diagnose.facts.core.inputs import name_of
from diagnose.facts.core.spans import sites_of
from diagnose.facts.core.steps import steps
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray


class Memory(Struct, frozen=True):
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


class AllocationCalls(Struct, frozen=True):
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


UNUSED_SHARE = 0.5
"""Of a machine's memory, taken to be free for its ranks where the CPU computes: what they hold is not recorded (our
choice)."""


class HeadRoom(Struct, frozen=True):
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
        raise Missing("free GPU memory", "Record with diagnose profile --memory.")
    return HeadRoom(max(min(free), 0), False)


LEAST_STEPS = 5
"""Ends of steps that have to be known: batches of different sizes rise by chance over fewer (rule catalogue)."""

EVEN = 0.5
"""Of the median rise, at least: what is kept in every step is much the same, what varies is not (our choice)."""


class Kept(Struct, frozen=True):
    """Tensors of one size of which every step allocates more than are freed."""

    bytes: int  # Per step, of all of them.
    op: str  # The outermost op that allocates most of them; "" if none does.
    site: Site | None


class MemoryGrowth(Struct, frozen=True):
    """Memory in use on the device where it grows most."""

    device: int
    ends_bytes: tuple[int, ...]  # At the end of each step.
    step_bytes: int  # How much more each step leaves in use; 0 unless it rises in every step, and evenly.
    kept: Kept | None  # What is most of that; None if no size of tensors tells, and where nothing grows.


@fact
def memory_growth(facts: Facts) -> MemoryGrowth:
    """Over all recorded steps.

    Raises Missing without memory events that tell the total, and with fewer than LEAST_STEPS steps.
    """
    events = facts.rank.memory
    events = events[(events["device_type"] > 0) & (events["allocated_bytes"] >= 0)]
    if not len(events):
        raise Missing("memory events", "Record with profile_memory=True, or diagnose profile --memory.")
    if len(facts.rank.steps) < LEAST_STEPS:
        raise Missing(f"memory of {LEAST_STEPS} steps", "Profile more steps with profile_memory=True.")
    found = [
        _growth(facts, device, events[events["device"] == device]) for device in events["device"].unique().tolist()
    ]
    return max(found, key=lambda one: one.step_bytes)


def _growth(facts: Facts, device: int, events: pd.DataFrame) -> MemoryGrowth:
    ids = events.index.to_numpy().astype(np.int64)
    order = np.argsort(facts.rank.spans["start_ns"].to_numpy()[ids], kind="stable")
    start = facts.rank.spans["start_ns"].to_numpy()[ids[order]]
    ends = np.array([one.end_ns for one in facts.rank.steps], dtype=np.int64)
    last = np.searchsorted(start, ends, side="left") - 1
    known = events["allocated_bytes"].to_numpy()[order][last[last >= 0]]
    rises = np.diff(known)
    grows = len(known) >= LEAST_STEPS and bool((rises >= EVEN * max(float(np.median(rises)), 1.0)).all())
    step, changed = np.searchsorted(ends, start, side="right"), events["bytes"].to_numpy()[order]
    return MemoryGrowth(
        device=device,
        ends_bytes=tuple(known.tolist()),
        step_bytes=round(float(rises.mean())) if grows else 0,
        kept=_kept(facts, ids[order], step, changed) if grows else None,
    )


def _kept(facts: Facts, ids: IntArray, step: IntArray, changed: IntArray) -> Kept | None:
    """By the size of tensors: addresses are not read, so that what is freed is known by its size alone."""
    sizes, group = np.unique(np.abs(changed), return_inverse=True)
    steps = len(facts.rank.steps)
    left = np.zeros((len(sizes), steps + 1), dtype=np.int64)
    np.add.at(left, (group.ravel(), step), np.sign(changed))
    every = left[:, 1:steps]  # What the first step makes may stay: gradients, the optimizer's statistics.
    lasting = np.where((every > 0).all(axis=1), sizes * every.sum(axis=1), 0)
    if not lasting.any():
        return None
    size = int(lasting.argmax())
    made = ids[(group.ravel() == size) & (changed > 0) & (step > 0) & (step < steps)]
    ops, sites = asking_ops(facts, made), sites_of(facts, made)
    names = [name_of(facts, int(op)) for op in ops]
    places = list(zip(names, sites, strict=True))
    op, site = max(places, key=places.count)
    return Kept(int(lasting[size]) // every.shape[1], op, site)
