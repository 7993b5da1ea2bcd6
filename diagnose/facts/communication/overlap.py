"""How much of the communication does compute hide, and how much could it? What would sharing out the update cost?"""

import numpy as np
from msgspec import Struct

from diagnose.facts.communication.collectives import CollectiveTable, collective_table
from diagnose.facts.communication.ddp import accumulation
from diagnose.facts.communication.host_collectives import host_collectives
from diagnose.facts.communication.peers import peers, waits
from diagnose.facts.communication.roles import Role, ranks_together, roles
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.spans import in_used_steps
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


PART_SHARE = 0.75
"""Of the elements whose gradients are reduced: an optimizer that updates fewer has a part of them (our choice)."""

_SHARDED = (Role.PARAMETERS, Role.SHARD_GATHER, Role.SHARD_REDUCE)


class ReplicatedUpdate(Struct, frozen=True):
    """The optimizer's work where ranks reduce gradients. Times are per step."""

    ranks: int  # That reduce gradients together; 0 if none are reduced.
    sharded: bool
    """Ranks update a part of the parameters each: they exchange parameters, or an optimizer has a part of them."""
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

    Half of what reducing them takes, as an all-reduce is a reduce-scatter and an all-gather: of the shortest of each
    size; without known waiting; with all of it, and twice that.
    """


_NONE = np.zeros(0, dtype=np.int64)
_NOTHING = ReplicatedUpdate(0, False, False, (), False, 0, _NONE, _NONE, 0, intervals.EMPTY, None, (0, 0, 0))


@fact
def replicated_update(facts: Facts) -> ReplicatedUpdate:
    """Raises Missing like the table of collectives; if gradients are reduced, like optimizer_steps, and if it is not
    known by how many ranks.

    Ranks of DistributedDataParallel have all parameters, and so have ranks that reduce all gradients by themselves.
    """
    table, role_of = collective_table(facts), roles(facts)
    rows = np.flatnonzero(np.isin(role_of.astype(str), [str(Role.BUCKET), str(Role.GRADIENT)]))
    rows = rows[in_used_steps(facts, table.ids[rows])]
    if not len(rows):
        return _NOTHING
    found = optimizer_steps(facts)
    sizes, rounds = _sizes(facts, table)[rows], _rounds(facts)
    main, begun = host_threads(facts).main, updates(facts)
    updated = max(sum(one.total_calls for one in found), 1)
    return ReplicatedUpdate(
        ranks=ranks_together(facts, table.group_size[rows]),
        sharded=any((role_of == one).any() for one in _SHARDED) or _has_a_part(facts, table, rows),
        split=bool(np.isin(role_of.astype(str), [str(Role.ACTIVATION), str(Role.STAGE)]).any()),
        optimizers=tuple(one.optimizer for one in found),
        on_cpu=any(one.on_cpu for one in found),
        update_ns=sum(one.host_ns if one.on_cpu else one.device_ns for one in found),
        work_ids=np.concatenate([one.work_ids for one in found]),
        op_ids=np.concatenate([one.op_ids for one in found]),
        track=main,
        times=begun.where(begun.track == main).times,
        gradient_bytes=int(sizes.sum()) // (updated * rounds) if (sizes >= 0).all() else None,
        gather_ns=_gather_ns(facts, table, rows, sizes, rounds),
    )


def _rounds(facts: Facts) -> int:
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
    lasted = (table.times.ends - table.times.starts)[rows]
    _, size = np.unique(sizes, return_inverse=True)
    shortest = np.full(int(size.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, size, lasted)
    transfer, others = lasted, optional(peers, facts)
    if others is not None and len(others.met):
        waits = dict(zip(others.met.tolist(), others.waits_ns.tolist(), strict=True))
        waited = np.array([waits.get(one, 0) for one in table.ids[rows].tolist()], dtype=np.int64)
        transfer = np.maximum(lasted - waited, 0)
    each = 2 * rounds * steps(facts).count
    most = 2 * int(lasted.sum())
    less, likely = (int(some.sum()) for some in (shortest[size], transfer))
    found = sorted(round_half_up(one, each) for one in (less, likely, most))
    return found[0], found[1], found[2]
