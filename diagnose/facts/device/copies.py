"""What is copied between host and device, how fast, and how much of it is exposed?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.intervals import Intervals


class Copies(Struct, frozen=True):
    """Copies of one direction and kind of host memory."""

    direction: Direction
    host_memory: HostMemory
    calls: int  # In all used steps.
    bytes: int | None  # Per step, of the copies whose size was recorded; None if of none.
    ns: int  # Device time, per step.
    exposed_ns: int  # Of it, while neither compute nor communication ran.
    host_ns: int  # Host time in the calls that started them, per step.
    bandwidth_bytes_per_s: float | None  # Bytes over device time, of the copies whose size was recorded.


@fact
def copies(facts: Facts) -> tuple[Copies, ...]:
    """Copies in the used steps, longest first; empty if there are none. Raises Missing without device work."""
    table, used, work = facts.rank.copies, steps(facts), device_work(facts)
    exposed = device_time(facts).exposed_copies
    position = np.searchsorted(work.ids, table.index.to_numpy())
    start, end, launch = work.start_ns[position], work.end_ns[position], work.launch[position]
    inside = (start >= used.start_ns) & (start < used.end_ns)
    dur = facts.rank.spans["dur_ns"].to_numpy()
    found = []
    for (direction, memory), rows in table[inside].groupby(["direction", "host_memory"], observed=True):
        mine = inside & table.index.isin(rows.index)
        size, took = table["bytes"].to_numpy()[mine], (end - start)[mine]
        known = size >= 0
        together = intervals.clip(intervals.union(Intervals(start[mine], end[mine])), used.start_ns, used.end_ns)
        calls = np.unique(launch[mine][launch[mine] >= 0])
        timed = int(took[known].sum())
        found.append(
            Copies(
                direction=Direction(direction),
                host_memory=HostMemory(memory),
                calls=int(mine.sum()),
                bytes=round_half_up(int(size[known].sum()), used.count) if known.any() else None,
                ns=round_half_up(int(took.sum()), used.count),
                exposed_ns=round_half_up(intervals.intersect(together, exposed).total, used.count),
                host_ns=round_half_up(int(dur[calls].sum()), used.count),
                bandwidth_bytes_per_s=float(size[known].sum()) / timed * 1e9 if timed else None,
            )
        )
    return tuple(sorted(found, key=lambda copy: -copy.ns))
