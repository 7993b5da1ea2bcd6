"""The replay that savings are measured with: of recorded steps without what other steps do not have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from diagnose.facts.core.base import Facts, once, optional
from diagnose.facts.run.garbage import garbage_collections
from diagnose.facts.run.recording_cost import EventCosts, RecordingCost, event_costs, recording_cost
from diagnose.facts.run.timed_steps import slowdown
from diagnose.replay.edits import Edit, Shorten
from diagnose.replay.job_saving import JobReplay
from diagnose.replay.saving import Replay

NEAR = 0.02  # Share of the step without the profiler by which a replayed one may differ from it (our choice).
MOST = 2.0  # Times as much as was measured, or as events cost elsewhere, as an event may cost at most (our choice).
ROUNDS = 5  # Of halving in which the cost of an event is found: to 6 % of it.


@once
def baseline(facts: Facts) -> Replay:
    """The replay of a rank, among the others where these are known.

    Raises Missing if no step can be measured, or if nothing was recorded on the host.
    """
    cost, by_event = optional(recording_cost, facts), optional(event_costs, facts)
    if cost is not None or by_event is None:
        return _replay(facts, () if cost is None else (cost,))
    return _at_the_step_without_the_profiler(facts, by_event)


def _replay(facts: Facts, cost: Sequence[RecordingCost]) -> Replay:
    others = facts.rank.peers
    if others is not None and others.job.join_points:
        return JobReplay(facts, others.job, _uncounted(facts), cost)
    return Replay(facts, _uncounted(facts), cost)


def _at_the_step_without_the_profiler(facts: Facts, by_event: EventCosts) -> Replay:
    """With such a cost of an event that a step takes what it takes without the profiler.

    Where the device bounds the step, every cost tells the same step: then it is what was measured.
    """
    found, known = optional(slowdown, facts), partial(_replay, facts)
    replay = known(by_event.times(1.0))
    if found is None:
        return replay
    wanted_ns, low, high = found.unprofiled_ns * found.size, 0.0, MOST
    if abs(replay.quality.step_time_ns / wanted_ns - 1) <= NEAR:
        return replay
    too_short = replay.quality.step_time_ns < wanted_ns
    low, high = (low, 1.0) if too_short else (1.0, high)
    other = known(by_event.times(low if too_short else high))
    if abs(other.quality.step_time_ns - replay.quality.step_time_ns) <= NEAR * wanted_ns:
        return replay
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        replay = known(by_event.times(middle))
        low, high = (low, middle) if replay.quality.step_time_ns < wanted_ns else (middle, high)
    return replay


def _uncounted(facts: Facts) -> tuple[Edit, ...]:
    found = optional(garbage_collections, facts)
    return () if found is None or not len(found.once_ids) else (Shorten(found.once_ids, 0.0),)
