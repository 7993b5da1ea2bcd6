"""Which collectives could be fewer: small ones, gradients one by one, statistics of norms, gathered results?"""

import re
from math import ceil

import numpy as np
from msgspec import Struct

from diagnose.facts.communication.collectives import SMALL_BYTES, CollectiveTable, collective_table
from diagnose.facts.communication.ddp import BUCKET_BYTES, FIRST_BYTES
from diagnose.facts.communication.host_collectives import Blocked, blocked_at, host_collectives, waited_for
from diagnose.facts.communication.overlap import exposure
from diagnose.facts.communication.roles import SYNCED_NORM, Role, of_roles
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.inputs import DDP_FORWARD, Mask, known_per_step
from diagnose.facts.core.spans import HostSpans, host_spans, in_used_steps, launched_in, sites_of
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import work_table
from diagnose.facts.optimizer.optimizer import updates
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import KernelKind

LEAST_RUN = 4
"""Collectives that follow each other before they are a run: two or three may be what one op consists of. Chosen."""

_POINTWISE = (
    *(KernelKind.MEMORY, KernelKind.COMMUNICATION, KernelKind.TRITON_POINTWISE, KernelKind.FOREACH, KernelKind.COPY),
    *(KernelKind.CAST_QUANT, KernelKind.FILL, KernelKind.REDUCTION, KernelKind.ELEMENTWISE),
)
"""What may lie between the collectives of a run: it packs, scales and adds what they bring, and could wait for all."""


class CollectiveRuns(Struct, frozen=True):
    """Small collectives of one operation and group in a row, nothing but pointwise work between: one call could do all.

    Without gradients. Runs lie within a step and are of LEAST_RUN or more. Numbers are per step.
    """

    ids: IntArray
    run: IntArray  # Which run each is in, from 0 on. Shape of `ids`.
    joined_ns: IntArray
    """What one collective in place of each run would take, from its parts less the shortest of them for each but one:
    low (only half of that), likely, high (as likely). Shape (3, runs)."""
    later_op_ids: IntArray  # Host ops that start all but the first collective of each run.
    calls: int
    exposed_ns: int  # Time of the collectives while no compute ran.
    host_ns: int  # Host time in the ops that start them.


@fact
def collective_runs(facts: Facts) -> CollectiveRuns:
    """The runs. Raises Missing without device work and without collectives on the host."""
    table = collective_table(facts)
    chosen, run = _in_runs(facts, table)
    first = np.diff(run, prepend=-1) != 0
    ops, op_of = issuing_ops(facts, table.ids[chosen])
    inside = table.in_steps[chosen]
    return CollectiveRuns(
        ids=table.ids[chosen],
        run=run,
        joined_ns=_joined((table.times.ends - table.times.starts)[chosen], run),
        later_op_ids=_later_ops(ops, op_of, first),
        calls=round_half_up(int(inside.sum()), steps(facts).count),
        exposed_ns=exposed_ns(facts, table, chosen[inside]),
        host_ns=host_ns(facts, ops, op_of),
    )


def _later_ops(ops: HostSpans, op_of: IntArray, first: Mask) -> IntArray:
    """Ids of the ops that start collectives none of which is the first of its run."""
    later = np.setdiff1d(op_of[~first], op_of[first])
    return ops.ids[later[later >= 0]]


def _in_runs(facts: Facts, table: CollectiveTable) -> tuple[IntArray, IntArray]:
    """Rows of the table that are in runs, in order of run and time, and the run of each."""
    if table.on_host.all():
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    work = work_table(facts)
    mine = np.array([bool(re.search("reduce|gather|broadcast", name)) for name in table.operation], dtype=bool)
    mine &= ~of_roles(facts, Role.GRADIENT)
    rows = np.flatnonzero(mine & ~table.on_host & (table.bytes >= 0) & (table.bytes < SMALL_BYTES))
    breaks = np.sort(work.start_ns[~work.of(*_POINTWISE)])
    texts = [text[rows].astype(str) for text in (table.operation, table.group_ranks)]
    labels = [np.unique(text, return_inverse=True)[1].ravel() for text in texts]
    start = table.times.starts[rows]
    step = facts.rank.spans["step"].to_numpy()[table.ids[rows]]
    key = np.stack([*labels, step, np.searchsorted(breaks, start)])
    order = np.lexsort((start, *key))
    new = np.concatenate(([True], (np.diff(key[:, order]) != 0).any(axis=0)))[: len(order)]
    run = np.cumsum(new) - 1
    long_enough = np.bincount(run)[run] >= LEAST_RUN if len(run) else new
    _, run = np.unique(run[long_enough], return_inverse=True)
    return rows[order[long_enough]], run.ravel().astype(np.int64)


def _joined(dur_ns: IntArray, run: IntArray) -> IntArray:
    """`CollectiveRuns.joined_ns`. The shortest of a run stands for the latency that each has whatever its size."""
    count = np.bincount(run)
    shortest, total = np.full(len(count), np.iinfo(np.int64).max), np.zeros(len(count), dtype=np.int64)
    np.minimum.at(shortest, run, dur_ns)
    np.add.at(total, run, dur_ns)
    spared = (count - 1) * shortest
    return np.stack([total - spared // 2, total - spared, total - spared])


def issuing_ops(facts: Facts, ids: IntArray) -> tuple[HostSpans, IntArray]:
    """The outermost ops of collectives, and for each of these device operations the position of its own, or -1."""
    ops = host_spans(facts, SpanKind.COLLECTIVE).outermost()
    if not len(ids):
        return ops, ids
    return ops, launched_in(facts, ops)[np.searchsorted(device_work(facts).ids, ids)]


def exposed_ns(facts: Facts, table: CollectiveTable, rows: IntArray) -> int:
    """Time of some rows of the table while no compute ran, per step."""
    if not len(rows):
        return 0
    exposed = intervals.intersect(intervals.union_of(table.times, rows), device_time(facts).exposed_communication)
    return round_half_up(exposed.total, steps(facts).count)


def host_ns(facts: Facts, ops: HostSpans, op_of: IntArray) -> int:
    """Host time in the ops at these positions (-1: none), per step."""
    mine = ops.where(np.unique(op_of[op_of >= 0])).in_steps(facts)
    return round_half_up(mine.times.total, steps(facts).count)


class SyncedNorms(Struct, frozen=True):
    """Collectives by which batch normalisation exchanges its statistics. Numbers are per step."""

    ids: IntArray
    op_ids: IntArray  # Host ops that start them.
    calls: int
    exposed_ns: int  # Time of the collectives while no compute ran.
    host_ns: int  # Host time in the ops.


@fact
def synced_norms(facts: Facts) -> SyncedNorms:
    """Those of SyncBatchNorm, forward and backward. Raises Missing without device work."""
    table = collective_table(facts)
    on_device = np.flatnonzero(~table.on_host)
    norms = host_spans(facts, SpanKind.OP, SpanKind.ANNOTATION, named=lambda name: bool(SYNCED_NORM.search(name)))
    at = np.searchsorted(device_work(facts).ids, table.ids[on_device])
    rows = on_device[launched_in(facts, norms)[at] >= 0]
    ops, op_of = issuing_ops(facts, table.ids[rows])
    return SyncedNorms(
        ids=table.ids[rows],
        op_ids=ops.ids[np.unique(op_of[op_of >= 0])],
        calls=round_half_up(int(table.in_steps[rows].sum()), steps(facts).count),
        exposed_ns=exposed_ns(facts, table, rows[table.in_steps[rows]]),
        host_ns=host_ns(facts, ops, op_of),
    )


OVERLAPPED = 0.5
"""Of what the backward pass could hide, likely hidden: DDP's buckets start when they are full (our choice)."""


class LooseGradients(Struct, frozen=True):
    """All-reduces of gradients on the device that no bucket collects. Numbers are per step."""

    ids: IntArray
    run: IntArray  # Which step each belongs to, from 0 on. Shape of `ids`.
    joined_ns: IntArray
    """What they would take in buckets. Shape (3, runs).

    Buckets spare the latency of all but as many, which the shortest stands for. Low: half of that is spared. Likely and
    high: all of it, and the backward pass hides half, or all, of what it can of the rest, but for the last bucket.
    """
    later_op_ids: IntArray  # Host ops that start all but the first of each step.
    calls: int
    bytes: int
    exposed_ns: int
    host_ns: int


@fact
def loose_gradients(facts: Facts) -> LooseGradients:
    """Raises Missing without device work and without collectives on the host."""
    table = collective_table(facts)
    rows = np.flatnonzero(of_roles(facts, Role.GRADIENT) & ~table.on_host & (table.bytes >= 0))
    step = facts.rank.spans["step"].to_numpy()[table.ids[rows]]
    order = np.lexsort((table.times.starts[rows], step))
    rows = rows[order]
    run = np.unique(step[order], return_inverse=True)[1].ravel().astype(np.int64)
    ops, op_of = issuing_ops(facts, table.ids[rows])
    inside, count = table.in_steps[rows], steps(facts).count
    return LooseGradients(
        ids=table.ids[rows],
        run=run,
        joined_ns=_in_buckets(facts, rows, run),
        later_op_ids=_later_ops(ops, op_of, np.diff(run, prepend=-1) != 0),
        calls=round_half_up(int(inside.sum()), count),
        bytes=round_half_up(int(table.bytes[rows[inside]].sum()), count),
        exposed_ns=exposed_ns(facts, table, rows[inside]),
        host_ns=host_ns(facts, ops, op_of),
    )


def _in_buckets(facts: Facts, rows: IntArray, run: IntArray) -> IntArray:
    """ns that each run of reductions would take in buckets of DDP's size: shape (3 estimates, runs)."""
    table, hideable = collective_table(facts), exposure(facts).hideable_share if len(rows) else 0.0
    dur = (table.times.ends - table.times.starts)[rows]
    joined_ns = np.zeros((3, int(run.max(initial=-1)) + 1), dtype=np.int64)
    for number in range(joined_ns.shape[1]):
        single_ns, run_bytes = dur[run == number], int(table.bytes[rows[run == number]].sum())
        buckets = 1 + ceil(max(run_bytes - FIRST_BYTES, 0) / BUCKET_BYTES)
        spared = max(len(single_ns) - buckets, 0) * int(single_ns.min())
        rest = int(single_ns.sum()) - spared
        hidden = hideable * (1.0 - 1.0 / buckets)
        joined_ns[:, number] = rest + spared // 2, rest * (1.0 - OVERLAPPED * hidden), rest * (1.0 - hidden)
    return joined_ns


class HostGathers(Struct, frozen=True):
    """Gathering on the host after a step of the optimizer and before DDP's next forward pass: of results."""

    calls: int  # Per step.
    bytes: int | None  # What a rank sends, per step; None if not known of all.
    blocked: Blocked  # From when the first after each update is asked for until the last is there.
    site: Site | None


@fact
def host_gathers(facts: Facts) -> HostGathers:
    """Of the used steps. Raises Missing like host_collectives, and if something is gathered and DDP is not used."""
    found, used = host_collectives(facts), steps(facts)
    forward = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name == DDP_FORWARD).start_ns
    updated = np.sort(updates(facts).end_ns)
    turn = np.searchsorted(updated, found.begin_ns, side="right")
    after = np.append(updated, 0)[turn - 1]  # Before the first update turn is 0: of nothing.
    idle = (turn > 0) & (np.searchsorted(forward, after) == np.searchsorted(forward, found.begin_ns))
    gathers = np.isin(found.operation.astype(str), ("allgather_", "_allgather_base_", "gather_"))
    gathers &= waited_for(facts, found)
    if gathers.any() and not len(forward):
        raise Missing("where forward passes begin", "Use DistributedDataParallel, which marks them.")
    rows = np.flatnonzero(gathers & idle & in_used_steps(facts, found.op_ids))
    first = np.concatenate(([True], np.diff(turn[rows]) != 0))[: len(rows)]
    last = np.append(first[1:], True)[: len(rows)]
    times = Intervals(found.begin_ns[rows[first]], found.end_ns[rows[last]])
    return HostGathers(
        calls=round_half_up(len(rows), used.count),
        bytes=known_per_step(found.bytes[rows], used.count),
        blocked=blocked_at(facts, intervals.union(times)),
        site=_first_site(facts, found.op_ids[rows]),
    )


class DeviceGathers(Struct, frozen=True):
    """Gathers of results on the device (`Role.RESULT`). Numbers are per step."""

    ids: IntArray
    calls: int
    bytes: int | None  # What a rank gets; None if not known of all.
    exposed_ns: int  # Time of these while no compute ran, with waiting for other ranks.
    site: Site | None


@fact
def device_gathers(facts: Facts) -> DeviceGathers:
    """Raises Missing like the table of collectives."""
    table = collective_table(facts)
    gathers = np.char.find(table.operation.astype(str), "gather") >= 0
    rows = np.flatnonzero(gathers & of_roles(facts, Role.RESULT) & ~table.on_host)
    inside, (ops, op_of) = rows[table.in_steps[rows]], issuing_ops(facts, table.ids[rows])
    return DeviceGathers(
        ids=table.ids[rows],
        calls=round_half_up(len(inside), steps(facts).count),
        bytes=known_per_step(table.bytes[inside], steps(facts).count),
        exposed_ns=exposed_ns(facts, table, inside),
        site=_first_site(facts, ops.ids[np.unique(op_of[op_of >= 0])]),
    )


def _first_site(facts: Facts, ops: IntArray) -> Site | None:
    return next((site for site in sites_of(facts, ops) if site is not None), None) if len(ops) else None
