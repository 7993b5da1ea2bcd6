"""Device memory: the allocator's peaks, what is free, what grows, and who calls the driver's allocator in steps.

The framework's caching allocator makes no such calls once it is warm: each one in a steady step has a cause to remove.
"""

from enum import Enum

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import NO_DEVICE, device_time, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import ALLOCATING, NO_CALLS, ApiCalls, api_calls, asking_ops, enclosing_op
from diagnose.facts.core.inputs import grouped, name_codes, name_of
from diagnose.facts.core.spans import host_spans, sites_of, used_step
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import ApiKind


class Memory(Struct, frozen=True):
    """The framework's allocator on one device over the whole recording."""

    device: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None  # None where the recording has no totals (before 2022).
    capacity_bytes: int | None = None  # Of the device; None if it was not recorded.

    @property
    def free_share(self) -> float | None:
        """Share of the device's memory that the allocator never reserved; None if not known."""
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
    sizes = {device.index: device.memory_bytes or None for device in facts.rank.provenance.devices}
    events = facts.rank.memory[facts.rank.memory["device_type"] > 0]
    if not len(events):
        context, kernels = facts.rank.context, facts.rank.kernels
        told = {} if context is None else context.rank.allocator
        if "most_reserved_bytes" not in told or not len(kernels):
            raise Missing("memory events", "Record with profile_memory=True, or diagnose profile --memory.")
        device = int(kernels["device"].mode().iloc[0])  # The one that did most of the process's work.
        return (Memory(device, told.get("most_allocated_bytes"), told["most_reserved_bytes"], sizes.get(device)),)
    peaks = events.groupby("device")[["allocated_bytes", "reserved_bytes"]].max()
    return tuple(
        Memory(device, allocated if allocated >= 0 else None, reserved if reserved >= 0 else None, sizes.get(device))
        for device, allocated, reserved in peaks.reset_index().to_numpy().tolist()
    )


def require_calls(facts: Facts) -> None:
    """Raises Missing without runtime calls."""
    if "launches" not in facts.rank.provenance.recorded:
        raise NO_CALLS if "device" in facts.rank.provenance.recorded else NO_DEVICE


@fact
def allocation_calls(facts: Facts) -> AllocationCalls:
    """Allocating calls of the training threads. Raises Missing without runtime calls."""
    require_calls(facts)
    calls, used = api_calls(facts), steps(facts)
    inside = calls.of(*ALLOCATING) & (calls.start_ns >= used.start_ns) & (calls.start_ns < used.end_ns)
    total = int((calls.end_ns - calls.start_ns)[inside].sum())
    return AllocationCalls(int(inside.sum()), round_half_up(total, used.count))


UNUSED_SHARE = 0.5  # Of a machine's memory, taken as free where the CPU computes: what ranks hold is not recorded.


class HeadRoom(Struct, frozen=True):
    """Memory that this rank could use besides."""

    bytes: int
    on_host: bool  # Of the machine: UNUSED_SHARE of this rank's part; else what the device's allocator never reserved.


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
    if len(free) < len(known):
        raise Missing("free GPU memory", "Record with diagnose profile --memory.")
    return HeadRoom(max(min(free), 0), False)


LEAST_STEPS = 5  # Known ends of steps, at least: over fewer, batches of different sizes rise by chance.
EVEN = 0.5  # Of the median rise, at least: what is kept in every step is much the same, what varies is not. Chosen.


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
    found = (_growth(facts, one, events[events["device"] == one]) for one in events["device"].unique().tolist())
    return max(found, key=lambda one: one.step_bytes)


def _growth(facts: Facts, device: int, events: pd.DataFrame) -> MemoryGrowth:
    """Allocated bytes at each step's end on one device, and the kept blocks if they rise in every step."""
    ids = events.index.to_numpy().astype(np.int64)
    order = np.argsort(facts.rank.spans["start_ns"].to_numpy()[ids], kind="stable")
    start = facts.rank.spans["start_ns"].to_numpy()[ids[order]]
    ends = np.array([one.end_ns for one in facts.rank.steps], dtype=np.int64)
    last = np.searchsorted(start, ends, side="left") - 1
    at_ends = events["allocated_bytes"].to_numpy()[order][last[last >= 0]]
    rises = np.diff(at_ends)
    grows = len(at_ends) >= LEAST_STEPS and bool((rises >= EVEN * max(float(np.median(rises)), 1.0)).all())
    step, changed = np.searchsorted(ends, start, side="right"), events["bytes"].to_numpy()[order]
    return MemoryGrowth(
        device=device,
        ends_bytes=tuple(at_ends.tolist()),
        step_bytes=round(float(rises.mean())) if grows else 0,
        kept=_kept(facts, ids[order], step, changed) if grows else None,
    )


def _kept(facts: Facts, ids: IntArray, step: IntArray, changed: IntArray) -> Kept | None:
    """The tensor size that keeps most bytes, of those that grow in each step but the first; None if none does."""
    sizes, group = np.unique(np.abs(changed), return_inverse=True)
    steps = len(facts.rank.steps)
    kept = np.zeros((len(sizes), steps + 1), dtype=np.int64)  # By size, as addresses are not read.
    np.add.at(kept, (group.ravel(), step), np.sign(changed))
    every = kept[:, 1:steps]  # What the first step makes may stay: gradients, the optimizer's statistics.
    lasting = np.where((every > 0).all(axis=1), sizes * every.sum(axis=1), 0)
    if not lasting.any():
        return None
    size = int(lasting.argmax())
    made = ids[(group.ravel() == size) & (changed > 0) & (step > 0) & (step < steps)]
    names = (name_of(facts, op) for op in asking_ops(facts, made).tolist())
    places = list(zip(names, sites_of(facts, made), strict=True))
    op, site = max(places, key=places.count)
    return Kept(int(lasting[size]) // every.shape[1], op, site)


BURST = 4  # Frees in a row, at least, that look like a cache given back. Chosen: one tensor is freed by one call.
UNCACHED_FREES = 16  # Frees per step, at least, before most coming one by one says that nothing is cached. Chosen.


class Churn(str, Enum):
    """Why the driver's allocator is called."""

    EMPTY_CACHE = "empty_cache"  # The program: empty_cache on the stack; without stacks, many frees in a row in no op.
    RETRY = "retry"  # The allocator does, as no cached block fits and the device is full: other frees in a row.
    UNCACHED = "uncached"  # Tensors are freed one by one: the caching allocator is switched off.
    OTHER = "other"  # Single calls: growth, buffers of libraries.


class AllocatorCalls(Struct, frozen=True):
    """Calls of one function of the driver's allocator, asked for by one op at one line."""

    call: str
    kind: ApiKind
    asked_by: str  # The outermost op around the call; "" if the program called it outside any op.
    site: Site | None
    ids: IntArray
    total_calls: int  # In all used steps.
    host_ns: int  # Host time in the calls, per step.
    idle_ns: int | None  # Idle time of the device under them, per step; None without device work.
    churn: Churn


@fact
def allocator_calls(facts: Facts) -> tuple[AllocatorCalls, ...]:
    """The calls that occur in the used steps, by function, op and line; most host time first.

    Raises Missing without runtime calls.
    """
    require_calls(facts)
    calls, used, time = api_calls(facts), steps(facts), optional(device_time, facts)
    rows = np.flatnonzero(calls.of(*ALLOCATING))
    ids, times = calls.ids[rows], Intervals(calls.start_ns[rows], calls.end_ns[rows])
    asked, inside = asking_ops(facts, ids), used_step(facts, ids) >= 0
    idle = np.zeros(len(rows), dtype=np.int64) if time is None else intervals.covered(times, time.idle)
    churn, found = _churn(facts, calls, rows, inside), []
    for same, site in grouped(facts, ids, name_codes(facts, ids), name_codes(facts, asked)):
        counted, first = same[inside[same]], int(same[0])
        if not len(counted):
            continue
        found.append(
            AllocatorCalls(
                call=name_of(facts, int(ids[first])),
                kind=list(ApiKind)[calls.kind[rows[first]]],
                asked_by=name_of(facts, int(asked[first])),
                site=site,
                ids=ids[same],
                total_calls=len(counted),
                host_ns=round_half_up(int((times.ends - times.starts)[counted].sum()), used.count),
                idle_ns=None if time is None else round_half_up(int(idle[counted].sum()), used.count),
                churn=list(Churn)[int(np.bincount(churn[counted]).argmax())],
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.host_ns, one.call, one.asked_by)))


def _churn(facts: Facts, calls: ApiCalls, rows: IntArray, inside: npt.NDArray[np.bool_]) -> IntArray:
    """Position in `Churn` of each of the calls at `rows`; allocations share the reason of most frees."""
    op = enclosing_op(facts, calls.ids[rows])
    free = calls.of(ApiKind.FREE)[rows]
    burst = _bursts(calls, rows, op)
    single, frees = int((free & inside & (burst < BURST)).sum()), int((free & inside).sum())
    code = {churn: k for k, churn in enumerate(Churn)}
    found = np.full(len(rows), code[Churn.OTHER], dtype=np.int64)
    if 2 * single >= frees >= UNCACHED_FREES * steps(facts).count:
        found[free] = code[Churn.UNCACHED]
    else:
        found[free & (burst >= BURST)] = code[Churn.RETRY]
        if "stacks" not in facts.rank.provenance.recorded:  # else the frame says so, below
            found[free & (burst >= BURST) & (op < 0)] = code[Churn.EMPTY_CACHE]
    frames = host_spans(facts, SpanKind.PYTHON, named=lambda name: "empty_cache" in name or "emptyCache" in name)
    start, track = calls.start_ns[rows], calls.track[rows]
    emptying = intervals.innermost_at(start, track, frames.track, frames.start_ns, frames.end_ns) >= 0
    found[free & emptying] = code[Churn.EMPTY_CACHE]
    if frees:
        allocating = calls.of(ApiKind.MALLOC)[rows]
        found[allocating] = int(np.bincount(found[free & inside]).argmax())
    return found


def _bursts(calls: ApiCalls, rows: IntArray, op: IntArray) -> IntArray:
    """For each of the calls at `rows`, the length of the run of frees that it is in, on its thread and in one op.

    `op`: the innermost op of each. 0 for what is no free.
    """
    order = np.lexsort((calls.start_ns, calls.track))
    free = calls.of(ApiKind.FREE)[order]
    op_of = np.full(len(order), intervals.NONE, dtype=np.int64)
    op_of[rows] = op
    op_of, track = op_of[order], calls.track[order]
    goes_on = free[1:] & free[:-1] & (op_of[1:] == op_of[:-1]) & (track[1:] == track[:-1])
    run = np.cumsum(np.concatenate(([True], ~goes_on))) if len(order) else order
    size = np.zeros(len(order), dtype=np.int64)
    size[order] = np.where(free, np.bincount(run, minlength=1)[run], 0)
    return size[rows]


class AllocatorCause(Struct, frozen=True):
    """Calls that allocate and free device memory for one reason, per step."""

    churn: Churn
    names: tuple[str, ...]  # Of the functions.
    ids: IntArray
    calls: float
    later_share: float  # Share of the later half of the used steps with such calls: first steps allocate anyway.
    host_ns: int
    idle_ns: int | None  # Idle time of the device under them; None without device work.
    site: Site | None  # Where most of their host time is spent.

    @property
    def maps_memory(self) -> bool:
        """Whether they map memory at addresses reserved before: all the allocator does with expandable segments."""
        return any(name.endswith(("MemCreate", "MemMap", "MemUnmap", "MemRelease")) for name in self.names)

    @property
    def hip(self) -> bool:
        """Whether they are calls of ROCm's, not CUDA's."""
        return self.names[0].startswith("hip")


@fact
def allocator_causes(facts: Facts) -> tuple[AllocatorCause, ...]:
    """Calls of the used steps by reason, most host time first. Raises Missing like allocator_calls."""
    used, found = steps(facts), []
    groups = [one for one in allocator_calls(facts) if one.kind in (ApiKind.MALLOC, ApiKind.FREE)]
    for churn in Churn:
        if not (same := [group for group in groups if group.churn is churn]):
            continue
        ids = np.sort(np.concatenate([one.ids for one in same]))
        step = used_step(facts, ids)
        half = used.count // 2
        idle = [one.idle_ns for one in same if one.idle_ns is not None]
        found.append(
            AllocatorCause(
                churn=churn,
                names=tuple(sorted({one.call for one in same})),
                ids=ids,
                calls=sum(one.total_calls for one in same) / used.count,
                later_share=len(np.unique(step[step >= half])) / (used.count - half),
                host_ns=sum(one.host_ns for one in same),
                idle_ns=sum(idle) if idle else None,
                site=same[0].site,
            )
        )
    return tuple(sorted(found, key=lambda one: -one.host_ns))
