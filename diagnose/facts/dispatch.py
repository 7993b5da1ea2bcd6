"""Is the device starved because the host dispatches ops too slowly? And spans of the host, chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.facts.base import Facts, Missing, fact, optional
from diagnose.facts.breakdown import breakdown, device_time, round_half_up
from diagnose.facts.device import device_work
from diagnose.facts.host import api_calls, host_threads
from diagnose.facts.idle import IdleCause, idle_gaps
from diagnose.facts.launches import launch_table
from diagnose.facts.steps import Measure, steps
from diagnose.trace import enums, intervals, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import ApiKind

SHORT_KERNEL_NS = 10_000
"""Eager dispatch takes the host 5 to 10 us an op: a device with shorter kernels outruns it."""

NO_OPS = Missing("framework ops", "Profile with ProfilerActivity.CPU as well.")

_CAUSES = list(IdleCause)


@dataclass(frozen=True)
class HostSpans:
    """Some spans, in order of start. Arrays of shape (spans,)."""

    ids: IntArray
    start_ns: IntArray
    end_ns: IntArray
    track: IntArray

    @property
    def times(self) -> Intervals:
        """Normal set of the time in at least one of them."""
        return intervals.union(Intervals(self.start_ns, self.end_ns))

    def where(self, chosen: npt.NDArray[np.bool_] | IntArray) -> HostSpans:
        """Some of them, by mask or position."""
        return HostSpans(self.ids[chosen], self.start_ns[chosen], self.end_ns[chosen], self.track[chosen])

    def outermost(self) -> HostSpans:
        """Those that lie in no other of them."""
        return self.where(nesting.parents(self.track, self.start_ns, self.end_ns) < 0)

    def in_steps(self, facts: Facts) -> HostSpans:
        """Those of the used steps, as `in_used_steps`."""
        return self.where(in_used_steps(facts, self.ids))


_NONE = np.zeros(0, dtype=np.int64)
NO_SPANS = HostSpans(_NONE, _NONE, _NONE, _NONE)


def host_spans(facts: Facts, *span_kinds: SpanKind, named: Callable[[str], bool] | None = None) -> HostSpans:
    """Spans of these kinds, on any thread, whose names `named` accepts (asked once per distinct name)."""
    spans = facts.rank.spans
    chosen = np.isin(spans["kind"].cat.codes.to_numpy(), [enums.code(kind) for kind in span_kinds])
    if named is not None:
        names = spans["name"].cat
        codes = names.codes.to_numpy()
        accepted = np.zeros(len(names.categories), dtype=bool)
        for code in np.unique(codes[chosen]):
            accepted[code] = named(str(names.categories[code]))
        chosen &= accepted[codes]
    ids = np.flatnonzero(chosen)
    start = spans["start_ns"].to_numpy()[ids]
    end = start + spans["dur_ns"].to_numpy()[ids]
    return HostSpans(ids, start, end, spans["track"].to_numpy()[ids].astype(np.int64))


def used_step(facts: Facts, ids: IntArray) -> IntArray:
    """Which used step each span belongs to, by position, or -1. Shape (ids,).

    It is the one whose mark on the host it starts in, because the host may be steps ahead of the device; of device
    work, the one that launched it. Without steps it is the window.
    """
    used, spans = steps(facts), facts.rank.spans
    if used.measure is Measure.WINDOW:
        start = spans["start_ns"].to_numpy()[ids]
        return np.where((start >= used.start_ns) & (start < used.end_ns), 0, nesting.NONE)
    position = {number: k for k, number in enumerate(used.numbers)}
    of_mark = np.array([*(position.get(mark.number, nesting.NONE) for mark in facts.rank.steps), nesting.NONE])
    found: IntArray = of_mark[spans["step"].to_numpy()[ids]]
    return found


def in_used_steps(facts: Facts, ids: IntArray) -> npt.NDArray[np.bool_]:
    """Which spans belong to used steps, by their marks on the host. Shape (ids,)."""
    return used_step(facts, ids) >= 0


def launched_in(facts: Facts, spans: HostSpans) -> IntArray:
    """For each row of `device_work` the position of the innermost of the spans that it was launched in, or -1."""
    work, table = device_work(facts), facts.rank.spans
    called = np.maximum(work.launch, 0)
    start, track = table["start_ns"].to_numpy()[called], table["track"].to_numpy()[called].astype(np.int64)
    found = nesting.innermost_at(start, track, spans.track, spans.start_ns, spans.end_ns)
    return np.where(work.launch >= 0, found, nesting.NONE)


def on_training_threads(facts: Facts, spans: HostSpans) -> HostSpans:
    """Those of the spans that are on training threads. Raises Missing like host_threads."""
    return spans.where(np.isin(spans.track, host_threads(facts).training))


def idle_under(facts: Facts, times: Intervals) -> int | None:
    """Idle time of the device within a normal set of times, ns per step; None without device work."""
    time = optional(device_time, facts)
    if time is None:
        return None
    return round_half_up(intervals.intersect(times, time.idle).total, steps(facts).count)


def whole_idle(facts: Facts) -> Intervals:
    """Idle time of the device between its first and last work of the whole recording; empty without device work."""
    busy = device_work(facts).of()
    return intervals.gaps(busy, int(busy.starts[0]), int(busy.ends[-1])) if busy.size else intervals.EMPTY


def members(group: IntArray, groups: int) -> list[IntArray]:
    """Positions of the members of each group from 0 to groups - 1, in order."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.cumsum(np.bincount(group, minlength=groups))[:-1]) if groups else []


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
    """Outermost ops of the training threads, of the whole recording, of every name that was open in such a gap."""
    launches: int
    """Calls that launch device work, per step; a CUDA graph is one."""
    empty_queue_share: float
    """Share of these calls that found nothing outstanding on their stream."""
    kernels: int
    """Per step."""
    kernel_median_ns: int
    """Median duration of a kernel."""
    short_kernel_share: float
    """Share of the kernels that are shorter than SHORT_KERNEL_NS."""
    graph_share: float
    """Share of the kernels that a CUDA graph launched."""


@fact
def starvation(facts: Facts) -> Starvation:
    """Starvation in the used steps. Raises Missing like idle_gaps and launch_table, without ops or kernels."""
    table, used, found = launch_table(facts), steps(facts), idle_gaps(facts)
    require_ops(facts)
    late = np.isin(found.cause, [_CAUSES.index(cause) for cause in (IdleCause.OPS, IdleCause.LAUNCH)])
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
        op_ids=_ops_named_as_in(facts, gaps),
        launches=round_half_up(len(first), used.count),
        empty_queue_share=float((table.depth[first] == 0).mean()),
        kernels=round_half_up(len(kernels), used.count),
        kernel_median_ns=int(np.median(dur)),
        short_kernel_share=float((dur < SHORT_KERNEL_NS).mean()),
        graph_share=float(by_graph.mean()),
    )


def require_ops(facts: Facts) -> None:
    """Without ops, dispatching them and Python between them look the same."""
    if "ops" not in facts.rank.provenance.recorded:
        raise NO_OPS


def _kernels(facts: Facts) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Ids of the kernels of the used steps, and which of them a CUDA graph launched."""
    work, used, calls = device_work(facts), steps(facts), api_calls(facts)
    is_kernel = facts.rank.spans["kind"].cat.codes.to_numpy()[work.ids] == enums.code(SpanKind.KERNEL)
    inside = is_kernel & (work.start_ns >= used.start_ns) & (work.start_ns < used.end_ns)
    ids = work.ids[inside]
    in_graph = facts.rank.kernels["graph_id"].reindex(ids, fill_value=0).to_numpy() > 0
    return ids, in_graph | np.isin(work.launch[inside], calls.ids[calls.of(ApiKind.GRAPH_LAUNCH)])


def _ops_named_as_in(facts: Facts, gaps: Intervals) -> IntArray:
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)).outermost()
    codes = facts.rank.spans["name"].cat.codes.to_numpy()[ops.ids]
    inside = intervals.covered(Intervals(ops.start_ns, ops.end_ns), gaps) > 0
    return ops.ids[np.isin(codes, codes[inside])]
