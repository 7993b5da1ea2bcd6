"""What do gradients take on the wire, in which type, and what would fewer bytes take?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.communication.arrivals import waits
from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.messages import exposed_ns
from diagnose.facts.communication.roles import Role, roles
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.matmuls import peaks
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals

GRADIENTS = (Role.BUCKET, Role.GRADIENT, Role.SHARD_REDUCE)

START_NS = 100_000
"""What a collective takes whatever it carries, at most: 15 to 99 us in nccl-tests, and the shortest of a trace."""

CAST_BYTES = 12
"""For each element of 4 bytes: it is read and written as 2, then read as 2 and written as 4."""


@dataclass(frozen=True)
class WideGradients:
    """Reductions of gradients on the device that go over the wire in 4 bytes an element. Numbers are per step."""

    role: Role
    ids: IntArray
    calls: int
    bytes: int
    ns: int
    """Sum of durations."""
    exposed_ns: int
    """Time of these while no compute ran."""
    halved_ns: int
    """Sum of durations if each took half of what it takes beyond START_NS, with two casts, and waited as long."""
    compared: bool
    """Waiting for other ranks is known."""

    @property
    def left(self) -> float:
        """`halved_ns` over `ns`."""
        return self.halved_ns / max(self.ns, 1)


@fact
def wide_gradients(facts: Facts) -> tuple[WideGradients, ...]:
    """By role, longest exposed first.

    Raises Missing like the table of collectives, without the type of any, and like `peaks` if there are some.
    """
    table, role_of = collective_table(facts), roles(facts)
    mine = ~table.on_host & np.isin(role_of.astype(str), [str(one) for one in GRADIENTS])
    if mine.any() and (table.element_bytes[mine] <= 0).all():
        raise Missing("types of collectives", "Record with PyTorch 2.2 or newer and NCCL.")
    found = [
        _wide(facts, role, rows)
        for role in GRADIENTS
        for rows in [np.flatnonzero(mine & (role_of == role) & (table.element_bytes == 4) & (table.bytes >= 0))]
        if table.in_steps[rows].any()
    ]
    return tuple(sorted(found, key=lambda one: -one.exposed_ns))


def _wide(facts: Facts, role: Role, rows: IntArray) -> WideGradients:
    table, used, known = collective_table(facts), steps(facts), waits(facts)
    inside = rows[table.in_steps[rows]]
    times = Intervals(table.times.starts[inside], table.times.ends[inside])
    lasted = times.ends - times.starts
    transfer = lasted if known is None else lasted - intervals.covered(times, known)
    start_ns = min(START_NS, int(transfer.min()))
    carried = int(table.bytes[inside].sum())
    cast_ns = carried / 4 * CAST_BYTES / peaks(facts).memory_gbps
    halved = lasted.sum() - ((transfer - start_ns) / 2).sum() + cast_ns
    return WideGradients(
        role=role,
        ids=table.ids[rows],
        calls=round_half_up(len(inside), used.count),
        bytes=round_half_up(carried, used.count),
        ns=round_half_up(int(lasted.sum()), used.count),
        exposed_ns=exposed_ns(facts, table, inside),
        halved_ns=round_half_up(round(float(halved)), used.count),
        compared=known is not None,
    )
