"""Ranges that the script itself marks (`record_function`, NVTX): for rules about one's own code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.steps import Steps, steps
from diagnose.trace import enums, intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals


@dataclass(frozen=True)
class RangesOfName:
    """All ranges of one name."""

    ids: IntArray
    """In the whole recording."""
    total_calls: int
    """In all used steps."""
    host_ns: int
    """Time in at least one of them, per step."""
    steps_share: float
    """Share of the used steps in which at least one begins."""


@dataclass(frozen=True)
class Ranges:
    """Marked ranges by name."""

    by_name: dict[str, IntArray]
    """Span ids in order of start."""
    start_ns: IntArray
    """Of every span of the recording."""
    dur_ns: IntArray
    used: Steps

    def named(self, name: str) -> RangesOfName:
        """The ranges of this name; zeros if there are none."""
        ids = self.by_name.get(name, np.zeros(0, dtype=np.int64))
        start, end = self.start_ns[ids], self.start_ns[ids] + self.dur_ns[ids]
        step = np.searchsorted(self.used.bounds_ns, start, side="right") - 1
        inside = (step >= 0) & (step < self.used.count)
        together = intervals.clip(intervals.union(Intervals(start, end)), self.used.start_ns, self.used.end_ns)
        return RangesOfName(
            ids=ids,
            total_calls=int(inside.sum()),
            host_ns=round_half_up(together.total, self.used.count),
            steps_share=len(np.unique(step[inside])) / self.used.count,
        )


@fact
def ranges(facts: Facts) -> Ranges:
    """Ranges that the script marks, by name. Raises Missing if no step can be measured."""
    spans = facts.rank.spans
    ids = np.flatnonzero(spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.ANNOTATION))
    names = spans["name"].cat
    codes = names.codes.to_numpy()[ids]
    order = np.argsort(codes, kind="stable")
    found, first = np.unique(codes[order], return_index=True)
    groups = np.split(ids[order], first[1:])
    return Ranges(
        by_name={str(names.categories[code]): group for code, group in zip(found, groups, strict=True)},
        start_ns=spans["start_ns"].to_numpy(),
        dur_ns=spans["dur_ns"].to_numpy(),
        used=steps(facts),
    )
