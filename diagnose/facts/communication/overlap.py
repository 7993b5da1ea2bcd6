"""How much of the communication does compute hide, and how much could it?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.communication.collectives import CollectiveTable, collective_table
from diagnose.facts.communication.peers import peers, waits
from diagnose.facts.communication.roles import Role, roles
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals

HIDING_SHARE = 0.9  # Share of the compute that can hide communication; what it depends on can hide none (our choice).

COMPARED_SHARE = 0.9
"""Of the time of collectives: if less of it was compared with other ranks', waiting is not told from transfer, as it
may be anywhere in the rest (our choice)."""


class Collective(Struct, frozen=True):
    """Communication kernels of one operation."""

    operation: str
    calls: int  # In all used steps.
    ns: int  # Time in which at least one ran, per step: transfer and waiting for other ranks together.
    exposed_ns: int  # Of it, while no compute ran.


class Communication(Struct, frozen=True):
    """Communication on the device, ns per step. From one rank transfer and waiting cannot be told apart."""

    ns: int
    exposed_ns: int
    collectives: tuple[Collective, ...]  # Longest first.


@fact
def communication(facts: Facts) -> Communication:
    """Communication in the used steps; zeros if there is none. Raises Missing without device work."""
    used, time = steps(facts), device_time(facts)
    table = collective_table(facts)
    inside = ~table.on_host & (table.times.ends > used.start_ns) & (table.times.starts < used.end_ns)
    start, end, operation = table.times.starts[inside], table.times.ends[inside], table.operation[inside]
    found = []
    for name in sorted(set(operation)):
        these = operation == name
        together = intervals.clip(intervals.union(Intervals(start[these], end[these])), used.start_ns, used.end_ns)
        exposed = intervals.intersect(together, time.exposed_communication).total
        found.append(
            Collective(
                name, int(these.sum()), round_half_up(together.total, used.count), round_half_up(exposed, used.count)
            )
        )
    return Communication(
        ns=round_half_up(time.communication.total, used.count),
        exposed_ns=round_half_up(time.exposed_communication.total, used.count),
        collectives=tuple(sorted(found, key=lambda one: -one.ns)),
    )


class ExposedRole(Struct, frozen=True):
    """Exposed communication for one purpose."""

    role: Role
    ids: IntArray  # Communication kernels that are not hidden all the time.
    ns: int  # Communication, per step.
    exposed_ns: int  # Of it, while no compute ran, per step. What two roles' kernels share counts for both.
    share: float  # The same over the step, without the waiting that is known.


class Exposure(Struct, frozen=True):
    """Communication on the device that compute does not hide, and how much of it there is compute enough to hide."""

    ns: int  # Communication, per step: transfer and waiting for other ranks together.
    exposed_ns: int  # Of it, while no compute ran.
    waiting_ns: int | None
    """Of `exposed_ns`, waiting for other ranks to come; None if that is not known of nearly all collectives."""
    share: float  # `exposed_ns` over the step, without the waiting that is known.
    compute_ns: int  # Per step.
    hideable_ns: int  # What more would be hidden if HIDING_SHARE of the compute hid something; no `waiting_ns`.
    hideable_share: float  # The same as a share of the time of the kernels that are not hidden all the time.
    bytes: int | None
    """What the communication kernels that start in a step carry, per step; None if the size of one is unknown."""
    roles: tuple[ExposedRole, ...]  # Longest exposed first.


@fact
def exposure(facts: Facts) -> Exposure:
    """Exposed communication in the used steps; zeros if there is none. Raises Missing without device work."""
    work, used, time = device_work(facts), steps(facts), device_time(facts)
    mine = np.flatnonzero(work.work_class == WorkClass.COMMUNICATION)
    times = Intervals(work.start_ns[mine], work.end_ns[mine])
    open_ns = times.ends - times.starts - intervals.covered(times, work.of(WorkClass.COMPUTE))
    exposed = Intervals(times.starts[open_ns > 0], times.ends[open_ns > 0])
    these = intervals.clip(intervals.union(exposed), used.start_ns, used.end_ns)
    hideable = time.exposed_communication.total - time.communication.total + HIDING_SHARE * time.compute.total
    table = collective_table(facts)
    known = waits(facts) if _compared(facts, table) else None
    waiting = 0 if known is None else intervals.intersect(time.exposed_communication, known).total
    transfer = time.exposed_communication.total - waiting
    hideable = min(max(hideable, 0.0), transfer)
    carried = table.bytes[table.in_steps & ~table.on_host]
    return Exposure(
        ns=round_half_up(time.communication.total, used.count),
        exposed_ns=round_half_up(time.exposed_communication.total, used.count),
        waiting_ns=None if known is None else round_half_up(waiting, used.count),
        share=transfer / max(used.window_ns, 1),
        compute_ns=round_half_up(time.compute.total, used.count),
        hideable_ns=round_half_up(round(hideable), used.count),
        hideable_share=hideable / max(these.total, 1),
        bytes=None if (carried < 0).any() else round_half_up(int(carried.sum()), used.count),
        roles=_by_role(facts, table, work.ids[mine[open_ns > 0]], known),
    )


def _by_role(facts: Facts, table: CollectiveTable, ids: IntArray, known: Intervals | None) -> tuple[ExposedRole, ...]:
    used, exposed, role_of = steps(facts), device_time(facts).exposed_communication, roles(facts)
    transfer = exposed if known is None else intervals.subtract(exposed, known)
    found = []
    for role in sorted(set(role_of[~table.on_host].tolist()), key=lambda one: one.value):
        rows = np.flatnonzero((role_of == role) & ~table.on_host)
        running = intervals.clip(intervals.union_of(table.times, rows), used.start_ns, used.end_ns)
        found.append(
            ExposedRole(
                role=role,
                ids=ids[np.isin(ids, table.ids[rows])],
                ns=round_half_up(running.total, used.count),
                exposed_ns=round_half_up(intervals.intersect(running, exposed).total, used.count),
                share=intervals.intersect(running, transfer).total / max(used.window_ns, 1),
            )
        )
    return tuple(sorted(found, key=lambda one: -one.exposed_ns))


def _compared(facts: Facts, table: CollectiveTable) -> bool:
    """Whether the other ranks' recordings tell of nearly all collectives on the device who waited."""
    others, mine = optional(peers, facts), table.in_steps & ~table.on_host
    times = (table.times.ends - table.times.starts)[mine]
    met = np.isin(table.ids[mine], others.met if others is not None else [])
    return bool(times[met].sum() >= COMPARED_SHARE * times.sum())
