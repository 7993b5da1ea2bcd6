"""Collectives that threads of the host carry out (gloo, mpi): what started them, and which follow each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.facts.communication.collectives import SMALL_BYTES, collective_table
from diagnose.facts.communication.peers import waits
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.host import asking_ops, host_threads
from diagnose.facts.core.inputs import recorded_inputs
from diagnose.facts.core.spans import HostSpans, host_spans, on_training_threads, used_step
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals

LEAST_RUN = 4
"""Collectives that follow each other before they are a run, as on the device."""


_LIGHT = frozenset(
    {"aten::item", "aten::_local_scalar_dense", "aten::to", "aten::copy_", "aten::clone", "aten::detach", "aten::empty"}
    | {"aten::zeros", "aten::ones", "aten::full", "aten::lift_fresh", "aten::fill_", "aten::zero_", "aten::select"}
    | {"aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::mul", "aten::mul_", "aten::div", "aten::div_"}
    | {"aten::unbind", "aten::view", "aten::reshape", "aten::stack", "aten::cat"}
)
"""Ops that may lie between the collectives of a run: they prepare and use single results, and could do so for all."""


@dataclass(frozen=True)
class HostCollectives:
    """Those whose start is recorded too, in order. Arrays of shape (collectives,)."""

    ids: IntArray
    op_ids: IntArray
    """The op that asked for each."""
    begin_ns: IntArray
    """When it was asked for."""
    end_ns: IntArray
    """When it was over."""
    operation: npt.NDArray[np.object_]
    """As the op is called, without `c10d::`."""
    bytes: IntArray
    """By the shapes of the op's inputs, an element of unknown type counted as 4; -1 unknown."""


@fact
def host_collectives(facts: Facts) -> HostCollectives:
    """Collectives on the host with the ops that asked for them, which are carried out in order.

    Raises Missing without device work and without collectives on the host.
    """
    table = collective_table(facts)
    done = np.flatnonzero(table.on_host)
    done = done[np.argsort(table.times.starts[done], kind="stable")]
    ops = host_spans(facts, SpanKind.COLLECTIVE, named=lambda name: name.startswith("c10d::"))
    if len(ops.ids):  # Those that run already when the recording begins were asked for before it.
        done = done[table.times.starts[done] >= ops.start_ns[0]]
    pairs = min(len(done), len(ops.ids))
    done, ops = done[:pairs], ops.where(np.arange(pairs))
    fits = table.times.starts[done] >= ops.start_ns
    done, ops = done[fits], ops.where(fits)
    names = facts.rank.spans["name"].iloc[ops.ids].to_numpy()
    return HostCollectives(
        ids=table.ids[done],
        op_ids=ops.ids,
        begin_ns=ops.start_ns,
        end_ns=np.maximum(table.times.ends[done], ops.end_ns),
        operation=np.array([str(name).removeprefix("c10d::") for name in names], dtype=object),
        bytes=_bytes(facts, ops.ids),
    )


def _bytes(facts: Facts, ops: IntArray) -> IntArray:
    position, inputs = recorded_inputs(facts, ops)
    given = [
        next((some for some in input_ if some), ()) for input_ in inputs
    ]  # Of allgather_ results come first, in lists.
    sizes = [sum(tensor.bytes or 4 * tensor.elements for tensor in some) if some else -1 for some in given]
    return np.array([*sizes, -1], dtype=np.int64)[position]


@dataclass(frozen=True)
class Blocked:
    """Time of the main thread at collectives. What it waits for other ranks may come back at the next one."""

    ids: IntArray
    """The collectives that begin and end in it."""
    own: Intervals
    """When all ranks were there."""
    waiting: Intervals
    """Waiting for others to come; all of it if their recordings are not known."""
    ns: int
    """Both, per step."""


def blocked_at(facts: Facts, times: Intervals) -> Blocked:
    """The main thread at collectives, at which it is at these times."""
    known, used, every = waits(facts), steps(facts), host_collectives(facts)
    within = intervals.covered(Intervals(every.begin_ns, every.end_ns), times) == every.end_ns - every.begin_ns
    waiting = times if known is None else intervals.intersect(times, known)
    together = intervals.clip(times, used.start_ns, used.end_ns).total
    return Blocked(
        ids=every.ids[within],
        own=intervals.subtract(times, waiting),
        waiting=waiting,
        ns=round_half_up(together, used.count),
    )


@dataclass(frozen=True)
class HostRuns:
    """Small collectives that the main thread waits for one after the other, with nothing but light ops between."""

    calls: int
    """In runs of LEAST_RUN or more, per step."""
    runs: int
    """Per step."""
    unknown_calls: int
    """Collectives on the host whose size is not known, per step."""
    track: int
    """Of the main thread."""
    later: Blocked
    """From the end of the first collective of each run to the end of its last one."""


@fact
def host_runs(facts: Facts) -> HostRuns:
    """The runs. Raises Missing like host_collectives."""
    found, used, main = host_collectives(facts), steps(facts), host_threads(facts).main
    unknown = (found.bytes < 0) & (found.operation != "barrier")
    rows = np.flatnonzero(waited_for(facts, found, main) & (found.bytes >= 0) & (found.bytes < SMALL_BYTES))
    step = used_step(facts, found.op_ids[rows])
    heavy = _heavy_ops(facts)
    label = np.unique(found.operation[rows].astype(str), return_inverse=True)[1].ravel()
    key = np.stack([label, step, np.searchsorted(heavy.start_ns, found.begin_ns[rows])])
    new = np.concatenate(([True], (np.diff(key) != 0).any(axis=0)))[: len(rows)]
    run = np.cumsum(new) - 1
    chosen = (np.bincount(run)[run] >= LEAST_RUN) & (step >= 0) if len(run) else new
    first = np.flatnonzero(chosen & new)
    last = np.flatnonzero(chosen & np.append(new[1:], True)[: len(new)])
    later = intervals.union(Intervals(found.end_ns[rows[first]], found.end_ns[rows[last]]))
    return HostRuns(
        calls=round_half_up(int(chosen.sum()), used.count),
        runs=round_half_up(len(first), used.count),
        unknown_calls=round_half_up(int((used_step(facts, found.op_ids[unknown]) >= 0).sum()), used.count),
        track=main,
        later=blocked_at(facts, later),
    )


def waited_for(facts: Facts, found: HostCollectives, main: int) -> npt.NDArray[np.bool_]:
    """Which the main thread asks for by itself, and which are over before it asks for the next."""
    track = facts.rank.spans["track"].to_numpy()[found.op_ids]
    alone = asking_ops(facts, found.op_ids) == found.op_ids
    in_turn = np.append(found.end_ns[:-1] <= found.begin_ns[1:], True)[: len(found.ids)]
    chosen: npt.NDArray[np.bool_] = (track == main) & alone & in_turn
    return chosen


def _heavy_ops(facts: Facts) -> HostSpans:
    """Ops of the training threads, none inside another, that neither start collectives nor are light."""
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)).outermost()
    names = facts.rank.spans["name"].iloc[ops.ids].to_numpy()
    kind = facts.rank.spans["kind"].iloc[ops.ids].to_numpy()
    return ops.where(~np.isin(names, list(_LIGHT)) & (kind != SpanKind.COLLECTIVE.value))


@dataclass(frozen=True)
class Barriers:
    """Barriers that the main thread asks for by itself."""

    op_ids: IntArray
    calls: int
    """Per step."""
    track: int
    """Of the main thread."""
    blocked: Blocked
    """When it was in them, until all ranks had come."""


@fact
def barriers(facts: Facts) -> Barriers:
    """Barriers of the used steps. Raises Missing like host_collectives."""
    used, main, found = steps(facts), host_threads(facts).main, host_collectives(facts)
    ops = host_spans(facts, SpanKind.COLLECTIVE, named=lambda name: name == "c10d::barrier")
    ops = ops.where(ops.track == main).in_steps(facts)
    at_host = found.operation == "barrier"
    until = dict(zip(found.op_ids[at_host].tolist(), found.end_ns[at_host].tolist(), strict=True))
    ends = [until.get(op, end) for op, end in zip(ops.ids.tolist(), ops.end_ns.tolist(), strict=True)]
    return Barriers(
        op_ids=ops.ids,
        calls=round_half_up(len(ops.ids), used.count),
        track=main,
        blocked=blocked_at(facts, intervals.union(Intervals(ops.start_ns, np.array(ends, dtype=np.int64)))),
    )
