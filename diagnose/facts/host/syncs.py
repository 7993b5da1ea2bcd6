"""Where does the host wait for the device? Which call, how long, and who asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import NO_DEVICE, round_half_up
from diagnose.facts.core.host import NO_CALLS, api_calls, asking_ops
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.steps import steps
from diagnose.trace.frames import Site


@dataclass(frozen=True)
class Sync:
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
