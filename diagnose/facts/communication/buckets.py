"""How many buckets does DistributedDataParallel reduce gradients in, and how small are they?"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.host_collectives import host_collectives
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.causes import TimeCause
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import asking_ops, host_activities, host_threads
from diagnose.facts.core.names import BACKWARD, DDP_FORWARD
from diagnose.facts.core.spans import HostSpans, host_spans, launched_in, require_ops
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals

BUCKET_BYTES, FIRST_BYTES = 25 << 20, 1 << 20
"""Of DDP's buckets unless bucket_cap_mb says otherwise, and of the first, which is ready first (torch.distributed)."""


@dataclass(frozen=True)
class Buckets:
    """Reductions that backward passes start. Numbers without a word on that are per step."""

    calls: int
    """Per forward of DDP that is followed by some (the median); 0 if DDP reduces nothing."""
    bytes: int
    """Of one, on average."""
    least_bytes: int
    """Of the smallest."""
    usual: int
    """How many buckets of the usual size would hold as much."""
    op_ids: IntArray
    """What starts them on the host."""
    ids: IntArray
    """The collectives."""
    track: int
    """Of the main thread."""
    waits: Intervals
    """When it did nothing but wait for those on the host."""
    left: float
    """Share of the collectives' time that as many of the usual size would take: less by the shortest one's time for
    each that is spared. The shortest stands for the latency that each has whatever its size."""
    exposed_ns: int
    """Time of the collectives that no compute hides, on the host while the training threads were in no op."""
    host_ns: int
    """Host time in the ops that start them."""


@fact
def buckets(facts: Facts) -> Buckets:
    """Raises Missing without ops, like collective_table, and if the sizes are not known."""
    require_ops(facts)
    table, used = collective_table(facts), steps(facts)
    ops = _reductions(facts)
    calls = _per_forward(facts, ops)
    if not calls:
        none = np.zeros(0, dtype=np.int64)
        return Buckets(0, 0, 0, 0, none, none, host_threads(facts).main, intervals.EMPTY, 1.0, 0, 0)
    at = launched_in(facts, ops)[np.searchsorted(device_work(facts).ids, table.ids[~table.on_host])]
    on_device = np.flatnonzero(~table.on_host)[at >= 0]
    known, at_host = host_collectives(facts), np.isin(host_collectives(facts).op_ids, ops.ids)
    sizes = np.concatenate((table.bytes[on_device], known.bytes[at_host]))
    if not len(sizes) or (sizes < 0).any():
        raise Missing("the sizes of gradient buckets", "NCCL's are recorded from PyTorch 2.2 on, gloo's with shapes.")
    hosts = np.flatnonzero(np.isin(table.ids, known.ids[at_host]))
    rows = np.concatenate((on_device, hosts))
    dur = table.times.ends[rows] - table.times.starts[rows]
    mean = float(sizes.mean())
    usual = 1 + ceil(max(mean * calls - FIRST_BYTES, 0) / BUCKET_BYTES)
    spared = max(1 - usual / calls, 0.0) * len(dur) * int(dur.min())
    waits = intervals.intersect(host_activities(facts)[TimeCause.OTHER_RANK], intervals.union_of(table.times, hosts))
    exposed = intervals.clip(waits, used.start_ns, used.end_ns).total
    if len(on_device):
        exposed += intervals.intersect(
            intervals.union_of(table.times, on_device), device_time(facts).exposed_communication
        ).total
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
    """The all-reduces that ops of backward passes ask for."""
    ops = host_spans(facts, SpanKind.COLLECTIVE, SpanKind.OP, named=lambda name: name == "c10d::allreduce_")
    asked = asking_ops(facts, ops.ids)
    names = facts.rank.spans["name"].iloc[np.maximum(asked, 0)].astype(str).to_numpy()
    return ops.where(np.array([name.startswith(BACKWARD) for name in names], dtype=bool) & (asked >= 0))


def _per_forward(facts: Facts, ops: HostSpans) -> int:
    forward = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name == DDP_FORWARD).outermost()
    after = np.searchsorted(forward.start_ns, ops.start_ns, side="right") - 1
    counts = np.bincount(after[after >= 0])
    return round(float(np.median(counts[counts > 0]))) if len(counts) else 0
