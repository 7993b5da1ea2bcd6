"""How much of the communication does compute hide, and how much could it? What would sharing out the update cost?"""

import numpy as np
from msgspec import Struct

from diagnose.facts.communication.collectives import CollectiveTable, collective_table
from diagnose.facts.communication.ddp import accumulation
from diagnose.facts.communication.host_collectives import host_collectives
from diagnose.facts.communication.peers import peers, waits
from diagnose.facts.communication.roles import Role, of_roles, ranks_together, roles
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import known_per_step
from diagnose.facts.core.spans import NO_SPANS, in_used_steps
from diagnose.facts.core.steps import steps
from diagnose.facts.optimizer.optimizer import optimizer_steps, updates
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
    used, time, table = steps(facts), device_time(facts), collective_table(facts)
    inside = ~table.on_host & (table.times.ends > used.start_ns) & (table.times.starts < used.end_ns)
    found = []
    for name in sorted(set(table.operation[inside])):
        rows = np.flatnonzero(inside & (table.operation == name))
        running = intervals.clip(intervals.union_of(table.times, rows), used.start_ns, used.end_ns)
        exposed = intervals.intersect(running, time.exposed_communication).total
        ns, exposed_ns = (round_half_up(total, used.count) for total in (running.total, exposed))
        found.append(Collective(name, len(rows), ns, exposed_ns))
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
    waiting_ns: int | None  # Of `exposed_ns`, waiting for other ranks; None if not known of nearly all collectives.
    share: float  # `exposed_ns` over the step, without the waiting that is known.
    compute_ns: int  # Per step.
    hideable_ns: int  # What more would be hidden if HIDING_SHARE of the compute hid something; no `waiting_ns`.
    hideable_share: float  # The same as a share of the time of the kernels that are not hidden all the time.
    bytes: int | None  # What communication kernels carry, per step; None if the size of one is unknown.
    roles: tuple[ExposedRole, ...]  # Longest exposed first.


@fact
def exposure(facts: Facts) -> Exposure:
    """Exposed communication in the used steps; zeros if there is none. Raises Missing without device work."""
    work, used, time, table = device_work(facts), steps(facts), device_time(facts), collective_table(facts)
    mine = np.flatnonzero(work.work_class == WorkClass.COMMUNICATION)
    times = Intervals(work.start_ns[mine], work.end_ns[mine])
    is_open = intervals.covered(times, work.of(WorkClass.COMPUTE)) < times.ends - times.starts
    these = intervals.clip(intervals.union_of(times, is_open), used.start_ns, used.end_ns)
    known = waits(facts) if _compared(facts, table) else None
    waiting = 0 if known is None else intervals.intersect(time.exposed_communication, known).total
    transfer = time.exposed_communication.total - waiting
    hideable = time.exposed_communication.total - time.communication.total + HIDING_SHARE * time.compute.total
    hideable = min(max(hideable, 0.0), transfer)
    return Exposure(
        ns=round_half_up(time.communication.total, used.count),
        exposed_ns=round_half_up(time.exposed_communication.total, used.count),
        waiting_ns=None if known is None else round_half_up(waiting, used.count),
        share=transfer / max(used.window_ns, 1),
        compute_ns=round_half_up(time.compute.total, used.count),
        hideable_ns=round_half_up(round(hideable), used.count),
        hideable_share=hideable / max(these.total, 1),
        bytes=known_per_step(table.bytes[table.in_steps & ~table.on_host], used.count),
        roles=_by_role(facts, table, work.ids[mine[is_open]], known),
    )


def _by_role(facts: Facts, table: CollectiveTable, ids: IntArray, waiting: Intervals | None) -> tuple[ExposedRole, ...]:
    """Exposed device communication by role, most exposed first. `ids`: collectives with exposed time."""
    used, exposed, role_of = steps(facts), device_time(facts).exposed_communication, roles(facts)
    transfer = exposed if waiting is None else intervals.subtract(exposed, waiting)
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
    """Whether waiting is known from other ranks for COMPARED_SHARE of device collectives' time; True without any."""
    others, mine = optional(peers, facts), table.in_steps & ~table.on_host
    times = (table.times.ends - table.times.starts)[mine]
    met = np.isin(table.ids[mine], others.met if others is not None else [])
    return bool(times[met].sum() >= COMPARED_SHARE * times.sum())


PART_SHARE = 0.75  # Of the elements with reduced gradients: an optimizer that updates fewer has a part (our choice).
_SHARDED = (Role.PARAMETERS, Role.SHARD_GATHER, Role.SHARD_REDUCE)


class ReplicatedUpdate(Struct, frozen=True):
    """The optimizer's work where ranks reduce gradients. Times are per step."""

    ranks: int  # That reduce gradients together; 0 if none are reduced.
    sharded: bool  # Each rank updates a part of the parameters: they are exchanged, or an optimizer has a part of them.
    split: bool  # The model is split over other ranks besides, so that its parameters may be DTensors.
    optimizers: tuple[str, ...]
    on_cpu: bool
    update_ns: int  # Device time of updates; where the CPU trains, time on the host.
    work_ids: IntArray  # Device work of updates.
    op_ids: IntArray  # Outermost host ops of updates.
    track: int  # Of the main thread.
    times: Intervals  # When it updates; of a step with a closure, after the closure.
    gradient_bytes: int | None  # Reduced for one update; None unknown.
    gather_ns: tuple[int, int, int]
    """What gathering as many bytes would take, less to more.

    Half of what reducing takes, as an all-reduce is a reduce-scatter and an all-gather; the least, middle and most of:
    each as long as the shortest of its size; each without known waiting; twice each with waiting.
    """


_NONE = NO_SPANS.ids
_NOTHING = ReplicatedUpdate(0, False, False, (), False, 0, _NONE, _NONE, 0, intervals.EMPTY, None, (0, 0, 0))


@fact
def replicated_update(facts: Facts) -> ReplicatedUpdate:
    """Raises Missing like the table of collectives; if gradients are reduced, like optimizer_steps, and if it is not
    known by how many ranks.

    Ranks of DistributedDataParallel have all parameters, and so have ranks that reduce all gradients by themselves.
    """
    table = collective_table(facts)
    rows = np.flatnonzero(of_roles(facts, Role.BUCKET, Role.GRADIENT))
    rows = rows[in_used_steps(facts, table.ids[rows])]
    if not len(rows):
        return _NOTHING
    found = optimizer_steps(facts)
    sizes, rounds = _sizes(facts, table)[rows], _rounds(facts)
    main, calls = host_threads(facts).main, updates(facts)
    updated = max(sum(one.total_calls for one in found), 1)
    return ReplicatedUpdate(
        ranks=ranks_together(facts, table.group_size[rows]),
        sharded=bool(of_roles(facts, *_SHARDED).any()) or _has_a_part(facts, table, rows),
        split=bool(of_roles(facts, Role.ACTIVATION, Role.STAGE).any()),
        optimizers=tuple(one.optimizer for one in found),
        on_cpu=any(one.on_cpu for one in found),
        update_ns=sum(one.host_ns if one.on_cpu else one.device_ns for one in found),
        work_ids=np.concatenate([one.work_ids for one in found]),
        op_ids=np.concatenate([one.op_ids for one in found]),
        track=main,
        times=calls.where(calls.track == main).times,
        gradient_bytes=int(sizes.sum()) // (updated * rounds) if (sizes >= 0).all() else None,
        gather_ns=_gather_ns(facts, table, rows, sizes, rounds),
    )


def _rounds(facts: Facts) -> int:
    """Rounds of gradient reductions for each step of the optimizer; 1 if unknown, or if they differ."""
    known = optional(accumulation, facts)
    return max(known.rounds, 1) if known is not None and known.alike else 1


def _sizes(facts: Facts, table: CollectiveTable) -> IntArray:
    """Bytes of each row of the table; those on the host by the inputs of the ops that asked for them."""
    found = table.bytes.copy()
    if table.on_host.any():
        known = host_collectives(facts)
        size = dict(zip(known.ids.tolist(), known.bytes.tolist(), strict=True))
        found[table.on_host] = [size.get(one, -1) for one in table.ids[table.on_host].tolist()]
    return found


def _has_a_part(facts: Facts, table: CollectiveTable, rows: IntArray) -> bool:
    """Whether the optimizers' parameters have fewer elements than the gradients that are reduced for one update."""
    context = facts.rank.context
    own = [optimizer.elements for optimizer in context.rank.optimizers] if context is not None else []
    elements = table.bytes[rows] // np.maximum(table.element_bytes[rows], 1)
    if not own or None in own or (table.element_bytes[rows] <= 0).any():
        return False
    calls = max(optimizer_step.total_calls for optimizer_step in optimizer_steps(facts))
    return sum(one or 0 for one in own) < PART_SHARE * int(elements.sum()) / (max(calls, 1) * _rounds(facts))


def _gather_ns(
    facts: Facts, table: CollectiveTable, rows: IntArray, sizes: IntArray, rounds: int
) -> tuple[int, int, int]:
    """Low, likely and high ns per step to gather updated parameters: half of what all-reduces of gradients take."""
    dur_ns = (table.times.ends - table.times.starts)[rows]
    _, size = np.unique(sizes, return_inverse=True)
    shortest = np.full(int(size.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, size, dur_ns)
    job_peers = optional(peers, facts)
    waited = {} if job_peers is None else dict(zip(job_peers.met.tolist(), job_peers.waits_ns.tolist(), strict=True))
    transfer = [
        max(ns - waited.get(one, 0), 0) for one, ns in zip(table.ids[rows].tolist(), dur_ns.tolist(), strict=True)
    ]
    totals = (int(shortest[size].sum()), sum(transfer), 2 * int(dur_ns.sum()))
    less, likely, most = sorted(round_half_up(total, 2 * rounds * steps(facts).count) for total in totals)
    return less, likely, most
