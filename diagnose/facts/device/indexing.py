"""Which additions to indexed rows sort their indices first?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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

STREAMS = 3
"""Adding rows reads them and what they are added to, and writes that."""
REACHED = 0.6
"""Of the memory's rate, with accesses that are scattered (our choice)."""
_PUTS = ("aten::index_put_", "aten::_index_put_impl_", "aten::index_put")
_ADDS = ("aten::index_add", "aten::index_add_", "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce_")


@dataclass(frozen=True)
class SortedIndexing:
    """Additions at indices that sort them first, so that each row is added to in one fixed order; per step."""

    deterministic: bool
    """They stand in for index_add or scatter_add: use_deterministic_algorithms(True) asks for that. Otherwise they are
    what `x[indices]` runs in the backward pass."""
    calls: float
    work: Work
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
    values = [given[2][0].bytes if len(given) > 2 and given[2] else None for given in inputs_of(facts, used.ids)]
    floor = None
    if known is not None and work.device_ns and None not in values:
        rate = known.memory_gbps * REACHED
        least = sum(max(STREAMS * (size or 0) / rate, SHORTEST_NS) for size in values) / count
        floor = min(least / work.device_ns, 1.0)
    return SortedIndexing(deterministic, len(used.ids) / count, work, floor)
