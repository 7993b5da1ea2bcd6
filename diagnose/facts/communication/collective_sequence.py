"""What does this rank do between its collectives, and where is it held up by them? What a job is put together from.

On a device that is the union of its streams: between two moments the rank goes on by itself, until nothing but
communication is left to run. On the host (gloo, mpi) it is the main thread, which waits where it does nothing by
itself, or is in what encloses a collective, until one of them is over.
"""

from zlib import crc32

import numpy as np
import numpy.typing as npt
import pandas as pd

from diagnose.facts.communication import collectives
from diagnose.facts.communication.host_collectives import Held, held_on_device, held_on_host
from diagnose.facts.communication.pipelines import pipeline_sides
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import device_time
from diagnose.facts.core.device import WorkClass, computed_ns, device_work
from diagnose.facts.core.inputs import recorded_inputs
from diagnose.facts.core.spans import host_spans, on_training_threads, spans_of, used_step
from diagnose.facts.core.steps import Measure, steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.job import RECV, SEND, Calls, CollectiveSequence, Lane, Work

MOST_CALLS = 20_000
"""Collectives of one rank that a job is put together from: about 2 MB. Of more, the first steps are taken."""

AT_ONCE_NS = 20_000
"""A kernel that was queued begins so soon after the one before it on its stream (real traces: 1 to 5 us)."""


@fact
def collective_sequence(facts: Facts) -> CollectiveSequence:
    """The rank between its collectives. Raises Missing like the table, and without steps where there are none."""
    used, rank, table = steps(facts), facts.rank, collectives.collective_table(facts)
    if used.measure is Measure.WINDOW and not len(table.ids):
        raise Missing("marked steps", "Call prof.step() after each step.")
    apart, groups = collectives.uncoalesced(facts), collectives.call_groups(facts)
    on_cpu = bool(table.on_host.all()) and not len(device_work(facts).ids)
    mine = np.flatnonzero(table.in_steps[apart.row] & (table.on_host[apart.row] == on_cpu))
    mine = mine[np.argsort(table.times.starts[apart.row[mine]], kind="stable")]
    bounds = used.bounds_ns[: _whole_steps(used.bounds_ns, table.times.starts[apart.row[mine]]) + 1]
    mine = mine[table.times.starts[apart.row[mine]] < bounds[-1]]
    rows, told = apart.row[mine], apart.told[mine]
    ids, begin, end = table.ids[rows], table.times.starts[rows], table.times.ends[rows]
    operation = _operations(facts, table.operation[rows], told)
    transfer = np.isin(operation, (SEND, RECV))
    begin = np.where(transfer, _posted(facts, ids, begin), begin) if on_cpu else begin
    held = held_on_host(facts, operation, begin, end) if on_cpu else held_on_device(facts, ids, begin, end)
    queue = _queues(facts, ids, np.where(transfer, -1, groups.group[mine]), on_cpu, transfer)
    after = np.full(len(ids), -1) if on_cpu else _after(facts, ids, begin, end, queue)
    ready = begin if on_cpu else _ready(facts, ids, begin, end, queue, after)
    size = collectives.told_bytes(facts.rank.collectives, told)
    names = tuple(dict.fromkeys(operation.tolist()))
    zero, stands = rank.zero_unix_ns, intervals.union(Intervals(held.from_ns, held.until_ns))
    computing = intervals.subtract(_op_times(facts), stands) if on_cpu else device_time(facts).compute
    peer, other = groups.peer[mine], _other_of_two(rank.index, groups)[groups.group[mine]]
    peer = np.where(transfer & (peer < 0), other, peer)
    sides = pipeline_sides(facts, _launching_calls(facts, ids), operation, _peer_side(rank.index, groups, mine, peer))
    calls = Calls(
        ids=ids,
        operation=np.array([names.index(one) for one in operation], dtype=np.int64),
        group=groups.group[mine],
        members=np.append(facts.rank.collectives["group_size"].to_numpy(), -1)[told],
        sequence=groups.sequence[mine],
        peer=peer,
        stage=sides.stage,
        toward=sides.toward,
        bytes=np.where(size >= 0, size, collectives.bytes_of_inputs(facts, ids, lambda sizes: sum(sizes) or -1)),
        step=used_step(facts, ids),
        begin_ns=zero + begin,
        end_ns=zero + end,
        queue=queue,
        after=after,
    )
    return CollectiveSequence(
        rank=rank.index,
        world_size=rank.provenance.world_size or 0,
        machine=_machine(facts),
        device=rank.provenance.devices[0].index if len(rank.provenance.devices) == 1 else -1,
        on_cpu=on_cpu,
        numbers=used.numbers[: len(bounds) - 1],
        window=used.measure is Measure.WINDOW,
        bounds_ns=zero + bounds,
        compute_ns=intervals.covered(Intervals(bounds[:-1], bounds[1:]), computing),
        work=asked_work(facts, on_cpu),
        operations=names,
        groups=groups.groups,
        known_groups=rank.provenance.groups,
        calls=calls,
        lane=_lane(ready, held, computing, bounds, zero),
    )


def _queues(facts: Facts, ids: IntArray, group: IntArray, on_cpu: bool, transfer: npt.NDArray[np.bool_]) -> IntArray:
    """The queue of each call, in which calls run in turn: on a device its group, else its stream; on a host its thread.

    Each transfer on the host has a (negative) queue of its own: its span is on the thread that asks.
    """
    track = facts.rank.spans["track"].to_numpy()[ids].astype(np.int64)
    if on_cpu:
        return np.where(transfer, -1 - np.arange(len(ids)), track)
    return np.where(group >= 0, len(facts.rank.tracks) + group, track)


def _after(facts: Facts, ids: IntArray, begin: IntArray, end: IntArray, queue: IntArray) -> IntArray:
    """For each device call the position of the call of another queue that it waited for: that ended as it began; or -1.

    In HSDP an all-reduce across groups waits so for the reduce-scatter within one.
    """
    launch = _launching_calls(facts, ids)
    order = np.argsort(end, kind="stable")
    last = order[np.maximum(np.searchsorted(end[order], begin, side="right") - 1, 0)] if len(order) else order
    at_once = (begin >= end[last]) & (begin - end[last] <= AT_ONCE_NS) & (end[last] > begin[last])
    start = facts.rank.spans["start_ns"].to_numpy()
    asked_before = start[launch[last]] < start[launch]
    return np.where(at_once & asked_before & (queue[last] != queue), last, -1)


def _ready(facts: Facts, ids: IntArray, begin: IntArray, end: IntArray, queue: IntArray, after: IntArray) -> IntArray:
    """When each device call could have begun if its queue had been free; calls that waited for none keep `begin`.

    A call that began as the one before in its queue ended was ready before that: once it was launched, and the compute
    that was launched before it was done. Unlike `begin`, that does not depend on when other ranks came.
    """
    work, start = device_work(facts), facts.rank.spans["start_ns"].to_numpy()
    launch = work.launch[np.searchsorted(work.ids, ids)]
    ready = np.minimum(np.maximum(start[launch], computed_ns(facts, ids)), begin)
    order = np.lexsort((begin, queue))
    follows = np.zeros(len(ids), dtype=bool)
    follows[order[1:]] = (queue[order][1:] == queue[order][:-1]) & (begin[order][1:] - end[order][:-1] <= AT_ONCE_NS)
    return np.where((follows | (after >= 0)) & (launch >= 0), ready, begin)


def _launching_calls(facts: Facts, ids: IntArray) -> IntArray:
    """The span id of the call that launched each of `ids`; an id that no known call launched stays as it is."""
    work = device_work(facts)
    if not len(work.ids):
        return ids
    row = np.minimum(np.searchsorted(work.ids, ids), len(work.ids) - 1)
    launched = (work.ids[row] == ids) & (work.launch[row] >= 0)
    return np.where(launched, work.launch[row], ids)


def _other_of_two(rank: int, groups: collectives.CallGroups) -> IntArray:
    """By group the rank besides `rank` if it is one of two, else -1. A last -1 serves group -1, the unknown one."""
    others = [[one for one in group.ranks if one != rank] for group in groups.groups]
    return np.array([*(some[0] if len(some) == 1 else -1 for some in others), -1], dtype=np.int64)


def _peer_side(rank: int, groups: collectives.CallGroups, calls: IntArray, peer: IntArray) -> IntArray:
    """For each of `calls` 1 if its peer is the next rank of the group, -1 if it is the one before, else 0."""
    found, group = np.zeros(len(calls), dtype=np.int64), groups.group[calls]
    for number in np.unique(group[(group >= 0) & (peer >= 0)]).tolist():
        place = {one: at for at, one in enumerate(groups.groups[number].ranks)}
        for other in np.unique(peer[group == number]).tolist():
            away = place[other] - place[rank] if other in place and rank in place else 0
            found[(group == number) & (peer == other)] = away if abs(away) == 1 else 0
    return found


def _machine(facts: Facts) -> int:
    """The number of the rank's machine: of the manifest, else the trace, else 0 if all ranks share one; -1 unknown."""
    context, told = facts.rank.context, facts.rank.provenance.machine
    if context is not None and context.rank.machine is not None:
        return context.rank.machine
    alone = context is not None and context.rank.peers in (None, context.rank.world_size)
    return told if told >= 0 or not alone else 0


def _whole_steps(bounds_ns: IntArray, begin_ns: IntArray) -> int:
    """How many of the first steps hold MOST_CALLS at most. Raises Missing if not even one does."""
    if len(begin_ns) <= MOST_CALLS:
        return len(bounds_ns) - 1
    count = int(np.searchsorted(bounds_ns, begin_ns[MOST_CALLS], side="right")) - 1
    if not count:
        how = "Record fewer steps, and call prof.step() after each."
        raise Missing(f"a step of {MOST_CALLS:,} collectives at most", how)
    return count


def _operations(facts: Facts, of_table: npt.NDArray[np.object_], told: IntArray) -> npt.NDArray[np.object_]:
    """The operation of each call in small letters without `_`: as recorded for it (`told`), else as in the table."""
    found = np.where(told >= 0, collectives.texts(facts.rank.collectives["operation"], told), of_table)
    return np.array([str(one).replace("_", "").lower() for one in found], dtype=object)


def _posted(facts: Facts, ids: IntArray, begin: IntArray) -> IntArray:
    """When each transfer was handed over: at the end of the c10d call in which its span begins, else when it begins."""
    ops = host_spans(facts, SpanKind.COLLECTIVE, named=lambda name: name.startswith(("c10d::send", "c10d::recv")))
    around = ops.around(spans_of(facts, ids))
    return np.where(around >= 0, np.append(ops.end_ns, 0)[around], begin)


def _op_times(facts: Facts) -> Intervals:
    """When ops run on training threads in the used steps, without the ops that start a collective."""
    used, ops = steps(facts), on_training_threads(facts, host_spans(facts, SpanKind.OP)).times
    starting = host_spans(facts, SpanKind.COLLECTIVE, named=lambda name: not name.startswith(("gloo:", "mpi:")))
    starting = on_training_threads(facts, starting)
    return intervals.clip(intervals.subtract(ops, starting.times), used.start_ns, used.end_ns)


def _lane(asked: IntArray, held: Held, computing: Intervals, bounds: IntArray, zero: int) -> Lane:
    """Calls, waits and begins of steps as events in order of time, cut so that waits do not overlap own time.

    A call asked for while the rank is held up counts as asked for when that began: it waited for another call.
    """
    inner = bounds[1:-1]
    order = np.argsort(held.from_ns, kind="stable")
    starts, ends = held.from_ns[order], np.maximum.accumulate(held.until_ns[order])
    at = np.searchsorted(starts, asked, side="right") - 1
    asked = np.where((at >= 0) & (asked < np.append(ends, 0)[at]), np.append(starts, 0)[at], asked)
    counts, first, last = [len(asked), len(held.call), len(inner)], bounds[0], bounds[-1]
    call = np.concatenate((np.arange(len(asked)), held.call, np.full(len(inner), -1)))
    waits = np.repeat([False, True, False], counts)
    begin, end = (np.clip(np.concatenate((asked, some, inner)), first, last) for some in (held.from_ns, held.until_ns))
    order = np.lexsort((waits, begin))
    call, waits, begin, end = call[order], waits[order], begin[order], end[order]
    reached = np.maximum.accumulate(end)
    before = np.concatenate(([bounds[0]], reached[:-1]))
    own = np.maximum(begin - before, 0)
    return Lane(
        call=call,
        waits=waits,
        from_ns=zero + np.maximum(begin, before),
        until_ns=zero + np.maximum(end, before),
        own_ns=own,
        compute_ns=intervals.covered(Intervals(before, before + own), computing),
    )


MOST_KINDS = 64  # Those that take longest are kept: 1.5 kB of a rank.


def asked_work(facts: Facts, on_cpu: bool) -> Work:
    """What the mean step computes by name of kernel (in threads), or on the CPU of op (in input elements)."""
    ids, size, ns = _of_ops(facts) if on_cpu else _of_kernels(facts)
    bounds, start = steps(facts).bounds_ns, facts.rank.spans["start_ns"].to_numpy()[ids]
    inside = (start >= bounds[0]) & (start < bounds[-1])
    code, kind = np.unique(facts.rank.spans["name"].cat.codes.to_numpy()[ids[inside]], return_inverse=True)
    sizes, times = (np.bincount(kind, weights=one[inside], minlength=len(code)) for one in (size, ns))
    most = np.sort(np.argsort(-times, kind="stable")[:MOST_KINDS])
    names = facts.rank.spans["name"].cat.categories[code[most]]
    count = max(len(bounds) - 1, 1)
    return Work(
        kind=np.array([crc32(str(name).encode()) for name in names], dtype=np.int64),
        size=sizes[most] / count,
        ns=times[most] / count,
    )


def _of_kernels(facts: Facts) -> tuple[IntArray, IntArray, IntArray]:
    """Compute kernels: span ids, sizes in threads, durations in ns."""
    work, spans = device_work(facts), facts.rank.spans
    row = facts.rank.kernels.index.get_indexer(pd.Index(work.ids[work.work_class == WorkClass.COMPUTE]))
    kernels = facts.rank.kernels.iloc[row[row >= 0]]
    sizes = kernels[["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]].to_numpy().astype(np.int64)
    ids = kernels.index.to_numpy()
    return ids, sizes.prod(axis=1), spans["dur_ns"].to_numpy()[ids]


def _of_ops(facts: Facts) -> tuple[IntArray, IntArray, IntArray]:
    """Host ops: span ids, sizes in input elements, durations in ns without the ops inside them."""
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP))
    position, inputs = recorded_inputs(facts, ops.ids)
    sizes = np.array([*(sum(one.elements for some in taken for one in some) for taken in inputs), 0], dtype=np.int64)
    up, lasted = ops.parents, ops.end_ns - ops.start_ns
    inner = np.bincount(up[up >= 0], weights=lasted[up >= 0], minlength=len(lasted)).astype(np.int64)
    return ops.ids, sizes[position], np.maximum(lasted - inner, 0)
