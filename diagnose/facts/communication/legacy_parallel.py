"""Do several GPUs train by DataParallel, or exchange gradients over the host?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.communication.bandwidth import all_reduce_ns
from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.host_collectives import Blocked, blocked_at, host_collectives
from diagnose.facts.communication.machines import ranks_together, share_a_machine
from diagnose.facts.communication.peers import peers
from diagnose.facts.communication.roles import Role, roles
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.spans import host_spans, in_used_steps, launched_in, on_training_threads
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.enums import Direction, SpanKind
from diagnose.trace.intervals import IntArray, Intervals

_WORKS = (SpanKind.OP, SpanKind.RUNTIME, SpanKind.DRIVER, SpanKind.LOADER)

_FORWARD = "DataParallel.forward"
_MOVES = frozenset(
    (*(f"{name}{end}" for name in ("Broadcast", "Scatter", "Gather") for end in ("", "Backward")), "ReduceAddCoalesced")
)
"""Functions of torch.nn.parallel by which DataParallel copies parameters, inputs, outputs and gradients."""


@dataclass(frozen=True)
class DataParallelUse:
    """Training by torch.nn.DataParallel. Times are per step."""

    devices: int
    """That compute in this process; 0 if DataParallel is not used."""
    ids: IntArray
    """Device work that moves things between them."""
    ns: int
    """Time in which some of it ran."""
    op_ids: IntArray
    """Host ops that ask for it."""
    op_ns: int


@fact
def data_parallel_use(facts: Facts) -> DataParallelUse:
    """Of the used steps. Raises Missing like steps."""
    used, work, none = steps(facts), device_work(facts), np.zeros(0, dtype=np.int64)
    if not len(host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name == _FORWARD).ids):
        return DataParallelUse(0, none, 0, none, 0)
    device = facts.rank.tracks["device"].to_numpy()[work.track]
    between = facts.rank.copies.index[(facts.rank.copies["direction"] == Direction.P2P.value).to_numpy()].to_numpy()
    moves = (work.work_class == WorkClass.COMMUNICATION) | np.isin(work.ids, between)
    running = intervals.union(Intervals(work.start_ns[moves], work.end_ns[moves]))
    running = intervals.clip(running, used.start_ns, used.end_ns)
    ops = host_spans(facts, SpanKind.OP, SpanKind.ANNOTATION, named=lambda name: name in _MOVES).outermost()
    return DataParallelUse(
        devices=len(np.unique(device[work.work_class == WorkClass.COMPUTE])),
        ids=work.ids[moves],
        ns=round_half_up(running.total, used.count),
        op_ids=ops.ids,
        op_ns=round_half_up(ops.in_steps(facts).times.total, used.count),
    )


@dataclass(frozen=True)
class HostReductions:
    """Reductions on the host of gradients that a device has computed. Numbers are per step."""

    calls: int
    """0 if there are none."""
    bytes: int | None
    """None unknown."""
    ns: int
    """Time in which one was running."""
    backend: str
    """That carries them out: gloo or mpi."""
    track: int
    """Of the main thread."""
    blocked: Blocked
    """The main thread, while the training does nothing but wait for them."""
    copy_ids: IntArray
    """Copies of gradients to the host and back."""
    ranks: int
    nccl_ns: int
    """What they would take at most over the devices' links."""
    one_machine: bool | None
    """All ranks are on one; None if that is not known."""
    shared: bool
    """Ranks are known to share a device, which NCCL refuses."""


@fact
def host_reductions(facts: Facts) -> HostReductions:
    """Of the used steps; none where the CPU trains, or no kernel ran.

    Raises Missing like the table of collectives; if there are some, like host_collectives, and if it is not known how
    many ranks there are.
    """
    table, role_of, used = collective_table(facts), roles(facts), steps(facts)
    main, work = host_threads(facts).main, device_work(facts)
    rows = np.flatnonzero(table.on_host & np.isin(role_of.astype(str), [str(Role.BUCKET), str(Role.GRADIENT)]))
    inside = rows[in_used_steps(facts, table.ids[rows])]
    none = np.zeros(0, dtype=np.int64)
    if not len(inside) or trains_on_cpu(facts) or not (work.work_class == WorkClass.COMPUTE).any():
        return HostReductions(0, None, 0, "", main, blocked_at(facts, intervals.EMPTY), none, 0, 0, None, False)
    known = host_collectives(facts)
    size = dict(zip(known.ids.tolist(), known.bytes.tolist(), strict=True))
    sizes = np.array([size.get(one, -1) for one in table.ids[inside].tolist()], dtype=np.int64)
    ranks = ranks_together(facts, table.group_size[inside])
    calls = round_half_up(len(inside), used.count)
    carried = round_half_up(int(sizes.sum()), used.count) if (sizes >= 0).all() else None
    running = intervals.union_of(table.times, rows)
    first = str(facts.rank.spans["name"].iloc[table.ids[inside[0]]])
    return HostReductions(
        calls=calls,
        bytes=carried,
        ns=round_half_up(intervals.clip(running, used.start_ns, used.end_ns).total, used.count),
        backend=first.partition(":")[0],
        track=main,
        blocked=blocked_at(facts, intervals.subtract(running, _at_work(facts, table.ids[rows]))),
        copy_ids=_copies(facts, known.op_ids[np.isin(known.ids, table.ids[rows])], table.ids[rows]),
        ranks=ranks,
        nccl_ns=all_reduce_ns(facts, ranks, carried or 0, calls),
        one_machine=share_a_machine(facts, str(table.group_ranks[inside[0]]), ranks),
        shared=_share_a_device(facts),
    )


def _at_work(facts: Facts, ids: IntArray) -> Intervals:
    """When a training thread is in an op or a call, but for those threads that carry these collectives out."""
    spans = on_training_threads(facts, host_spans(facts, *_WORKS))
    apart = np.setdiff1d(facts.rank.spans["track"].to_numpy()[ids], [host_threads(facts).main])
    return spans.where(~np.isin(spans.track, apart)).times


def _copies(facts: Facts, asking: IntArray, ids: IntArray) -> IntArray:
    """Copies that the ops launch, or the threads that carry out these collectives."""
    work, spans = device_work(facts), facts.rank.spans
    ops = host_spans(facts, SpanKind.COLLECTIVE, SpanKind.OP)
    ops = ops.where(np.isin(ops.ids, asking))
    launched = launched_in(facts, ops) >= 0
    track = spans["track"].to_numpy()
    apart = np.setdiff1d(track[ids], [host_threads(facts).main])
    by_them = (work.launch >= 0) & np.isin(track[np.maximum(work.launch, 0)], apart)
    found: IntArray = work.ids[(work.work_class == WorkClass.COPY) & (launched | by_them)]
    return found


def _share_a_device(facts: Facts) -> bool:
    others = optional(peers, facts)
    if others is None:
        return False
    known = [pair for pair in zip(others.machines.tolist(), others.devices.tolist(), strict=True) if pair[1] >= 0]
    return len(set(known)) < len(known)
