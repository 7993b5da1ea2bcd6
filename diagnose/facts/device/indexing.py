"""Which additions to indexed rows sort their indices first?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import NO_DEVICE
from diagnose.facts.core.device import device_work
from diagnose.facts.core.matmuls import SHORTEST_NS, peaks
from diagnose.facts.core.names import name_codes
from diagnose.facts.core.shaped import Work, inputs_of, work_of
from diagnose.facts.core.spans import HostSpans, host_spans, launched_in
from diagnose.facts.core.steps import steps
from diagnose.trace import nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray

STREAMS = 3  # Adding rows reads them and what they are added to, and writes that.
REACHED = 0.6  # Of the memory's rate, with accesses that are scattered (our choice).
_PUTS = ("aten::index_put_", "aten::_index_put_impl_", "aten::index_put")
_ADDS = ("aten::index_add", "aten::index_add_", "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce_")


class SortedIndexing(Struct, frozen=True):
    """Additions at indices that sort them first, so that each row is added to in one fixed order; per step."""

    deterministic: bool
    """They stand in for index_add or scatter_add: use_deterministic_algorithms(True) asks for that. Otherwise they are
    what `x[indices]` runs in the backward pass."""
    calls: float
    work: Work
    call: IntArray  # The call, 0.., that each of `work.work_ids` is launched in.
    moved_bytes: IntArray  # What each call reads and writes without sorting; 0 unknown. Shape (calls,).
    floor: float | None
    """Share of the device's time that adding without sorting would at least take; None if sizes or the device are not
    known."""


@fact
def sorted_indexing(facts: Facts) -> tuple[SortedIndexing, ...]:
    """By what asks for them, longest first. Raises Missing without device work."""
    work, names = device_work(facts), facts.rank.spans["name"].cat.categories
    if not len(work.ids):
        raise NO_DEVICE
    sums = np.array(["indexing_backward_kernel" in name for name in names], dtype=bool)[name_codes(facts, work.ids)]
    puts = host_spans(facts, SpanKind.OP, named=lambda name: name in _PUTS).outermost()
    held = launched_in(facts, puts)[sums]
    puts = puts.where(np.unique(held[held >= 0]))
    adds = host_spans(facts, SpanKind.OP, named=lambda name: name in _ADDS)
    asked = nesting.innermost_at(puts.start_ns, puts.track, adds.track, adds.start_ns, adds.end_ns) >= 0
    found = [_sorted(facts, puts.where(asked == one), one) for one in (False, True) if (asked == one).any()]
    return tuple(sorted(found, key=lambda one: -one.work.device_ns))


def _sorted(facts: Facts, puts: HostSpans, deterministic: bool) -> SortedIndexing:
    used, count, known = puts.in_steps(facts), max(steps(facts).count, 1), optional(peaks, facts)
    work = work_of(facts, puts.ids)
    moved = _moved_bytes(facts, puts)
    mine, floor = moved[np.isin(puts.ids, used.ids)], None
    if known is not None and work.device_ns and (mine > 0).all():
        least = np.maximum(mine / (known.memory_gbps * REACHED), SHORTEST_NS).sum() / count
        floor = min(float(least) / work.device_ns, 1.0)
    call = launched_in(facts, puts)[np.isin(device_work(facts).ids, work.work_ids)]
    return SortedIndexing(deterministic, len(used.ids) / count, work, call, moved, floor)


def _moved_bytes(facts: Facts, puts: HostSpans) -> IntArray:
    values = [given[2][0].bytes if len(given) > 2 and given[2] else None for given in inputs_of(facts, puts.ids)]
    return np.array([STREAMS * (size or 0) for size in values], dtype=np.int64)
