"""Is the device starved because the host dispatches ops too slowly?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import breakdown, round_half_up
from diagnose.facts.core.causes import IDLE_CAUSES, TimeCause
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import api_calls
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.launches import launch_table
from diagnose.facts.core.spans import (
    host_spans,
    on_training_threads,
    require_ops,
)
from diagnose.facts.core.steps import steps
from diagnose.trace import enums, intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import ApiKind


@dataclass(frozen=True)
class Starvation:
    """Idle time of the device for which the host dispatched too slowly."""

    idle_ns: int
    """Idle time with cause `ops` or `launch`, per step."""
    share: float
    """`idle_ns` over the step."""
    gaps: Intervals
    """These idle gaps, in the used steps."""
    op_ids: IntArray
    """Outermost ops of the training threads that were open in such a gap."""
    launches: int
    """Calls that launch device work, per step; a CUDA graph is one."""
    empty_queue_share: float
    """Share of these calls that found nothing outstanding on their stream."""
    kernels: int
    """Per step."""
    kernel_median_ns: int
    """Median duration of a kernel."""
    graph_share: float
    """Share of the kernels that a CUDA graph launched."""


@fact
def starvation(facts: Facts) -> Starvation:
    """Starvation in the used steps. Raises Missing like idle_gaps and launch_table, without ops or kernels."""
    table, used, found = launch_table(facts), steps(facts), idle_gaps(facts)
    require_ops(facts)
    late = np.isin(found.cause, [IDLE_CAUSES.index(cause) for cause in (TimeCause.OPS, TimeCause.LAUNCH)])
    gaps = Intervals(found.gaps.starts[late], found.gaps.ends[late])
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
        op_ids=_ops_in(facts, gaps),
        launches=round_half_up(len(first), used.count),
        empty_queue_share=float((table.depth[first] == 0).mean()),
        kernels=round_half_up(len(kernels), used.count),
        kernel_median_ns=int(np.median(dur)),
        graph_share=float(by_graph.mean()),
    )


def _kernels(facts: Facts) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Ids of the kernels of the used steps, and which of them a CUDA graph launched."""
    work, used, calls = device_work(facts), steps(facts), api_calls(facts)
    is_kernel = facts.rank.spans["kind"].cat.codes.to_numpy()[work.ids] == enums.code(SpanKind.KERNEL)
    inside = is_kernel & (work.start_ns >= used.start_ns) & (work.start_ns < used.end_ns)
    ids = work.ids[inside]
    in_graph = facts.rank.kernels["graph_id"].reindex(ids, fill_value=0).to_numpy() > 0
    return ids, in_graph | np.isin(work.launch[inside], calls.ids[calls.of(ApiKind.GRAPH_LAUNCH)])


def _ops_in(facts: Facts, gaps: Intervals) -> IntArray:
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)).outermost()
    return ops.ids[intervals.covered(Intervals(ops.start_ns, ops.end_ns), gaps) > 0]
