"""What did the training threads of the host do: which are they, and what was each moment spent on?"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, once
from diagnose.facts.core.breakdown import TimeCause, shared_out
from diagnose.facts.core.device import device_work, host_recorded, lost_launches
from diagnose.facts.core.steps import steps
from diagnose.trace import enums, intervals, kinds
from diagnose.trace.enums import HostMemory, SpanKind
from diagnose.trace.intervals import IntArray, Intervals, distinct
from diagnose.trace.kinds import Activity, ApiKind


class HostThreads(Struct, frozen=True):
    """Host threads that drive the training."""

    main: int  # Track with the step markers; without markers, the one with most ops.
    training: IntArray  # Tracks that launched device work in the used steps, and the main one.


NO_CALLS = Missing("runtime calls", "Profile with ProfilerActivity.CPU and ProfilerActivity.CUDA together.")

MANY_VIEWS = ("aten::unflatten_dense_tensors", "aten::split", "aten::unbind", "aten::chunk")
"""Ops that make views of a tensor, and compute nothing however long that takes: DDP's buffers may be hundreds."""
BLOCKING = (ApiKind.STREAM_SYNC, ApiKind.DEVICE_SYNC, ApiKind.EVENT_SYNC)
ALLOCATING = (ApiKind.MALLOC, ApiKind.FREE, ApiKind.HOST_MALLOC, ApiKind.HOST_FREE)
DISPATCH_NS = 200_000
"""Ops that start nothing on the device took up to 0.22 ms in ten recordings on an H100 with a slow clock, but for
those that computed on the CPU, at 3 ms and more. What takes longer is no dispatch."""
STARTING = (ApiKind.KERNEL_LAUNCH, ApiKind.GRAPH_LAUNCH, ApiKind.COPY, ApiKind.MEMSET)

_NONE = np.zeros(0, dtype=np.int64)
_HOST_KINDS = (SpanKind.OP, SpanKind.LOADER, SpanKind.COLLECTIVE, SpanKind.ANNOTATION)


@fact
def host_threads(facts: Facts) -> HostThreads:
    """The training threads. Raises Missing if nothing was recorded on the host."""
    spans, used = facts.rank.spans, steps(facts)
    kind = spans["kind"].cat.codes.to_numpy()
    track = spans["track"].to_numpy()
    start = spans["start_ns"].to_numpy()
    launch = device_work(facts).launch
    calls = np.append(launch[launch >= 0], lost_launches(facts))
    inside = (start[calls] < used.end_ns) & (start[calls] >= used.start_ns)
    launching = track[calls[inside]] if inside.any() else track[calls]
    on_host = np.isin(kind, [enums.code(host_kind) for host_kind in _HOST_KINDS])
    marking = _named_like(spans, lambda name: kinds.activity(name) in (Activity.STEP, Activity.OPTIMIZER_STEP))
    marked = on_host & (spans["step"].to_numpy() >= 0) & marking
    for candidates in (track[marked], launching, track[on_host]):
        if len(candidates):
            main = int(np.bincount(candidates).argmax())
            return HostThreads(main, np.unique(np.append(launching, main)).astype(np.int64))
    raise Missing("host activity", "Profile with ProfilerActivity.CPU as well.")


class ApiCalls(Struct, frozen=True):
    """Runtime and driver calls of the training threads, in order of start. Arrays of shape (calls,)."""

    ids: IntArray
    kind: npt.NDArray[np.int8]  # Position in `kinds.ApiKind`.
    start_ns: IntArray
    end_ns: IntArray
    track: IntArray
    blocks: npt.NDArray[np.bool_]  # Waits for the device: synchronisation, blocking copies, copies to pageable memory.

    def of(self, *api_kinds: ApiKind) -> npt.NDArray[np.bool_]:
        """Which calls are of one of these kinds."""
        return np.isin(self.kind, [list(ApiKind).index(kind) for kind in api_kinds])


@fact
def api_calls(facts: Facts) -> ApiCalls:
    """The calls of the training threads; empty arrays if none were recorded."""
    spans, copies, work = facts.rank.spans, facts.rank.copies, device_work(facts)
    is_call = np.isin(spans["kind"].cat.codes.to_numpy(), [enums.code(SpanKind.RUNTIME), enums.code(SpanKind.DRIVER)])
    ids = np.flatnonzero(is_call & np.isin(spans["track"].to_numpy(), host_threads(facts).training))
    start, dur, track = (spans[column].to_numpy()[ids] for column in ("start_ns", "dur_ns", "track"))
    names = spans["name"].cat
    codes, positions = names.codes.to_numpy()[ids], {one: k for k, one in enumerate(ApiKind)}
    call_kind = np.array([positions[kinds.api_kind(name)] for name in names.categories], dtype=np.int8)[codes]
    synchronous = np.array(["Memcpy" in name and "Async" not in name for name in names.categories], dtype=bool)[codes]
    # A copy to pageable memory returns when it is done (CUDA API sync behaviour).
    slow = (copies["direction"] == enums.Direction.D2H.value) & (copies["host_memory"] == HostMemory.PAGEABLE.value)
    to_pageable = np.isin(ids, work.launch[np.isin(work.ids, copies.index[slow].to_numpy())])
    is_copy = call_kind == positions[ApiKind.COPY]
    return ApiCalls(
        ids=ids,
        kind=call_kind,
        start_ns=start,
        end_ns=start + dur,
        track=track.astype(np.int64),
        blocks=np.isin(call_kind, [positions[one] for one in BLOCKING]) | to_pageable | (is_copy & synchronous),
    )


@once
def host_compute_ops(facts: Facts) -> IntArray:
    """Ids of ops of training threads that compute on the CPU: the outermost that neither start nor await device work.

    They last over DISPATCH_NS and are none of MANY_VIEWS. Empty if the CPU trains, or if calls were not recorded.
    """
    if not len(device_work(facts).ids) or "launches" not in facts.rank.provenance.recorded:
        return _NONE
    calls, (op, start, end, track) = api_calls(facts), _ops(facts)
    parents, position = _parents_of_ops(facts), np.zeros(len(facts.rank.spans), dtype=np.int64)
    position[op] = np.arange(len(op))
    starts = np.zeros(len(op) + 1, dtype=bool)
    asking = enclosing_op(facts, calls.ids[calls.of(*STARTING, *ALLOCATING) | calls.blocks])
    at = distinct(position[asking[asking >= 0]])
    while len(at := at[(at >= 0) & ~starts[at]]):
        starts[at] = True
        at = distinct(parents[at])
    long = (end - start > DISPATCH_NS) & np.isin(track, host_threads(facts).training)
    long &= ~_named_like(facts.rank.spans, lambda name: name in MANY_VIEWS)[op]
    outermost = ~starts[:-1] & ((parents < 0) | starts[parents])
    return op[long & outermost]


def after_closures(facts: Facts, start_ns: IntArray, end_ns: IntArray, also: IntArray = _NONE) -> IntArray:
    """When each call of `Optimizer.step` (in order of start) begins to update: after the backward ops of its closure.

    Its start if it has no closure. `also`: ids of other spans that a closure may have, such as `zero_grad`.
    """
    spans, ops = facts.rank.spans, facts.rank.ops
    inner = np.append(ops.index[ops["forward_thread"] > 0].to_numpy(), also).astype(np.int64)
    begun = spans["start_ns"].to_numpy()[inner]
    at = np.searchsorted(start_ns, begun, side="right") - 1
    inside = (at >= 0) & (begun < np.append(end_ns, 0)[at])
    begins = start_ns.copy()
    np.maximum.at(begins, at[inside], begun[inside] + spans["dur_ns"].to_numpy()[inner[inside]])
    return np.minimum(begins, end_ns)


@fact
def host_activities(facts: Facts) -> dict[TimeCause, Intervals]:
    """For each activity but PYTHON the normal set of times when a training thread was in it, and in none before it."""
    spans, threads, calls = facts.rank.spans, host_threads(facts), api_calls(facts)
    kind = spans["kind"].cat.codes.to_numpy()
    start, end = spans["start_ns"].to_numpy(), (spans["start_ns"] + spans["dur_ns"]).to_numpy()
    on_thread = np.isin(spans["track"].to_numpy(), threads.training)
    every, api = Intervals(start, end), Intervals(calls.start_ns, calls.end_ns)

    def active(activity: Activity) -> npt.NDArray[np.bool_]:
        return on_thread & _named_like(spans, lambda name: kinds.activity(name) is activity)

    optimizing = active(Activity.OPTIMIZER_STEP)
    on_device = len(device_work(facts).ids) > 0
    updating, zeroing = (np.flatnonzero(chosen & on_device) for chosen in (optimizing, active(Activity.ZERO_GRAD)))
    updated = Intervals(after_closures(facts, start[updating], end[updating], zeroing), end[updating])
    # Transfers of gloo are recorded on the thread that asks, across all it does until it has waited for them.
    on_worker = ~on_thread | _named_like(spans, lambda name: name.startswith(("gloo:send", "gloo:recv")))
    blocking = _named_like(spans, lambda name: name.startswith(("gloo:", "mpi:")) or "barrier" in name)

    def kind_is(*wanted: SpanKind) -> npt.NDArray[np.bool_]:
        return ~on_worker & np.isin(kind, [enums.code(one) for one in wanted])

    found = {
        TimeCause.GARBAGE_COLLECTION: every.where(active(Activity.GARBAGE_COLLECTION)),
        TimeCause.COMPILE: every.where(active(Activity.COMPILE)),
        TimeCause.CHECKPOINT: every.where(active(Activity.CHECKPOINT)),
        TimeCause.ALLOCATION: api.where(calls.of(*ALLOCATING)),
        TimeCause.SYNC: api.where(calls.blocks),
        TimeCause.LOADER: every.where(kind_is(SpanKind.LOADER)),
        TimeCause.OTHER_RANK: every.where(kind_is(SpanKind.COLLECTIVE) & blocking),
        TimeCause.HOST_COPY: api.where(calls.of(ApiKind.COPY)),
        TimeCause.HOST_COMPUTE: every.where(host_compute_ops(facts)),
        TimeCause.OPTIMIZER: intervals.merge(updated, every.where(zeroing)),
        TimeCause.LAUNCH: api.where(calls.of(ApiKind.KERNEL_LAUNCH, ApiKind.GRAPH_LAUNCH, ApiKind.MEMSET)),
        TimeCause.BLOCKED: every.where(kind_is(SpanKind.SYSTEM)),
        TimeCause.OPS: every.where(kind_is(SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.RUNTIME, SpanKind.DRIVER)),
        TimeCause.HOST_NOT_RECORDED: host_recorded(facts).missing_in(steps(facts).start_ns, steps(facts).end_ns),
    }
    taken, exclusive = intervals.EMPTY, {}  # Of several activities at once, the first in `found` counts.
    for activity, pieces in found.items():
        own = intervals.union(pieces)
        exclusive[activity] = intervals.subtract(own, taken)
        taken = intervals.merge(taken, own)
    elsewhere = on_worker & (kind == enums.code(SpanKind.COLLECTIVE)) & blocking
    begun = np.sort(start[optimizing])
    known = np.append(begun, np.iinfo(np.int64).max)[np.searchsorted(begun, start[elsewhere])]
    # An optimizer needs what was reduced before it: nobody waits any more, whenever the thread that reduced is through.
    carried_out = Intervals(start[elsewhere], np.minimum(end[elsewhere], known))
    waiting = intervals.subtract(intervals.union(carried_out), taken)
    exclusive[TimeCause.OTHER_RANK] = intervals.merge(exclusive[TimeCause.OTHER_RANK], waiting)
    return exclusive


def _named_like(spans: pd.DataFrame, fits: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    names = spans["name"].cat
    return np.array([fits(str(name)) for name in names.categories], dtype=bool)[names.codes.to_numpy()]


class HostTime(Struct, frozen=True):
    """How the training threads together spend the mean step, ns per step; the parts add up to the step."""

    step_ns: int
    parts: dict[TimeCause, int]


@fact
def host_time(facts: Facts) -> HostTime:
    """The training threads' time over the used steps by activity; PYTHON is what no other activity covers."""
    used, found = steps(facts), host_activities(facts)
    totals = {activity: intervals.clip(own, used.start_ns, used.end_ns).total for activity, own in found.items()}
    totals[TimeCause.PYTHON] = used.window_ns - sum(totals.values())
    parts = shared_out(list(totals.values()), used.count)
    return HostTime(sum(parts), dict(zip(totals, parts, strict=True)))


def enclosing_op(facts: Facts, ids: IntArray) -> IntArray:
    """Id of the innermost op open on the same thread when each host span starts, or -1. Shape (ids,)."""
    threads = facts.rank.spans["track"].to_numpy()[ids].astype(np.int64)
    asked = (np.bincount(threads, minlength=len(facts.rank.tracks)) > 0)[_ops(facts)[3]]
    op, start, end, track = (column[asked] for column in _ops(facts))  # Of the same threads.
    found = intervals.innermost_at(facts.rank.spans["start_ns"].to_numpy()[ids], threads, track, start, end)
    return np.append(op, intervals.NONE)[found]


def asking_ops(facts: Facts, ids: IntArray) -> IntArray:
    """Id of the outermost op open on the same thread when each host span starts, or -1. Shape (ids,).

    The outermost op is the one the program called: `aten::item` rather than `aten::_local_scalar_dense`.
    """
    op, up, found = _ops(facts)[0], _parents_of_ops(facts), enclosing_op(facts, ids)
    at = np.searchsorted(op, found)
    climbing = np.flatnonzero(found >= 0)
    while len(climbing):
        climbing = climbing[up[at[climbing]] >= 0]
        at[climbing] = up[at[climbing]]
    return np.where(found >= 0, np.append(op, intervals.NONE)[at], intervals.NONE)


@once
def _ops(facts: Facts) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(id, start, end, track) of all ops, in order of start."""
    spans = facts.rank.spans
    op_kinds = [enums.code(SpanKind.OP), enums.code(SpanKind.COLLECTIVE)]
    op = np.flatnonzero(np.isin(spans["kind"].cat.codes.to_numpy(), op_kinds))
    start = spans["start_ns"].to_numpy()[op]
    return op, start, start + spans["dur_ns"].to_numpy()[op], spans["track"].to_numpy()[op].astype(np.int64)


@once
def _parents_of_ops(facts: Facts) -> IntArray:
    """Position in `_ops` of the innermost op that contains each one on its thread, or -1. Shape (ops,)."""
    _, start, end, track = _ops(facts)
    return intervals.parents(track, start, end)
