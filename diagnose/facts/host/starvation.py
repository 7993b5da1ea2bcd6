"""Is the device starved because the host dispatches ops too slowly?"""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import (
    IDLE_CAUSES,
    LAUNCHING,
    NO_DEVICE,
    TimeCause,
    breakdown,
    launch_table,
    round_half_up,
)
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import api_calls, host_activities, host_compute_ops
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.inputs import grouped, name_codes, name_of
from diagnose.facts.core.spans import host_spans, in_used_steps, on_training_threads, require_ops, used_step
from diagnose.facts.core.steps import steps
from diagnose.facts.device.transfers import host_born
from diagnose.facts.host.callees import whole_calls
from diagnose.facts.host.waits import WaitReason, host_waits
from diagnose.trace import enums, intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import ApiKind

READING = (WaitReason.SCALAR_READ, WaitReason.TENSOR_READ, WaitReason.DATA_DEPENDENT_SHAPE)
FEW_LAUNCHES = 50  # Fewer are no reason to compile anything (our choice).


class Starvation(Struct, frozen=True):
    """Idle time of the device for which the host launched too slowly."""

    idle_ns: int  # Idle time with a cause in `LAUNCHING`, per step.
    share: float  # `idle_ns` over the step.
    gaps: Intervals  # These idle gaps, in the used steps.
    times: tuple[tuple[int, Intervals], ...]
    """Host time of launching by thread: that of outermost ops that were open in such a gap, without what in them has a
    cause of its own, and without ops that only read a number."""
    reads: int
    """Reads of the device's tensors, per step, if after most of them the next comes before FEW_LAUNCHES launches; else
    0. Each ends what can be compiled as one, and no CUDA graph may hold one."""
    syncs: int  # Waits of the host for the device, whatever for, per step.
    launches: int  # Calls that launch device work, per step; a CUDA graph is one.
    empty_queue_share: float  # Share of these calls that found nothing outstanding on their stream.
    kernel_median_ns: int  # Median duration of a kernel.
    graph_share: float  # Share of the kernels that a CUDA graph launched.
    repeats: bool | None  # Each used step launches the same kernels and grids, as a CUDA graph would; None with one.


@fact
def starvation(facts: Facts) -> Starvation:
    """Starvation in the used steps. Raises Missing like idle_gaps and launch_table, without ops or kernels."""
    table, used, found = launch_table(facts), steps(facts), idle_gaps(facts)
    require_ops(facts)
    gaps = found.gaps.where(np.isin(found.cause, [IDLE_CAUSES.index(cause) for cause in LAUNCHING]))
    _, first = np.unique(table.call, return_index=True)
    kernels, by_graph = _kernels(facts)
    if not len(kernels) or not len(first):
        raise Missing("kernels in the used steps", "Record more steps.")
    dur = facts.rank.spans["dur_ns"].to_numpy()[kernels]
    idle_ns = round_half_up(gaps.total, used.count)
    return Starvation(
        idle_ns=idle_ns,
        share=idle_ns / max(breakdown(facts).step_ns, 1),
        gaps=gaps,
        times=_launching(facts, gaps),
        reads=_reads(facts, np.unique(table.call)),
        syncs=round_half_up(sum(one.total_calls for one in optional(host_waits, facts) or ()), used.count),
        launches=round_half_up(len(first), used.count),
        empty_queue_share=float((table.depth[first] == 0).mean()),
        kernel_median_ns=int(np.median(dur)),
        graph_share=float(by_graph.mean()),
        repeats=_repeats(facts, kernels),
    )


def _kernels(facts: Facts) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Ids of the kernels of the used steps, and which of them a CUDA graph launched."""
    work, used, calls = device_work(facts), steps(facts), api_calls(facts)
    is_kernel = facts.rank.spans["kind"].cat.codes.to_numpy()[work.ids] == enums.code(SpanKind.KERNEL)
    inside = is_kernel & (work.start_ns >= used.start_ns) & (work.start_ns < used.end_ns)
    ids = work.ids[inside]
    in_graph = facts.rank.kernels["graph_id"].reindex(ids, fill_value=0).to_numpy() > 0
    return ids, in_graph | np.isin(work.launch[inside], calls.ids[calls.of(ApiKind.GRAPH_LAUNCH)])


def _repeats(facts: Facts, kernels: IntArray) -> bool | None:
    """Whether each step runs the same kernels, in order, with the same grids; None for a single step."""
    table, grids = facts.rank.spans, facts.rank.kernels[["grid_x", "grid_y", "grid_z"]]
    identity = np.column_stack((table["name"].cat.codes.to_numpy()[kernels], grids.reindex(kernels, fill_value=0)))
    step = used_step(facts, kernels)
    by_step = [identity[step == number] for number in np.unique(step[step >= 0])]
    return all(np.array_equal(kernels_of_step, by_step[0]) for kernels_of_step in by_step) if len(by_step) > 1 else None


def _launching(facts: Facts, gaps: Intervals) -> tuple[tuple[int, Intervals], ...]:
    """By thread, when the host is in ops that launch during gaps, without ops that read a device value."""
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)).outermost()
    ops = ops.where(intervals.covered(Intervals(ops.start_ns, ops.end_ns), gaps) > 0)
    launching = intervals.merge(*(host_activities(facts)[cause] for cause in LAUNCHING))
    waits, table = optional(host_waits, facts) or (), facts.rank.spans
    reading = np.concatenate([ops.ids[:0], *(one.op_ids[one.op_ids >= 0] for one in waits)])
    start = table["start_ns"].to_numpy()[reading]
    own = intervals.subtract(launching, intervals.union(Intervals(start, start + table["dur_ns"].to_numpy()[reading])))
    return tuple(
        (int(track), intervals.intersect(ops.where(ops.track == track).times, own)) for track in np.unique(ops.track)
    )


def _reads(facts: Facts, launches: IntArray) -> int:
    """As `Starvation.reads`. `launches`: the distinct ids of the launching calls, in order, which is that of start."""
    waits = [one for one in optional(host_waits, facts) or () if one.reason in READING]
    ids = np.concatenate([launches[:0], *(one.ids for one in waits)])
    step, after = np.unique(np.stack((used_step(facts, ids), np.searchsorted(launches, ids, side="right"))), axis=1)
    after = after[step >= 0]
    close = int(((np.diff(after) < FEW_LAUNCHES) & (np.diff(step[step >= 0]) == 0)).sum())
    return round_half_up(len(after), steps(facts).count) if 2 * close > len(after) else 0


class HostCompute(Struct, frozen=True):
    """Calls of one op that computes on the CPU, at one line, at least one of them in the used steps."""

    op: str
    site: Site | None
    ids: IntArray  # The ops, in the whole recording.
    move_ids: IntArray  # The ops that copy what they made out of nothing to the device.
    calls: int  # In all used steps.
    ns: int  # Per step.
    idle_ns: int
    """Of it, in idle gaps of the device with cause HOST_COMPUTE, per step: not what follows a wait for the device, as
    without that it would run beside the device's work."""
    share: float  # `idle_ns` over the step.


@fact
def host_compute(facts: Facts) -> tuple[HostCompute, ...]:
    """By op and line, most idle time first. Raises Missing without device work, or without ops.

    Without what is part of something with a name of its own: loading, compiling, a checkpoint, a call of a logger.
    """
    if not len(device_work(facts).ids):
        raise NO_DEVICE
    require_ops(facts)
    ids, spans, used = host_compute_ops(facts), facts.rank.spans, steps(facts)
    start, ns = (spans[name].to_numpy()[ids] for name in ("start_ns", "dur_ns"))
    computing = intervals.subtract(host_activities(facts)[TimeCause.HOST_COMPUTE], whole_calls(facts))
    own = intervals.covered(Intervals(start, start + ns), computing) > ns // 2
    ids, start, ns = ids[own], start[own], ns[own]
    gaps = idle_gaps(facts)
    idle = gaps.gaps.where(gaps.cause == IDLE_CAUSES.index(TimeCause.HOST_COMPUTE))
    seen, born, found = in_used_steps(facts, ids), host_born(facts), list[HostCompute]()
    for rows, site in grouped(facts, ids, name_codes(facts, ids)):
        mine = rows[seen[rows]]
        if len(mine):
            pieces = intervals.intersect(intervals.union(Intervals(start[mine], (start + ns)[mine])), idle)
            idle_ns = round_half_up(pieces.total, used.count)
            found.append(
                HostCompute(
                    op=name_of(facts, int(ids[rows[0]])),
                    site=site,
                    ids=ids[rows],
                    move_ids=np.concatenate([ids[:0], *(one.move_ids[np.isin(one.ids, ids[rows])] for one in born)]),
                    calls=len(mine),
                    ns=round_half_up(int(ns[mine].sum()), used.count),
                    idle_ns=idle_ns,
                    share=idle_ns / max(used.mean_ns, 1),
                )
            )
    return tuple(sorted(found, key=lambda one: -one.idle_ns))
