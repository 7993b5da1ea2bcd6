"""What does the CPU compute while the device waits? Ops that start nothing on the device, by name and line."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import NO_DEVICE, round_half_up
from diagnose.facts.core.causes import IDLE_CAUSES, TimeCause
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_activities, host_compute_ops
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.names import grouped, name_codes, name_of
from diagnose.facts.core.spans import in_used_steps, require_ops
from diagnose.facts.core.steps import steps
from diagnose.facts.device.transfers import host_born
from diagnose.facts.host.callees import whole_calls
from diagnose.trace import intervals
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals


class HostCompute(Struct, frozen=True):
    """Calls of one op that computes on the CPU, at one line, at least one of them in the used steps."""

    op: str
    site: Site | None
    ids: IntArray  # The ops, in the whole recording.
    move_ids: IntArray  # The ops that copy what they made out of nothing to the device.
    calls: int  # In all used steps.
    ns: int  # Per step.
    idle_ns: int
    """Of it, in idle gaps of the device with cause HOST_COMPUTE, per step: not what follows a wait for the device, as
    without that it would run beside the device's work."""
    share: float  # `idle_ns` over the step.


@fact
def host_compute(facts: Facts) -> tuple[HostCompute, ...]:
    """By op and line, most idle time first. Raises Missing without device work, or without ops.

    Without what is part of something with a name of its own: loading, compiling, a checkpoint, a call of a logger.
    """
    if not len(device_work(facts).ids):
        raise NO_DEVICE
    require_ops(facts)
    ids, spans, used = host_compute_ops(facts), facts.rank.spans, steps(facts)
    start, ns = (spans[name].to_numpy()[ids] for name in ("start_ns", "dur_ns"))
    computing = intervals.subtract(host_activities(facts)[TimeCause.HOST_COMPUTE], whole_calls(facts))
    own = intervals.covered(Intervals(start, start + ns), computing) > ns // 2
    ids, start, ns = ids[own], start[own], ns[own]
    gaps = idle_gaps(facts)
    idle = gaps.gaps.where(gaps.cause == IDLE_CAUSES.index(TimeCause.HOST_COMPUTE))
    seen, born, found = in_used_steps(facts, ids), host_born(facts), list[HostCompute]()
    for rows, site in grouped(facts, ids, name_codes(facts, ids)):
        mine = rows[seen[rows]]
        if len(mine):
            pieces = intervals.intersect(intervals.union(Intervals(start[mine], (start + ns)[mine])), idle)
            idle_ns = round_half_up(pieces.total, used.count)
            found.append(
                HostCompute(
                    op=name_of(facts, int(ids[rows[0]])),
                    site=site,
                    ids=ids[rows],
                    move_ids=np.concatenate([ids[:0], *(one.move_ids[np.isin(one.ids, ids[rows])] for one in born)]),
                    calls=len(mine),
                    ns=round_half_up(int(ns[mine].sum()), used.count),
                    idle_ns=idle_ns,
                    share=idle_ns / max(used.mean_ns, 1),
                )
            )
    return tuple(sorted(found, key=lambda one: -one.idle_ns))
