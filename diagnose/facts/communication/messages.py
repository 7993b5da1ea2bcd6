"""Which small collectives could be one, and which belong to synchronised normalisation?"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.facts.communication.collectives import SMALL_BYTES, CollectiveTable, collective_table
from diagnose.facts.communication.roles import Role, roles
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.spans import HostSpans, host_spans, launched_in
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import work_table
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import KernelKind

LEAST_RUN = 4
"""Collectives that follow each other before they are a run: two or three may be what one op consists of. Chosen."""

_POINTWISE = (
    KernelKind.MEMORY,
    KernelKind.COMMUNICATION,
    KernelKind.TRITON_POINTWISE,
    KernelKind.FOREACH,
    KernelKind.CAST_QUANT,
    KernelKind.COPY,
    KernelKind.FILL,
    KernelKind.REDUCTION,
    KernelKind.ELEMENTWISE,
)
"""What may lie between the collectives of a run: it packs, scales and adds what they bring, and could wait for all."""

_COLLECTED = re.compile("reduce|gather|broadcast")
_NORM = re.compile("sync_?batch_?norm", re.IGNORECASE)


@dataclass(frozen=True)
class CollectiveRuns:
    """Small collectives of one operation and group in a row, nothing but pointwise work between: one call could do all.

    Without gradients, which `loose_gradients` has.

    Runs lie within a step and are of LEAST_RUN or more. Numbers are per step.
    """

    ids: IntArray
    run: IntArray
    """Which run each is in, from 0 on. Shape of `ids`."""
    joined_ns: IntArray
    """What one collective in place of each run would take, from its parts less the shortest of them for each but one:
    low (only half of that), likely, high (as likely). Shape (3, runs)."""
    later_op_ids: IntArray
    """Host ops that start all but the first collective of each run."""
    calls: int
    runs: int
    exposed_ns: int
    """Time of the collectives while no compute ran."""
    host_ns: int
    """Host time in the ops that start them."""


@fact
def collective_runs(facts: Facts) -> CollectiveRuns:
    """The runs. Raises Missing without device work and without collectives on the host."""
    table = collective_table(facts)
    chosen, run = _in_runs(facts, table)
    ids, runs = table.ids[chosen], int(run.max(initial=-1)) + 1
    first = np.concatenate(([True], run[1:] != run[:-1])) if len(run) else np.zeros(0, dtype=bool)
    ops, op_of = issuing_ops(facts, ids)
    later = np.setdiff1d(op_of[~first], op_of[first])
    inside = table.in_steps[chosen]
    return CollectiveRuns(
        ids=ids,
        run=run,
        joined_ns=_joined(table.times.ends[chosen] - table.times.starts[chosen], run, runs),
        later_op_ids=ops.ids[later[later >= 0]],
        calls=round_half_up(int(inside.sum()), steps(facts).count),
        runs=round_half_up(int((inside & first).sum()), steps(facts).count),
        exposed_ns=exposed_ns(facts, table, chosen[inside]),
        host_ns=host_ns(facts, ops, op_of),
    )


def _in_runs(facts: Facts, table: CollectiveTable) -> tuple[IntArray, IntArray]:
    """Rows of the table that are in runs, in order of run and time, and the run of each."""
    if table.on_host.all():
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    work = work_table(facts)
    mine = np.isin(table.operation.astype(str), [one for one in set(table.operation) if _COLLECTED.search(str(one))])
    mine &= roles(facts) != Role.GRADIENT
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


def _joined(dur_ns: IntArray, run: IntArray, runs: int) -> IntArray:
    """The shortest stands for the latency that each has whatever its size; the longest may have waited for ranks."""
    shortest = np.full(runs, np.iinfo(np.int64).max)
    np.minimum.at(shortest, run, dur_ns)
    total, count = np.zeros(runs, dtype=np.int64), np.bincount(run, minlength=runs)
    np.add.at(total, run, dur_ns)
    spared = (count - 1) * shortest if runs else total
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
    running = intervals.union(Intervals(table.times.starts[rows], table.times.ends[rows]))
    exposed = intervals.intersect(running, device_time(facts).exposed_communication)
    return round_half_up(exposed.total, steps(facts).count)


def host_ns(facts: Facts, ops: HostSpans, op_of: IntArray) -> int:
    """Host time in the ops at these positions (-1: none), per step."""
    mine = ops.where(np.unique(op_of[op_of >= 0])).in_steps(facts)
    return round_half_up(mine.times.total, steps(facts).count)


@dataclass(frozen=True)
class SyncedNorms:
    """Collectives by which batch normalisation exchanges its statistics. Numbers are per step."""

    ids: IntArray
    op_ids: IntArray
    """Host ops that start them."""
    calls: int
    exposed_ns: int
    """Time of the collectives while no compute ran."""
    host_ns: int
    """Host time in the ops."""


@fact
def synced_norms(facts: Facts) -> SyncedNorms:
    """Those of SyncBatchNorm, forward and backward. Raises Missing without device work."""
    table = collective_table(facts)
    on_device = np.flatnonzero(~table.on_host)
    norms = host_spans(facts, SpanKind.OP, SpanKind.ANNOTATION, named=lambda name: bool(_NORM.search(name)))
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
