"""Collectives that threads of the host carry out (gloo, mpi), and where a rank is held up by any.

On a device that is while only communication runs, on the host while the main thread runs nothing of its own.
"""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.communication.collectives import SMALL_BYTES, bytes_of_inputs, collective_table
from diagnose.facts.communication.peers import waits
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.host import asking_ops, host_threads
from diagnose.facts.core.inputs import BACKWARD, named
from diagnose.facts.core.spans import HostSpans, host_spans, on_training_threads, used_step
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.job import RECV, SEND

LEAST_RUN = 4  # Collectives that follow each other before they are a run, as on the device.

_LIGHT = frozenset(
    {"aten::item", "aten::_local_scalar_dense", "aten::to", "aten::copy_", "aten::clone", "aten::detach", "aten::empty"}
    | {"aten::zeros", "aten::ones", "aten::full", "aten::lift_fresh", "aten::fill_", "aten::zero_", "aten::select"}
    | {"aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::mul", "aten::mul_", "aten::div", "aten::div_"}
    | {"aten::unbind", "aten::view", "aten::reshape", "aten::stack", "aten::cat"}
)
"""Ops that may lie between the collectives of a run: they prepare and use single results, and could do so for all."""


class HostCollectives(Struct, frozen=True):
    """Collectives on the host whose asking op was recorded, too, in order. Arrays of shape (collectives,)."""

    ids: IntArray
    op_ids: IntArray  # The op that asked for each.
    begin_ns: IntArray  # When it was asked for.
    end_ns: IntArray  # When it was over.
    operation: npt.NDArray[np.object_]  # As the op is called, without `c10d::`.
    bytes: IntArray  # By the shapes of the op's inputs, an element of unknown type counted as 4; -1 unknown.


@fact
def host_collectives(facts: Facts) -> HostCollectives:
    """Collectives on the host with the ops that asked for them, which are carried out in order.

    The k-th goes with the k-th op. Raises Missing if there is neither device work nor a collective on the host.
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
        bytes=bytes_of_inputs(facts, ops.ids, lambda sizes: sizes[0]),
    )


class Blocked(Struct, frozen=True):
    """Time of the main thread at collectives. What it waits for other ranks may come back at the next one."""

    ids: IntArray  # The collectives that begin and end in it.
    track: int  # Of the main thread.
    own: Intervals  # When all ranks were there.
    waiting: Intervals  # Waiting for others to come; all of it if their recordings are not known.
    ns: int  # Both, per step.


def blocked_at(facts: Facts, times: Intervals) -> Blocked:
    """Splits a normal set of times, at which the main thread is at host collectives, into waiting and the rest."""
    known, used, every = waits(facts), steps(facts), host_collectives(facts)
    within = intervals.covered(Intervals(every.begin_ns, every.end_ns), times) == every.end_ns - every.begin_ns
    waiting = times if known is None else intervals.intersect(times, known)
    return Blocked(
        ids=every.ids[within],
        track=host_threads(facts).main,
        own=intervals.subtract(times, waiting),
        waiting=waiting,
        ns=round_half_up(intervals.clip(times, used.start_ns, used.end_ns).total, used.count),
    )


class HostRuns(Struct, frozen=True):
    """Small collectives that the main thread waits for one after the other, with nothing but light ops between."""

    calls: int  # In runs of LEAST_RUN or more, per step.
    unknown_calls: int  # Collectives on the host whose size is not known, per step.
    later: Blocked  # From the end of the first collective of each run to the end of its last one.


@fact
def host_runs(facts: Facts) -> HostRuns:
    """The runs. Raises Missing like host_collectives."""
    found, used = host_collectives(facts), steps(facts)
    unknown = (found.bytes < 0) & (found.operation != "barrier")
    rows = np.flatnonzero(waited_for(facts, found) & (found.bytes >= 0) & (found.bytes < SMALL_BYTES))
    step = used_step(facts, found.op_ids[rows])
    label = np.unique(found.operation[rows].astype(str), return_inverse=True)[1].ravel()
    key = np.stack([label, step, np.searchsorted(_heavy_ops(facts).start_ns, found.begin_ns[rows])])
    new = np.concatenate(([True], (np.diff(key) != 0).any(axis=0)))[: len(rows)]
    run = np.cumsum(new) - 1
    chosen = (np.bincount(run)[run] >= LEAST_RUN) & (step >= 0) if len(run) else new
    first = np.flatnonzero(chosen & new)
    last = np.flatnonzero(chosen & np.append(new[1:], True)[: len(new)])
    later = intervals.union(Intervals(found.end_ns[rows[first]], found.end_ns[rows[last]]))
    return HostRuns(
        calls=round_half_up(int(chosen.sum()), used.count),
        unknown_calls=round_half_up(int((used_step(facts, found.op_ids[unknown]) >= 0).sum()), used.count),
        later=blocked_at(facts, later),
    )


def waited_for(facts: Facts, found: HostCollectives) -> npt.NDArray[np.bool_]:
    """Mask: asked for by the main thread, in no other op, and over before the next collective is asked for."""
    track = facts.rank.spans["track"].to_numpy()[found.op_ids]
    alone = asking_ops(facts, found.op_ids) == found.op_ids
    in_turn = np.append(found.end_ns[:-1] <= found.begin_ns[1:], True)[: len(found.ids)]
    chosen: npt.NDArray[np.bool_] = (track == host_threads(facts).main) & alone & in_turn
    return chosen


def _heavy_ops(facts: Facts) -> HostSpans:
    """Ops of the training threads, none inside another, that neither start collectives nor are light."""
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)).outermost()
    collective = np.isin(ops.ids, host_spans(facts, SpanKind.COLLECTIVE).ids)
    return ops.where(~collective & ~named(facts, ops.ids, *_LIGHT))


class Barriers(Struct, frozen=True):
    """Barriers that the main thread asks for by itself."""

    op_ids: IntArray
    calls: int  # Per step.
    blocked: Blocked  # When it was in them, until all ranks had come.


@fact
def barriers(facts: Facts) -> Barriers:
    """Barriers of the used steps. Raises Missing like host_collectives."""
    found = host_collectives(facts)
    ops = host_spans(facts, SpanKind.COLLECTIVE, named=lambda name: name == "c10d::barrier")
    ops = ops.where(ops.track == host_threads(facts).main).in_steps(facts)
    at_host = found.operation == "barrier"
    until = dict(zip(found.op_ids[at_host].tolist(), found.end_ns[at_host].tolist(), strict=True))
    ends = [until.get(op, end) for op, end in zip(ops.ids.tolist(), ops.end_ns.tolist(), strict=True)]
    return Barriers(
        op_ids=ops.ids,
        calls=round_half_up(len(ops.ids), steps(facts).count),
        blocked=blocked_at(facts, intervals.union(Intervals(ops.start_ns, np.array(ends, dtype=np.int64)))),
    )


LEAST_WAIT_NS = 60_000
"""A thread that stands for less is not held up by a collective: it dispatches (chosen on recordings of gloo)."""

LATE_NS, EARLY_NS = 4_500_000, 5_000_000
"""A collective of gloo is recorded to end up to 2.1 ms (95 %) after the thread that waited for it goes on; and that
thread goes on, on a busy machine, some ms after it is over (two processes on one core). Only who stands for as long
can be taken to have waited for something so early."""
INEXACT = 0.15
"""Share of the time for which a thread stands while a collective runs, by which their ends may differ besides: where
ranks share cores, a thread that had stood for 59 ms went on 8 ms later (our choice)."""
EARLY_TRANSFER_NS = 400_000  # EARLY_NS of send and recv, whose spans end on the thread that waits.


class Held(Struct, frozen=True):
    """Where the rank is held up, in order of time. Arrays of shape (waits,)."""

    from_ns: IntArray
    until_ns: IntArray
    call: IntArray  # Position of the call that it waits for.


def held_on_device(facts: Facts, ids: IntArray, begin: IntArray, end: IntArray) -> Held:
    """Stretches of exposed communication, with the call that ends last in each; of a batch a row for each of its calls.

    A stretch in which none ends is left out: the call goes on beside compute, and the device is between two kernels.
    """
    pieces = device_time(facts).exposed_communication
    order = np.argsort(end, kind="stable")
    at = np.searchsorted(end[order], pieces.ends, side="right") - 1
    call = np.append(order, intervals.NONE)[at]
    known = (call >= 0) & (end[call] > pieces.starts) & (begin[call] < pieces.ends)
    at, call = np.flatnonzero(known), call[known]
    new = np.append(True, ids[1:] != ids[:-1])[: len(ids)]  # Calls of one batch are neighbours.
    batch, first = (np.cumsum(new) - 1)[call], np.append(np.flatnonzero(new), len(ids))
    count = np.diff(first)[batch]
    whole = np.repeat(at, count)  # Who waits for one of a batch waits for all of it.
    within = np.arange(len(whole)) - np.repeat(np.cumsum(count) - count, count)
    return Held(pieces.starts[whole], pieces.ends[whole], np.repeat(first[batch], count) + within)


def held_on_host(facts: Facts, operation: npt.NDArray[np.object_], begin: IntArray, end: IntArray) -> Held:
    """Where the main thread stands until a call is over: for each call at most the stretch that ends closest to it."""
    stands, none = standing(facts), np.zeros(0, dtype=np.int64)
    if not len(end) or not stands.size:
        return Held(none, none, none)
    early = np.where(np.isin(operation, (SEND, RECV)), EARLY_TRANSFER_NS, EARLY_NS)
    stood = stands.ends - stands.starts
    order = np.argsort(end, kind="stable")
    middle = np.searchsorted(end[order], stands.ends)
    best, least = np.full(stands.size, -1), np.full(stands.size, np.iinfo(np.int64).max)
    for away in range(-8, 8):
        at = middle + away
        call = order[np.clip(at, 0, len(order) - 1)]
        after = stands.ends - end[call]
        together = np.minimum(stands.ends, end[call]) - np.maximum(stands.starts, begin[call])
        inexact = np.maximum(INEXACT * together, 0).astype(np.int64)
        fits = (at >= 0) & (at < len(order)) & (after <= np.maximum(LATE_NS, inexact))
        fits &= -after <= np.minimum(early[call], np.maximum(stood, EARLY_NS // 2))
        fits &= (begin[call] < stands.ends - LEAST_WAIT_NS // 2) & (end[call] > stands.starts)
        # A send is seen to be over when somebody asks, mostly just before or after the recv that was waited for.
        distance = np.maximum(np.abs(after) - inexact, 0) + (operation[call] == SEND) * LATE_NS
        better = fits & (distance < least)
        best[better], least[better] = call[better], distance[better]
    # Before or after it stood for that, it may have done something else: it is held up once.
    place = np.flatnonzero(best >= 0)
    place = place[np.lexsort((-stood[place], least[place], best[place]))]
    place = np.sort(place[np.concatenate(([True], np.diff(best[place]) != 0))[: len(place)]])
    call = best[place]
    begins = np.maximum(stands.starts[place], begin[call] + 1)
    return Held(begins, np.maximum(begins, np.minimum(stands.ends[place], end[call])), call)


def standing(facts: Facts) -> Intervals:
    """When the main thread runs no op but backward nodes and what asks for collectives, for LEAST_WAIT_NS or longer."""
    main = host_threads(facts).main
    ops = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)
    ops = ops.where((ops.track == main) & ~named(facts, ops.ids, "gloo:*", "mpi:*"))
    if not len(ops.ids):
        return intervals.EMPTY
    asking = named(facts, ops.ids, "c10d::*", "_c10d*", "c10d_functional::*")
    asking &= ~named(facts, ops.ids, "c10d::send*", "c10d::recv*")
    own = ~asking & ~named(facts, ops.ids, f"{BACKWARD}*")
    up, around = ops.parents, np.flatnonzero(asking)
    while len(around := np.unique(up[around][up[around] >= 0])):
        own[around] = False
    used = steps(facts)
    moments = intervals.distinct(np.concatenate((ops.start_ns, ops.end_ns, [used.start_ns, used.end_ns])))
    at = ops.open_at(moments, np.full(len(moments), main))
    free = ~((at >= 0) & own[at])[:-1]
    pieces = intervals.union(Intervals(moments[:-1][free], moments[1:][free]))
    return pieces.where(pieces.ends - pieces.starts >= LEAST_WAIT_NS)
