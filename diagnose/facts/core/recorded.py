"""From when to when the host was recorded: outside of that, what it did is unknown, and not Python between ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.trace import enums, intervals
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.intervals import IntArray, Intervals

_FRAMEWORK = (SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.LOADER, SpanKind.ANNOTATION, SpanKind.PYTHON)
"""What the framework records itself; its buffer may end while CUPTI or roctracer still record calls."""

_CALLS = (SpanKind.RUNTIME, SpanKind.DRIVER, SpanKind.SYSTEM)

ENOUGH_LAUNCHES = 20
"""So many launches in a row without an op, of a program most of whose launches have one: ops were not recorded there.
Chosen: custom kernels without an op of their own seldom come in such a row between two ops."""

MOST = 0.5
"""Share of the launches that ops made where ops were recorded, for that to be expected of the others (our choice)."""


@dataclass(frozen=True)
class HostRecorded:
    """The stretch of time from the first to the last record of what the host did; its calls may be known longer."""

    start_ns: int
    end_ns: int

    def missing_in(self, start_ns: int, end_ns: int) -> Intervals:
        """Normal set of the times from one moment to another that lie outside of it."""
        whole = Intervals(np.array([start_ns]), np.array([end_ns]))
        return intervals.subtract(whole, Intervals(np.array([self.start_ns]), np.array([self.end_ns])))


@fact
def host_recorded(facts: Facts) -> HostRecorded:
    """When the host was recorded, over all its threads. Raises Missing if it never was."""
    spans = facts.rank.spans
    kind, start = spans["kind"].cat.codes.to_numpy().astype(np.int64), spans["start_ns"].to_numpy()
    end = start + spans["dur_ns"].to_numpy()
    framework, calls = (np.isin(kind, [enums.code(one) for one in some]) for some in (_FRAMEWORK, _CALLS))
    every = framework | calls
    if not every.any():
        raise Missing("host activity", "Profile with ProfilerActivity.CPU as well.")
    first, last = int(start[every].min()), int(end[every].max())
    if framework.any():
        begun, ended = int(start[framework].min()), int(end[framework].max())
        launches = _launches(facts, start)
        if _in_ops(launches, kind, start, end):
            first = begun if (launches < begun).sum() >= ENOUGH_LAUNCHES else first
            last = ended if (launches > ended).sum() >= ENOUGH_LAUNCHES else last
    return HostRecorded(first, last)


def _launches(facts: Facts, start: IntArray) -> IntArray:
    """When each call that launched device work started."""
    links = facts.rank.links
    calls: IntArray = links.loc[links["kind"] == LinkKind.LAUNCH.value, "from_id"].unique()
    return start[np.sort(calls)]


def _in_ops(launches: IntArray, kind: IntArray, start: IntArray, end: IntArray) -> bool:
    """Whether ops made most of the launches between the first and the last op."""
    is_op = kind == enums.code(SpanKind.OP)
    if not is_op.any():
        return False
    between = launches[(launches >= start[is_op].min()) & (launches <= end[is_op].max())]
    ops = intervals.union(Intervals(start[is_op], end[is_op]))
    inside = intervals.covered(Intervals(between, between + 1), ops)
    return bool(len(between)) and float((inside > 0).mean()) >= MOST
