"""What of the host's time is the training's own, where each recorded op and each recorded call costs it some time?

On a GPU a step is not timed phase by phase, as the host runs ahead: what recording adds shows where the host is behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.run import HOW, manifest
from diagnose.facts.core.spans import HostSpans, host_spans
from diagnose.facts.core.steps import Steps, steps
from diagnose.facts.run.recording_cost import RecordingCost
from diagnose.trace.enums import SpanKind
from diagnose.trace.event_cost import EVENT_NS, FloatArray, moments, own_ns
from diagnose.trace.intervals import IntArray
from diagnose.trace.retiming import OPS

CALLS = (SpanKind.RUNTIME, SpanKind.DRIVER)


@dataclass(frozen=True)
class EventCosts:
    """Recorded events of the training threads, and what each of them costs the host. Arrays of shape (moments,)."""

    tracks: tuple[int, ...]
    at_ns: tuple[IntArray, ...]  # By track the moments at which events begin or end, in order, each once.
    costs_ns: tuple[FloatArray, ...]  # Of the events that begin or end at each of them: half of what each costs.

    def times(self, share: float) -> tuple[RecordingCost, ...]:
        """The own time of each thread, if an event costs `share` of this."""
        return tuple(
            RecordingCost(track, at, own_ns(at, share * costs), measured=False)
            for track, at, costs in zip(self.tracks, self.at_ns, self.costs_ns, strict=True)
        )


@fact
def event_costs(facts: Facts) -> EventCosts:
    """Of a training on a GPU. Raises Missing if `diagnose profile` did not record it, and without device work.

    Where times are of a recording without ops, ops cost nothing.
    """
    known, used = manifest(facts), steps(facts)
    if known.unprofiled is None or not len(device_work(facts).ids):
        raise Missing("what recording adds to the host's time", HOW)
    measured = known.event_cost
    op_ns = EVENT_NS if measured is None or measured.op_ns is None else measured.op_ns
    call_ns = EVENT_NS if measured is None or measured.call_ns is None else measured.call_ns
    with_ops = facts.rank.provenance.timed_by is None
    events = [(host_spans(facts, *CALLS), call_ns), *([(host_spans(facts, *OPS), op_ns)] if with_ops else [])]
    tracks = tuple(host_threads(facts).training.tolist())
    found = [_moments(used, [(spans.where(spans.track == track), cost) for spans, cost in events]) for track in tracks]
    return EventCosts(tracks, tuple(at for at, _ in found), tuple(costs for _, costs in found))


def _moments(used: Steps, events: list[tuple[HostSpans, float]]) -> tuple[IntArray, FloatArray]:
    """Those of the events of a thread, and of the used steps, which cost nothing."""
    return moments(
        np.concatenate([spans.start_ns for spans, _ in events] + [[used.start_ns]]),
        np.concatenate([spans.end_ns for spans, _ in events] + [[used.end_ns]]),
        np.concatenate([np.full(len(spans.ids), cost) for spans, cost in events] + [[0.0]]),
    )
