"""Does every data-parallel rank update all parameters, and what would it cost to share that out?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.communication.collectives import CollectiveTable, collective_table
from diagnose.facts.communication.ddp import accumulation
from diagnose.facts.communication.host_collectives import host_collectives
from diagnose.facts.communication.peers import peers
from diagnose.facts.communication.roles import Role, ranks_together, roles
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.spans import in_used_steps
from diagnose.facts.core.steps import steps
from diagnose.facts.optimizer.optimizer import optimizer_steps, updates
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals

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
