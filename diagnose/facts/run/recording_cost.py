"""What does recording add to the host's time, phase by phase?

Steps without the profiler and recorded ones are timed by the same clocks, phase by phase (`Timed.phases_ns`). What a
phase takes longer in recorded steps is the recorder's. It is spread over the phase's events, as each op and each range
costs about the same: Python between two ops costs nothing more when it is recorded, a thousand small ops cost much.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.autograd.backward import backward_nodes
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.run import HOW, manifest
from diagnose.facts.core.spans import HostSpans, host_spans
from diagnose.facts.core.steps import Steps, steps
from diagnose.facts.run.timed_steps import comparable, slowdown, uneven
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Activity
from diagnose.trace.manifest import Timed
from diagnose.trace.measured import EVENT_NS, LEAST, FloatArray, moments, own_ns
from diagnose.trace.retiming import OPS

MOST = 1.25  # Times as long a phase may take without the profiler: more is chance (our choice).

_EVENTS = (SpanKind.OP, SpanKind.LOADER, SpanKind.ANNOTATION, SpanKind.COLLECTIVE)
_REST, _LOADER, _BACKWARD, _OPTIMIZER, _PAUSE = "rest", "loader", "backward", "optimizer", "pause"
_PAUSES = (Activity.CHECKPOINT, Activity.GARBAGE_COLLECTION)
_NO_PHASES = Missing("profiler overhead in each phase of a step", HOW)


class RecordingCost(Struct, frozen=True):
    """The recorded time of the main thread, and what of it is the training's own."""

    track: int
    at_ns: IntArray  # Moments, in order.
    own_ns: FloatArray  # The thread's own time from the first moment to each. Shape of `at_ns`.
    measured: bool = True  # False: by what an event costs, not by what the training's phases took without the recorder.


@fact
def recording_cost(facts: Facts) -> RecordingCost:
    """Of a training on the CPU. Raises Missing if its steps were not timed by phase, recorded and not."""
    shares, used, track = _shares(facts), steps(facts), host_threads(facts).main
    events = host_spans(facts, *_EVENTS)
    events = events.where(events.track == track)
    moments = np.sort(np.concatenate((events.start_ns, events.end_ns)))
    at = intervals.distinct(np.concatenate((moments, used.bounds_ns)))
    length = np.diff(at)
    # An event costs as much at its begin as at its end, and as much before that moment as after it.
    costs = (_events_at(moments, at[:-1]) + _events_at(moments, at[1:])) / 4
    inside = (at[:-1] >= used.start_ns) & (at[1:] <= used.end_ns)
    kept = np.ones(len(length))
    rest = np.ones(len(length), dtype=bool)
    for phase, times in _phases(facts, track):
        mine = rest & (2 * intervals.covered(Intervals(at[:-1], at[1:]), times) > length)
        rest &= ~mine
        kept[mine] = _kept(length[mine], costs[mine], inside[mine], shares.get(phase, 1.0))
    kept[rest] = _kept(length[rest], costs[rest], inside[rest], shares[_REST])
    return RecordingCost(track, at, np.concatenate(([0.0], np.cumsum(kept * length))))


def _shares(facts: Facts) -> dict[str, float]:
    """By phase, the time of a step without the profiler over that of a recorded one, MOST at most; if both are known.

    The rest counts 1 where it is not known. Raises Missing without times by phase.
    """
    alone, recorded = manifest(facts).unprofiled, manifest(facts).timing
    if alone is None or recorded is None or not slowdown(facts).by_phase:
        raise _NO_PHASES
    used = np.array(steps(facts).numbers) - recorded.first_step
    if used.min() < 0 or used.max() >= len(recorded.wall_ns):
        raise _NO_PHASES
    own, with_recorder = _spent(facts, alone, comparable(facts)), _spent(facts, recorded, used)
    known = own.keys() & with_recorder.keys() & {_LOADER, _BACKWARD, _OPTIMIZER, _REST}
    both = [one for one in known if min(own[one], with_recorder[one]) > 0]
    return {_REST: 1.0, **{phase: min(own[phase] / with_recorder[phase], MOST) for phase in both}}


def _spent(facts: Facts, timed: Timed, some: IntArray) -> dict[str, float]:
    """Mean ns by phase of some steps; per backward node instead of per step where steps differ in size."""
    work = np.array(timed.nodes, dtype=float)[some].sum() if uneven(facts) is not None else len(some)
    spent = {phase: float(np.array(times)[some].sum() / work) for phase, times in timed.phases_ns.items()}
    return {**spent, _REST: float(np.array(timed.wall_ns)[some].sum() / work) - sum(spent.values())}


def _phases(facts: Facts, track: int) -> Iterator[tuple[str, Intervals]]:
    """(phase, when it went on), inner phases before those around them: time counts to the first phase that it is in.

    Loaders of the main thread only: those of workers take nothing of its time. _PAUSE (saving, garbage collection) has
    no share in `_shares`: it takes as long when recorded.
    """
    yield _PAUSE, _in_ranges(facts, *_PAUSES)
    loads = host_spans(facts, SpanKind.LOADER)
    yield _LOADER, intervals.union_of(loads.times, loads.track == track)
    nodes = optional(backward_nodes, facts)
    if nodes is not None and len(nodes.first):
        end_ns = np.maximum.reduceat(nodes.spans.end_ns, nodes.first)
        yield _BACKWARD, intervals.union(Intervals(nodes.spans.start_ns[nodes.first], end_ns))
    yield _OPTIMIZER, _in_ranges(facts, Activity.OPTIMIZER_STEP)


def _in_ranges(facts: Facts, *activities: Activity) -> Intervals:
    return intervals.union(host_spans(facts, *_EVENTS, named=lambda name: kinds.activity(name) in activities).times)


def _events_at(moments: IntArray, at: IntArray) -> FloatArray:
    found = np.searchsorted(moments, at, side="right") - np.searchsorted(moments, at)
    return found.astype(np.float64)


def _kept(length: IntArray, costs: FloatArray, inside: npt.NDArray[np.bool_], share: float) -> FloatArray:
    """Share of each stretch to keep: recording goes by its `costs`, so that `share` of the time `inside` is kept."""
    if share >= 1.0 or not inside.any():
        return np.full(len(length), share)
    whole, most = float(length[inside].sum()), (1.0 - LEAST) * length
    wanted, low, high = (1.0 - share) * whole, 0.0, whole
    for _ in range(60):  # To a fraction of a nanosecond.
        middle = (low + high) / 2
        taken = float(np.minimum(costs * middle, most)[inside].sum())
        low, high = (middle, high) if taken < wanted else (low, middle)
    kept: FloatArray = 1.0 - np.minimum(costs * low, most) / np.maximum(length, 1)
    left = float((kept * length)[inside].sum())
    return kept * min((whole - wanted) / max(left, 1.0), 1.0)


CALLS = (SpanKind.RUNTIME, SpanKind.DRIVER)


class EventCosts(Struct, frozen=True):
    """Recorded events of the training threads, and what each of them costs the host. Arrays of shape (moments,)."""

    tracks: tuple[int, ...]
    at_ns: tuple[IntArray, ...]  # By track the moments at which events begin or end, in order, each once.
    costs_ns: tuple[FloatArray, ...]  # At each moment: half of the cost of the events that begin or end there.

    def times(self, share: float) -> tuple[RecordingCost, ...]:
        """The own time of each thread, if an event costs `share` times `costs_ns`."""
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
        raise Missing("profiler overhead on the CPU", HOW)
    measured = known.event_cost
    op_ns = EVENT_NS if measured is None or measured.op_ns is None else measured.op_ns
    call_ns = EVENT_NS if measured is None or measured.call_ns is None else measured.call_ns
    with_ops = facts.rank.provenance.timed_by is None
    events = [(host_spans(facts, *CALLS), call_ns), *([(host_spans(facts, *OPS), op_ns)] if with_ops else [])]
    tracks = tuple(host_threads(facts).training.tolist())
    found = [_moments(used, [(spans.where(spans.track == track), cost) for spans, cost in events]) for track in tracks]
    return EventCosts(tracks, tuple(at for at, _ in found), tuple(costs for _, costs in found))


def _moments(used: Steps, events: list[tuple[HostSpans, float]]) -> tuple[IntArray, FloatArray]:
    """`measured.moments` of the events of a thread at their cost, and of the used steps' bounds, which cost nothing."""
    return moments(
        np.concatenate([spans.start_ns for spans, _ in events] + [[used.start_ns]]),
        np.concatenate([spans.end_ns for spans, _ in events] + [[used.end_ns]]),
        np.concatenate([np.full(len(spans.ids), cost) for spans, cost in events] + [[0.0]]),
    )
