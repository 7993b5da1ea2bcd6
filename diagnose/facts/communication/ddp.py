"""In which buckets and how often does DistributedDataParallel reduce gradients, and what else does it do?"""

from enum import Enum
from math import ceil

import numpy as np
from msgspec import Struct

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.host_collectives import host_collectives
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import TimeCause, device_time, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import asking_ops, host_activities, host_threads
from diagnose.facts.core.inputs import BACKWARD, DDP_FORWARD, Mask, named
from diagnose.facts.core.spans import NO_SPANS, HostSpans, host_spans, launched_in, require_ops
from diagnose.facts.core.steps import steps
from diagnose.facts.optimizer.optimizer import is_update
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals


class DdpWork(str, Enum):
    """What DistributedDataParallel does besides reducing gradients. Seen to go with the options named (torch 2.13)."""

    UNUSED_SEARCH = "unused_search"  # With find_unused_parameters=True.
    COPIES_FROM_BUCKETS = "copies_from_buckets"  # Of reduced gradients: not with gradient_as_bucket_view=True.
    COPIES_INTO_BUCKETS = "copies_into_buckets"  # Not with that and zero_grad(set_to_none=False).
    BUFFER_BROADCASTS = "buffer_broadcasts"  # Packed, sent and unpacked before each forward: broadcast_buffers=True.


_REDUCER = {
    "torch.distributed.ddp.reducer::search_unused_parameters": DdpWork.UNUSED_SEARCH,
    "torch.distributed.ddp.reducer::copy_bucket_to_grad": DdpWork.COPIES_FROM_BUCKETS,
    "torch::distributed::reducer::mul_out": DdpWork.COPIES_INTO_BUCKETS,
}
_REDUCES = "c10d::allreduce_"
_OF_ROUNDS = (_REDUCES, "torch::distributed::reducer::mul_out", "torch.distributed.ddp.reducer::copy_bucket_to_grad")
"""What the reducer does on the host for each round of reductions."""
_UNPACKS = ("aten::unflatten_dense_tensors", "aten::copy_")
_PACKS = ("aten::flatten_dense_tensors", "aten::view", "aten::cat", "record_param_comms")
"""What a forward begins with where buffers are broadcast, none of it inside another op."""


class DdpOverhead(Struct, frozen=True):
    """Work of DistributedDataParallel that an option can save."""

    work: DdpWork
    ids: IntArray  # Ops that do it, none inside another.
    work_ids: IntArray  # Device operations launched in them.
    host_ns: int  # Host time in the ops, per step.
    device_ns: int  # Time of the device operations of the used steps, per step.
    track: int  # Of the main thread.
    waits: Intervals  # When the main thread only waited for host collectives of this work.
    waits_ns: int  # The same per step.

    @property
    def most_ns(self) -> int:
        """The longest of what it takes of the host, of the device, and of waiting."""
        return max(self.host_ns, self.device_ns, self.waits_ns)


@fact
def ddp_overheads(facts: Facts) -> tuple[DdpOverhead, ...]:
    """The kinds of work that occur in the used steps, longest first. Raises Missing without ops."""
    require_ops(facts)
    ops = host_spans(facts, SpanKind.OP)
    found = {work: ops.where(named(facts, ops.ids, name)).outermost() for name, work in _REDUCER.items()}
    found[DdpWork.BUFFER_BROADCASTS], until = _buffer_broadcasts(facts)
    rows = [
        _overhead(facts, work, ops, until if work is DdpWork.BUFFER_BROADCASTS else intervals.EMPTY)
        for work, ops in found.items()
        if len(ops.in_steps(facts).ids)
    ]
    return tuple(sorted(rows, key=lambda row: -row.most_ns))


def _overhead(facts: Facts, kind: DdpWork, ops: HostSpans, until: Intervals) -> DdpOverhead:
    """What one kind of DDP's work takes. `until`: when the main thread may wait for its collectives on the host."""
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
        device_ns=round_half_up(int((work.end_ns - work.start_ns)[counted].sum()), used.count),
        track=host_threads(facts).main,
        waits=waits,
        waits_ns=round_half_up(intervals.clip(waits, used.start_ns, used.end_ns).total, used.count),
    )


def _forwards(facts: Facts) -> HostSpans:
    return host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name == DDP_FORWARD).outermost()


def _buffer_broadcasts(facts: Facts) -> tuple[HostSpans, Intervals]:
    """The ops by which forwards of DDP broadcast buffers at their beginning, from packing to the last one unpacked.

    And a normal set of times: from the beginning of each such forward to the first op of the model itself.
    """
    ops, forward = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE).outermost(), _forwards(facts)
    within = forward.around(ops)
    ops, within = ops.where(within >= 0), within[within >= 0]
    sending, unpacking = named(facts, ops.ids, "c10d::broadcast_"), named(facts, ops.ids, *_UNPACKS)
    other = ~(sending | unpacking | named(facts, ops.ids, *_PACKS))
    ends = np.full(len(forward.ids), np.iinfo(np.int64).max)
    np.minimum.at(ends, within[other], ops.start_ns[other])
    leading = ops.start_ns < ends[within]
    last, done = np.full(len(forward.ids), -1), leading & (sending | unpacking)
    np.maximum.at(last, within[done], ops.start_ns[done])
    sends = np.unique(within[leading & sending])
    begins = Intervals(forward.start_ns[sends], np.minimum(ends, forward.end_ns)[sends])
    chosen = leading & (ops.start_ns <= last[within]) & np.isin(within, sends)
    return ops.where(chosen), intervals.union(begins)


BUCKET_BYTES, FIRST_BYTES = 25 << 20, 1 << 20
"""Of DDP's buckets unless bucket_cap_mb says otherwise, and of the first, which is ready first (torch.distributed)."""


class Buckets(Struct, frozen=True):
    """Reductions that backward passes start. Numbers without a word on that are per step."""

    calls: int  # Per forward of DDP that is followed by some (the median); 0 if DDP reduces nothing.
    bytes: int  # Of one, on average.
    least_bytes: int  # Of the smallest.
    usual: int  # How many buckets of the usual size would hold as much as those of a forward.
    op_ids: IntArray  # What starts them on the host.
    ids: IntArray  # The collectives.
    track: int  # Of the main thread.
    waits: Intervals  # When the main thread only waited for those on the host.
    left: float
    """Share of the collectives' time that as many of the usual size would take: less by the shortest one's time for
    each that is spared. The shortest stands for the latency that each has whatever its size."""
    exposed_ns: int  # Time of those that no compute hides, on the host while the training threads were in no op.
    host_ns: int  # Host time in the ops that start them.


@fact
def buckets(facts: Facts) -> Buckets:
    """Raises Missing without ops, like collective_table, and if the sizes are not known."""
    require_ops(facts)
    table, used, ops = collective_table(facts), steps(facts), _reductions(facts)
    after = np.searchsorted(_forwards(facts).start_ns, ops.start_ns, side="right") - 1
    counts = np.bincount(after[after >= 0])
    calls = round(float(np.median(counts[counts > 0]))) if len(counts) else 0
    if not calls:
        none = NO_SPANS.ids
        return Buckets(0, 0, 0, 0, none, none, host_threads(facts).main, intervals.EMPTY, 1.0, 0, 0)
    at = launched_in(facts, ops)[np.searchsorted(device_work(facts).ids, table.ids[~table.on_host])]
    on_device = np.flatnonzero(~table.on_host)[at >= 0]
    known, at_host = host_collectives(facts), np.isin(host_collectives(facts).op_ids, ops.ids)
    sizes = np.concatenate((table.bytes[on_device], known.bytes[at_host]))
    if not len(sizes) or (sizes < 0).any():
        raise Missing("the sizes of gradient buckets", "NCCL: use PyTorch 2.2 or newer. gloo: record shapes.")
    hosts = np.flatnonzero(np.isin(table.ids, known.ids[at_host]))
    rows = np.concatenate((on_device, hosts))
    dur = table.times.ends[rows] - table.times.starts[rows]
    mean = float(sizes.mean())
    usual = 1 + ceil(max(mean * calls - FIRST_BYTES, 0) / BUCKET_BYTES)
    spared = max(1 - usual / calls, 0.0) * len(dur) * int(dur.min())
    waits = intervals.intersect(host_activities(facts)[TimeCause.OTHER_RANK], intervals.union_of(table.times, hosts))
    exposed = intervals.clip(waits, used.start_ns, used.end_ns).total
    if len(on_device):
        running = intervals.union_of(table.times, on_device)
        exposed += intervals.intersect(running, device_time(facts).exposed_communication).total
    return Buckets(
        calls=calls,
        bytes=round(mean),
        least_bytes=int(sizes.min()),
        usual=usual,
        op_ids=ops.ids,
        ids=table.ids[rows],
        track=host_threads(facts).main,
        waits=waits,
        left=max(1 - spared / max(int(dur.sum()), 1), 0.0),
        exposed_ns=round_half_up(exposed, used.count),
        host_ns=round_half_up(ops.in_steps(facts).times.total, used.count),
    )


def _reductions(facts: Facts) -> HostSpans:
    """The calls on the host by which backward passes start all-reduces."""
    ops = host_spans(facts, SpanKind.COLLECTIVE, SpanKind.OP, named=lambda name: name == _REDUCES)
    return ops.where(named(facts, asking_ops(facts, ops.ids), f"{BACKWARD}*"))


class Accumulation(Struct, frozen=True):
    """Reductions of gradients by DistributedDataParallel between two steps of the optimizer."""

    rounds: int  # Backward passes with reductions for each step of the optimizer (the median); 0 if there are none.
    alike: bool  # All rounds reduce equally often: the same gradients.
    op_ids: IntArray  # What the reducer does on the host in all rounds but the last before each step of the optimizer.
    ids: IntArray  # Collectives of these rounds that are carried out on the host.
    track: int  # Of the main thread.
    waits: Intervals  # When the main thread only waited for those.
    ns: int  # Time in which a collective of these rounds was running, per step.


@fact
def accumulation(facts: Facts) -> Accumulation:
    """Rounds of reductions in the recording. Raises Missing without ops, and like collective_table."""
    require_ops(facts)
    table, rounds, used = collective_table(facts), _Rounds(facts), steps(facts)
    ops = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE, named=lambda name: name in _OF_ROUNDS)
    ops = ops.where(rounds.early(ops.start_ns))
    launched = device_work(facts).ids[launched_in(facts, ops.outermost()) >= 0]
    on_host = table.on_host & rounds.early(table.times.starts)
    running = intervals.union_of(table.times, on_host | np.isin(table.ids, launched))
    waiting = host_activities(facts)[TimeCause.OTHER_RANK]
    return Accumulation(
        rounds=round(float(np.median(rounds.counts))) if len(rounds.counts) else 0,
        alike=rounds.alike,
        op_ids=ops.ids,
        ids=table.ids[on_host],
        track=host_threads(facts).main,
        waits=intervals.intersect(waiting, intervals.union_of(table.times, on_host)),
        ns=round_half_up(intervals.clip(running, used.start_ns, used.end_ns).total, used.count),
    )


class _Rounds:
    """The recording in turns, each until a step of the optimizer; each forward of DDP in a turn begins a round."""

    def __init__(self, facts: Facts) -> None:
        """Places all gradient reductions of DDP, which gives `counts` and `alike`."""
        self._forward_ns = _forwards(facts).start_ns
        self._optimizer_ns = host_spans(facts, SpanKind.ANNOTATION, named=is_update).outermost().start_ns
        reduces = host_spans(facts, SpanKind.COLLECTIVE, SpanKind.OP, named=lambda name: name == _REDUCES)
        round_of, turn = self._place(reduces.start_ns)
        round_of, turn = round_of[round_of >= 0], turn[round_of >= 0]
        self._last = np.full(len(self._optimizer_ns) + 1, -1)  # Round of each turn that reduces last; -1 if none does.
        np.maximum.at(self._last, turn, round_of)
        whole = (turn > 0) & (turn < len(self._optimizer_ns))
        seen, calls = np.unique(np.stack((turn[whole], round_of[whole])), axis=1, return_counts=True)
        self.counts = np.unique(seen[0], return_counts=True)[1]  # Rounds that reduce, of each whole turn that has some.
        self.alike = len(calls) > 0 and bool(calls.min() == calls.max())

    def _place(self, moments: IntArray) -> tuple[IntArray, IntArray]:
        """The round and the turn that each moment is in; round -1 before the first forward of its turn."""
        turn = np.searchsorted(self._optimizer_ns, moments, side="right")
        turn_begin_ns = np.append(np.iinfo(np.int64).min, self._optimizer_ns)[turn]
        round_of = np.searchsorted(self._forward_ns, moments, side="right") - 1
        round_begin_ns = np.append(self._forward_ns, np.iinfo(np.int64).min)[round_of]
        return np.where(round_begin_ns >= turn_begin_ns, round_of, -1), turn

    def early(self, moments: IntArray) -> Mask:
        """Which moments are in a round after which another one of the same turn reduces again."""
        round_of, turn = self._place(moments)
        return (round_of >= 0) & (round_of < self._last[turn])
