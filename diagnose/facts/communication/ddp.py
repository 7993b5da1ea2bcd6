"""What does DistributedDataParallel do besides reducing gradients, that an option can save?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.causes import TimeCause
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.host import host_activities, host_threads
from diagnose.facts.core.names import DDP_FORWARD
from diagnose.facts.core.spans import NO_OPS, HostSpans, host_spans, idle_under, launched_in
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals, nesting
from diagnose.trace.enums import Direction, SpanKind
from diagnose.trace.intervals import IntArray, Intervals


class DdpWork(str, Enum):
    """What DistributedDataParallel does besides reducing gradients. Seen to go with the options named (torch 2.13)."""

    UNUSED_SEARCH = "unused_search"
    """With find_unused_parameters=True."""
    COPIES_FROM_BUCKETS = "copies_from_buckets"
    """Reduced gradients into the parameters': not with gradient_as_bucket_view=True."""
    COPIES_INTO_BUCKETS = "copies_into_buckets"
    """Gradients into the buckets: not with gradient_as_bucket_view=True and zero_grad(set_to_none=False)."""
    BUFFER_BROADCASTS = "buffer_broadcasts"
    """Buffers packed, sent and unpacked before each forward: not with broadcast_buffers=False."""


_REDUCER = {
    "torch.distributed.ddp.reducer::search_unused_parameters": DdpWork.UNUSED_SEARCH,
    "torch.distributed.ddp.reducer::copy_bucket_to_grad": DdpWork.COPIES_FROM_BUCKETS,
    "torch::distributed::reducer::mul_out": DdpWork.COPIES_INTO_BUCKETS,
}
_SENDS = ("c10d::broadcast_",)
_UNPACKS = ("aten::unflatten_dense_tensors", "aten::copy_")
_PACKS = ("aten::flatten_dense_tensors", "aten::view", "aten::cat", "record_param_comms")
"""What a forward begins with where buffers are broadcast, none of it inside another op."""


@dataclass(frozen=True)
class DdpOverhead:
    """Work of DistributedDataParallel that an option can save."""

    work: DdpWork
    ids: IntArray
    """Ops that do it, none inside another."""
    work_ids: IntArray
    """Device operations launched in them."""
    host_ns: int
    """Host time in the ops, per step."""
    idle_ns: int | None
    """Idle time of the device under them, per step; None without device work."""
    device_ns: int
    """Time of the device operations of the used steps, per step."""
    track: int
    """Of the main thread."""
    waits: Intervals
    """When it did nothing but wait for collectives on the host that belong to it."""
    waits_ns: int
    """The same per step."""

    @property
    def most_ns(self) -> int:
        """The longest of what it takes of the host, of the device, and of waiting."""
        return max(self.host_ns, self.device_ns, self.waits_ns)


@fact
def ddp_overheads(facts: Facts) -> tuple[DdpOverhead, ...]:
    """What of it occurs in the used steps, most host time first. Raises Missing without ops."""
    if "ops" not in facts.rank.provenance.recorded:
        raise NO_OPS
    reducer = host_spans(facts, SpanKind.OP, named=lambda name: name in _REDUCER)
    names = facts.rank.spans["name"].iloc[reducer.ids].to_numpy()
    found = {work: reducer.where(names == name).outermost() for name, work in _REDUCER.items()}
    found[DdpWork.BUFFER_BROADCASTS], until = _buffer_broadcasts(facts)
    rows = [
        _overhead(facts, work, ops, until if work is DdpWork.BUFFER_BROADCASTS else intervals.EMPTY)
        for work, ops in found.items()
        if len(ops.in_steps(facts).ids)
    ]
    return tuple(sorted(rows, key=lambda row: -row.most_ns))


def _overhead(facts: Facts, kind: DdpWork, ops: HostSpans, until: Intervals) -> DdpOverhead:
    """`until`: when the main thread is at it, besides in the ops."""
    used, work = steps(facts), device_work(facts)
    inside = launched_in(facts, ops) >= 0
    counted = inside & (work.start_ns >= used.start_ns) & (work.start_ns < used.end_ns)
    during = ops.in_steps(facts).times
    waits = intervals.intersect(until, host_activities(facts)[TimeCause.OTHER_RANK]) if until.size else until
    return DdpOverhead(
        work=kind,
        ids=ops.ids,
        work_ids=work.ids[inside],
        host_ns=round_half_up(during.total, used.count),
        idle_ns=idle_under(facts, during),
        device_ns=round_half_up(int((work.end_ns - work.start_ns)[counted].sum()), used.count),
        track=host_threads(facts).main,
        waits=waits,
        waits_ns=round_half_up(intervals.clip(waits, used.start_ns, used.end_ns).total, used.count),
    )


def _buffer_broadcasts(facts: Facts) -> tuple[HostSpans, Intervals]:
    """The ops that forwards of DDP begin with, from packing the buffers to the last one unpacked.

    And the time from the beginning of such a forward to what the model does first.
    """
    ops = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE).outermost()
    forward = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name == DDP_FORWARD).outermost()
    within = nesting.innermost_at(ops.start_ns, ops.track, forward.track, forward.start_ns, forward.end_ns)
    ops, within = ops.where(within >= 0), within[within >= 0]
    names = facts.rank.spans["name"].iloc[ops.ids].to_numpy()
    sending, unpacking = np.isin(names, _SENDS), np.isin(names, _UNPACKS)
    other = ~(sending | unpacking | np.isin(names, _PACKS))
    ends = np.full(len(forward.ids), np.iinfo(np.int64).max)
    np.minimum.at(ends, within[other], ops.start_ns[other])
    leading = ops.start_ns < ends[within]
    last, done = np.full(len(forward.ids), -1), leading & (sending | unpacking)
    np.maximum.at(last, within[done], ops.start_ns[done])
    sends = np.unique(within[leading & sending])
    begins = Intervals(forward.start_ns[sends], np.minimum(ends, forward.end_ns)[sends])
    chosen = leading & (ops.start_ns <= last[within]) & np.isin(within, sends)
    return ops.where(chosen), intervals.union(begins)


@dataclass(frozen=True)
class DataParallelUse:
    """Training by torch.nn.DataParallel, which drives all GPUs from one process."""

    devices: int
    """That compute in this process; 0 if DataParallel is not used."""
    ids: IntArray
    """Device work that moves things between them."""
    ns: int
    """Time in which some of it ran, per step."""


@fact
def data_parallel_use(facts: Facts) -> DataParallelUse:
    """Of the used steps. Raises Missing like steps."""
    used, work, copies = steps(facts), device_work(facts), facts.rank.copies
    device = facts.rank.tracks["device"].to_numpy()[work.track]
    replicas = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name == "DataParallel.forward")
    between = copies.index[(copies["direction"] == Direction.P2P.value).to_numpy()]
    moves = (work.work_class == WorkClass.COMMUNICATION) | np.isin(work.ids, between)
    moves &= len(replicas.ids) > 0
    running = intervals.union(Intervals(work.start_ns[moves], work.end_ns[moves]))
    return DataParallelUse(
        devices=len(np.unique(device[work.work_class == WorkClass.COMPUTE])) if len(replicas.ids) else 0,
        ids=work.ids[moves],
        ns=round_half_up(intervals.clip(running, used.start_ns, used.end_ns).total, used.count),
    )
