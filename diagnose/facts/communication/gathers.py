"""What is gathered from all ranks although no gradient needs it?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.host_collectives import Blocked, blocked_at, host_collectives, waited_for
from diagnose.facts.communication.messages import exposed_ns, issuing_ops
from diagnose.facts.communication.roles import Role, roles
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.names import DDP_FORWARD
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import host_spans, in_used_steps
from diagnose.facts.core.steps import steps
from diagnose.facts.optimizer.optimizer import updates
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

_GATHERS = ("allgather_", "_allgather_base_", "gather_")
_NO_FORWARD = Missing("where forward passes begin", "DistributedDataParallel marks them.")


@dataclass(frozen=True)
class HostGathers:
    """Gathering on the host after a step of the optimizer and before DDP's next forward pass: of results."""

    calls: int
    """Per step."""
    bytes: int | None
    """What a rank sends, per step; None if not known of all."""
    track: int
    """Of the main thread."""
    blocked: Blocked
    """From when the first of each row is asked for until the last is there, with what lies between them."""
    site: Site | None


@fact
def host_gathers(facts: Facts) -> HostGathers:
    """Of the used steps. Raises Missing like host_collectives, and if something is gathered and DDP is not used."""
    found, used, main = host_collectives(facts), steps(facts), host_threads(facts).main
    forward = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name == DDP_FORWARD).start_ns
    updated = np.sort(updates(facts).end_ns)
    turn = np.searchsorted(updated, found.begin_ns, side="right")
    after = np.append(updated, 0)[turn - 1]  # Before the first update turn is 0: of nothing.
    idle = (turn > 0) & (np.searchsorted(forward, after) == np.searchsorted(forward, found.begin_ns))
    gathers = np.isin(found.operation.astype(str), _GATHERS) & waited_for(facts, found, main)
    if gathers.any() and not len(forward):
        raise _NO_FORWARD
    rows = np.flatnonzero(gathers & idle & in_used_steps(facts, found.op_ids))
    first = np.concatenate(([True], np.diff(turn[rows]) != 0))[: len(rows)]
    last = np.append(first[1:], True)[: len(rows)]
    times = Intervals(found.begin_ns[rows[first]], found.end_ns[rows[last]])
    sent = found.bytes[rows]
    return HostGathers(
        calls=round_half_up(len(rows), used.count),
        bytes=round_half_up(int(sent.sum()), used.count) if len(rows) and (sent >= 0).all() else None,
        track=main,
        blocked=blocked_at(facts, intervals.union(times)),
        site=_site(facts, found.op_ids[rows]),
    )


@dataclass(frozen=True)
class DeviceGathers:
    """The same on the device: the model's forward pass has no part in it. Numbers are per step."""

    ids: IntArray
    calls: int
    bytes: int | None
    """What a rank gets; None if not known of all."""
    exposed_ns: int
    """Time of these while no compute ran, with waiting for other ranks."""
    site: Site | None


@fact
def device_gathers(facts: Facts) -> DeviceGathers:
    """Raises Missing like the table of collectives."""
    table = collective_table(facts)
    gathers = np.char.find(table.operation.astype(str), "gather") >= 0
    rows = np.flatnonzero(gathers & (roles(facts) == Role.RESULT) & ~table.on_host)
    inside, (ops, op_of) = rows[table.in_steps[rows]], issuing_ops(facts, table.ids[rows])
    sizes = table.bytes[inside]
    return DeviceGathers(
        ids=table.ids[rows],
        calls=round_half_up(len(inside), steps(facts).count),
        bytes=round_half_up(int(sizes.sum()), steps(facts).count) if len(sizes) and (sizes >= 0).all() else None,
        exposed_ns=exposed_ns(facts, table, inside),
        site=_site(facts, ops.ids[np.unique(op_of[op_of >= 0])]),
    )


def _site(facts: Facts, ops: IntArray) -> Site | None:
    return next((site for site in sites_of(facts, ops) if site is not None), None) if len(ops) else None
