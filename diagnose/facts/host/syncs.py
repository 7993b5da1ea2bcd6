"""Where does the host wait for the device? Which call, how long, who asked, and whether every launch waits."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import NO_DEVICE, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import NO_CALLS, api_calls, asking_ops
from diagnose.facts.core.launches import launch_table
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.steps import steps
from diagnose.trace import enums
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray


class Sync(Struct, frozen=True):
    """Blocking calls of one kind, asked for by one op at one line."""

    call: str
    asked_by: str  # The outermost op around the call; "" if the program called it itself.
    site: Site | None
    calls: int  # In all used steps.
    blocked_ns: int  # Host time in the calls, per step.


@fact
def syncs(facts: Facts) -> tuple[Sync, ...]:
    """Blocking calls on the training threads in the used steps, longest first. Raises Missing without runtime calls."""
    if "launches" not in facts.rank.provenance.recorded:
        raise NO_CALLS if "device" in facts.rank.provenance.recorded else NO_DEVICE
    calls, used = api_calls(facts), steps(facts)
    inside = calls.blocks & (calls.start_ns >= used.start_ns) & (calls.start_ns < used.end_ns)
    ids = calls.ids[inside]
    names = facts.rank.spans["name"]
    dur = facts.rank.spans["dur_ns"].to_numpy()[ids]
    groups: dict[tuple[str, str, Site | None], list[int]] = {}
    asked = asking_ops(facts, ids)
    for call, op, site, blocked in zip(names.iloc[ids], asked, sites_of(facts, ids), dur, strict=True):
        group = groups.setdefault((str(call), str(names.iloc[op]) if op >= 0 else "", site), [0, 0])
        group[0] += 1
        group[1] += int(blocked)
    found = [
        Sync(call, op, site, count, round_half_up(blocked, used.count))
        for (call, op, site), (count, blocked) in groups.items()
    ]
    return tuple(sorted(found, key=lambda sync: -sync.blocked_ns))


@fact
def blocked_ns(facts: Facts) -> int:
    """Host time blocked in synchronising calls, ns per step. Raises Missing like syncs."""
    return int(np.sum([sync.blocked_ns for sync in syncs(facts)], dtype=np.int64))


LONG_KERNEL_NS = 50_000
"""Launches take the host 3 to 10 us: one that lasts as long as such a kernel waited for it (our choice)."""

ALIKE = (0.8, 1.2)  # A launch that lasts this share of its kernel's time is taken to have waited for it (our choice).

ALIKE_SHARE = 0.5
"""Of the launches of long kernels that take as long as their kernel, where all wait (msprof-analyze uses the same)."""

DEPTH = 2  # Queued before such a launch at most: launches also block when the queue is full, then hundreds are queued.


class BlockingLaunches(Struct, frozen=True):
    """How long the launches of kernels over LONG_KERNEL_NS took: with CUDA_LAUNCH_BLOCKING, as long as the kernels."""

    call_ids: IntArray  # Calls that launch one kernel, of any length.
    alike_share: float  # Share of the launches that lasted, over their kernels' time, as ALIKE says.
    depth_median: int
    """Work queued before the kernel when its launch begins; hundreds where launches block because the queue is full."""
    empty_queue_share: float  # Share of the launches that found nothing queued.

    @property
    def block(self) -> bool:
        """Whether launches seem to wait for their kernels, and not for a place in the queue."""
        return self.alike_share >= ALIKE_SHARE and self.depth_median <= DEPTH


@fact
def blocking_launches(facts: Facts) -> BlockingLaunches:
    """The comparison over the used steps. Raises Missing like launch_table, and without long kernels."""
    table, dur, launch = launch_table(facts), facts.rank.spans["dur_ns"].to_numpy(), device_work(facts).launch
    is_kernel = facts.rank.spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.KERNEL)
    calls, count = np.unique(launch, return_counts=True)
    single = calls[(count == 1) & (calls >= 0)]
    chosen = np.isin(table.call, single) & is_kernel[table.work] & (dur[table.work] > LONG_KERNEL_NS)
    if not chosen.any():
        raise Missing("kernels longer than 50 us", "Record steps with larger batches.")
    ratio = dur[table.call[chosen]] / dur[table.work[chosen]]
    return BlockingLaunches(
        call_ids=np.intersect1d(single, launch[is_kernel[device_work(facts).ids]]),
        alike_share=float(((ratio >= ALIKE[0]) & (ratio <= ALIKE[1])).mean()),
        depth_median=int(np.median(table.depth[chosen])),
        empty_queue_share=float((table.depth[chosen] == 0).mean()),
    )
