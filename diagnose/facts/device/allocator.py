"""Which calls of the driver's allocator does the program make in its steps, who asks for them, and why?

The framework's caching allocator makes none once it is warm: each one in a steady step has a cause to be removed.
"""

from enum import Enum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import NO_DEVICE, device_time, round_half_up
from diagnose.facts.core.host import ALLOCATING, NO_CALLS, ApiCalls, api_calls, asking_ops, enclosing_op
from diagnose.facts.core.spans import host_spans, members, sites_of, used_step
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import ApiKind

BURST = 4  # Frees in a row, at least, that look like a cache given back. Chosen: one tensor is freed by one call.

UNCACHED_FREES = 16
"""Frees per step, at least, before most of them coming one by one says that nothing is cached. Chosen."""


class Churn(str, Enum):
    """Why the driver's allocator is called."""

    EMPTY_CACHE = "empty_cache"
    """The program gives the cache back: torch.cuda.empty_cache on the stack; without stacks, many frees in a row
    outside any op."""
    RETRY = "retry"
    """The allocator gives its cache back by itself, because no cached block fits and the device is full: other frees in
    a row."""
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
    steps_seen: int  # Used steps with such a call.
    host_ns: int  # Host time in the calls, per step.
    idle_ns: int | None  # Idle time of the device under them, per step; None without device work.
    churn: Churn


@fact
def allocator_calls(facts: Facts) -> tuple[AllocatorCalls, ...]:
    """The calls that occur in the used steps, by function, op and line; most host time first.

    Raises Missing without runtime calls.
    """
    if "launches" not in facts.rank.provenance.recorded:
        raise NO_CALLS if "device" in facts.rank.provenance.recorded else NO_DEVICE
    calls = api_calls(facts)
    rows = np.flatnonzero(calls.of(*ALLOCATING))
    asked = asking_ops(facts, calls.ids[rows])
    sites = sites_of(facts, calls.ids[rows])
    group, first = _groups(facts, calls.ids[rows], asked, sites)
    times = Intervals(calls.start_ns[rows], calls.end_ns[rows])
    used, time = steps(facts), optional(device_time, facts)
    step = used_step(facts, calls.ids[rows])
    inside = step >= 0
    idle = np.zeros(len(rows), dtype=np.int64) if time is None else intervals.covered(times, time.idle)
    churn, names = _churn(facts, calls, rows, inside), facts.rank.spans["name"]
    found = []
    for row, same in zip(first.tolist(), members(group, len(first)), strict=True):
        counted = same[inside[same]]
        if not len(counted):
            continue
        ids = calls.ids[rows[same]]
        found.append(
            AllocatorCalls(
                call=str(names.iloc[ids[0]]),
                kind=list(ApiKind)[calls.kind[rows[row]]],
                asked_by=str(names.iloc[asked[row]]) if asked[row] >= 0 else "",
                site=sites[row],
                ids=ids,
                total_calls=len(counted),
                steps_seen=len(np.unique(step[counted])),
                host_ns=round_half_up(int((times.ends - times.starts)[counted].sum()), used.count),
                idle_ns=None if time is None else round_half_up(int(idle[counted].sum()), used.count),
                churn=_CHURNS[int(np.bincount(churn[counted]).argmax())],
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.host_ns, one.call, one.asked_by)))


_CHURNS = list(Churn)


def _groups(facts: Facts, ids: IntArray, asked: IntArray, sites: list[Site | None]) -> tuple[IntArray, IntArray]:
    """Number of each call's group (function, asking op's name, line), and the first call of each group."""
    codes = facts.rank.spans["name"].cat.codes.to_numpy()
    numbers: dict[Site | None, int] = {}
    site = np.array([numbers.setdefault(one, len(numbers)) for one in sites], dtype=np.int64)
    keys = np.stack([codes[ids], np.where(asked >= 0, codes[asked], intervals.NONE), site])
    _, first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    return group.ravel(), first


def _churn(facts: Facts, calls: ApiCalls, rows: IntArray, inside: npt.NDArray[np.bool_]) -> IntArray:
    """Position in `Churn` of each of the calls at `rows`; allocations share the reason of most frees."""
    op = enclosing_op(facts, calls.ids[rows])
    free = calls.of(ApiKind.FREE)[rows]
    burst = _bursts(calls, rows, op)
    single, frees = int((free & inside & (burst < BURST)).sum()), int((free & inside).sum())
    found = np.full(len(rows), _CHURNS.index(Churn.OTHER), dtype=np.int64)
    if 2 * single >= frees >= UNCACHED_FREES * steps(facts).count:
        found[free] = _CHURNS.index(Churn.UNCACHED)
    else:
        found[free & (burst >= BURST)] = _CHURNS.index(Churn.RETRY)
        if "stacks" not in facts.rank.provenance.recorded:  # else the frame says so, below
            found[free & (burst >= BURST) & (op < 0)] = _CHURNS.index(Churn.EMPTY_CACHE)
    frames = host_spans(facts, SpanKind.PYTHON, named=lambda name: "empty_cache" in name or "emptyCache" in name)
    start, track = calls.start_ns[rows], calls.track[rows]
    emptying = intervals.innermost_at(start, track, frames.track, frames.start_ns, frames.end_ns) >= 0
    found[free & emptying] = _CHURNS.index(Churn.EMPTY_CACHE)
    if frees:
        allocating = calls.of(ApiKind.MALLOC)[rows]
        found[allocating] = int(np.bincount(found[free & inside]).argmax())
    return found


def _bursts(calls: ApiCalls, rows: IntArray, op: IntArray) -> IntArray:
    """For each of the calls at `rows`, how many frees follow each other around it on its thread, in the same op.

    0 for what is no free.
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
    later_share: float
    """Share of the later half of the used steps that have such calls: what the first steps need is there by then."""
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
    groups = [
        allocator_call
        for allocator_call in allocator_calls(facts)
        if allocator_call.kind in (ApiKind.MALLOC, ApiKind.FREE)
    ]
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
