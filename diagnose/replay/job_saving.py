"""What fixes save of a job's step, where the recordings of all its ranks are known.

A fix is found on one rank, in its code, and its replay says how much shorter each of the rank's own stretches between
two collectives gets. The other ranks run the same code: a stretch of theirs gets shorter too, by as much at most, and
not shorter than the one on the rank that was fixed, for what only that rank had is not on theirs. The joined replay
then says when the last rank is through.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.facts.communication.job_times import begun, stretches_ns
from diagnose.facts.core.base import Facts, once, optional
from diagnose.facts.run.pauses import garbage_collections
from diagnose.facts.run.recording_cost import EventCosts, RecordingCost, event_costs, recording_cost
from diagnose.facts.run.timed_steps import slowdown
from diagnose.replay import job as jobs
from diagnose.replay.apply import Scenario
from diagnose.replay.build import own_stretches
from diagnose.replay.edits import Edit, Estimate, Even, Own, Rechunk, Shorten, at
from diagnose.replay.graph import Graph
from diagnose.replay.job import CallsOfAll, Change, same_calls
from diagnose.replay.saving import Quality, Replay
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import Job

Times = npt.NDArray[Any]


class JobReplay(Replay):
    """A rank's graph with the other ranks around it: what would the job's step take if ...?"""

    def __init__(
        self, facts: Facts, job: Job, uncounted: Sequence[Edit] = (), cost: Sequence[RecordingCost] = ()
    ) -> None:
        """As a Replay. `job`: the ranks, this one among them, as its `peers` say."""
        self._job, self._joined = job, jobs.joined_ranks(facts)
        self._at = job.ranks.index(facts.rank.index)
        self._own = [own.astype(np.float64) for own in self._joined.recorded.own_ns]
        self._calls = CallsOfAll(job, self._at)
        # Which stretch between two calls each own time is in: where ranks wait in between differs.
        self._segment = [np.concatenate(([0], np.cumsum(~one.lane.waits))) for one in job.sequences]
        self._alike = [same_calls(sequence, job.sequences[self._at]) for sequence in job.sequences]
        self._stretches = own_stretches(facts)
        super().__init__(facts, uncounted, cost)

    @property
    def _edges(self) -> int:
        return super()._edges + len(self._joined.graph.delay_ns)

    def _measured_ns(self) -> int:
        return self._job.step_ns

    def _quality(self, graph: Graph, unexplained_ns: int) -> Quality:
        """As of the rank, but what it was held up for by collectives is explained by the other ranks."""
        alone, lane = super()._quality(graph, unexplained_ns), self._job.sequences[self._at].lane
        held = float((lane.until_ns - lane.from_ns).sum()) / max(self._used.window_ns, 1)
        error = math.copysign(max(abs(alone.error_share) - held, 0.0), alone.error_share)
        return Quality(alone.step_time_ns, error, max(alone.unexplained_share - held, 0.0))

    def _run(self, scenarios: Sequence[Scenario]) -> IntArray:
        """Step time in ns of the job for each scenario, at least what its busiest rank takes by itself."""
        own = self._own_ns(scenarios)
        spared = [self._spared_ns(one, ns) for one, ns in zip(scenarios, own, strict=True)]
        left = [self._calls.left(one.left_of(self._calls.asked_ids)) for one in scenarios]
        changes = [Change(tuple(ns), keep) for ns, keep in zip(own, left, strict=True)]
        step_ns: IntArray = self._joined.step_ns(changes) - np.array(spared, dtype=np.int64)
        busiest = [max(int(one.sum()) for one in ranks) // self._used.count for ranks in own]
        return np.maximum(step_ns, np.array(busiest) - spared)

    def _spared_ns(self, made: Scenario, own: list[IntArray]) -> int:
        """ns per step that Rechunk edits save, given the own times of each rank under the scenario."""
        left = [float(now.sum()) / max(float(before.sum()), 1.0) for now, before in zip(own, self._own, strict=True)]
        computing = np.array([one.compute_ns.sum() for one in self._job.sequences]) * left / self._joined.steps
        edits = [edit for edit in made.of_ranks if isinstance(edit, Rechunk)]
        return round(sum(_spared_ns(edit, computing, made.level) for edit in edits))

    def _own_ns(self, scenarios: Sequence[Scenario]) -> list[list[IntArray]]:
        """For each scenario and rank, ns of its stretches between two calls; other ranks gain what this one does."""
        graph = self._index.graph
        late_ns = self._stretches.moments_ns - graph.observed_ns[graph.marks]
        moments = np.stack(np.split(self._times(scenarios, graph.marks) + late_ns[:, None], 2), axis=1)
        in_order = np.maximum.accumulate(moments.reshape(-1, len(scenarios)), axis=0)  # What is gone holds nothing up.
        begin, end = in_order[::2], in_order[1::2]
        lasted_ns = self._stretches.until_ns - self._stretches.from_ns
        shorter = lasted_ns[:, None] - np.maximum(end - begin, 0)
        return [self._ranks(shorter[:, k], one) for k, one in enumerate(scenarios)]

    def _ranks(self, shorter_ns: IntArray, made: Scenario) -> list[IntArray]:
        """The own times of each rank, once this rank's stretches are shorter by so much and after Even edits."""
        fixed = np.maximum(self._own[self._at] - shorter_ns, 0.0)
        own = [fixed if at == self._at else self._like(at, fixed) for at in range(len(self._own))]
        for edit in made.of_ranks:
            if isinstance(edit, Even):
                keep = 1.0 - at(edit.much, made.level) * (1.0 - edit.keep)
                less = self._evened(edit.of, keep)
                own = [np.maximum(ns - spared, 0.0) for ns, spared in zip(own, less, strict=True)]
        return [np.rint(one).astype(np.int64) for one in own]

    def _evened(self, of: Own, keep: Times) -> list[Times]:
        """ns that each rank's own times lose if the share `keep` of each step is left: first where it takes longer than
        others that do the same, between the same two calls."""
        parts = [
            computing if of is Own.COMPUTE else np.maximum(whole - computing, 0)
            for whole, computing in map(stretches_ns, self._job.sequences)
        ]
        alike = [rank for rank, same in enumerate(self._alike) if same]
        stretches = np.stack([np.bincount(self._segment[rank], weights=parts[rank]) for rank in alike])
        others = (stretches.sum(axis=0) - stretches) / max(len(alike) - 1, 1)
        more = np.clip(stretches - others, 0.0, None) / np.maximum(stretches, 1.0) * (len(alike) > 1)
        excess = [np.zeros(len(part)) for part in parts]
        for rank, share in zip(alike, more, strict=True):
            excess[rank] = parts[rank] * share[self._segment[rank]]
        return [
            _spread(part, first, begun(one), 1.0 - left)
            for one, part, first, left in zip(self._job.sequences, parts, excess, keep, strict=True)
        ]

    def _like(self, other: int, fixed: Times) -> Times:
        """Own times of another rank, shortened like this rank's wherever both run the same calls."""
        ours, theirs = self._own[self._at], self._own[other]
        if self._alike[other]:
            mine, its = self._segment[self._at], self._segment[other]
        else:
            mine, its = np.zeros(len(ours), dtype=np.int64), np.zeros(len(theirs), dtype=np.int64)
        before, left, now = (np.bincount(at, weights=ns) for at, ns in ((mine, ours), (mine, fixed), (its, theirs)))
        kept = np.minimum(now, np.maximum(left, now - np.maximum(before - left, 0.0)))
        shortened: Times = theirs * (kept / np.maximum(now, 1.0))[its]
        return shortened


def _spread(part: Times, excess: Times, step: IntArray, share: Times) -> Times:
    """ns that each stretch loses if `part` of each step loses its `share`: first from `excess`, then from the rest."""
    whole, most = (np.bincount(step, weights=ns, minlength=len(share)) for ns in (part, excess))
    gone = whole * share
    first = np.clip(gone, 0.0, most)
    of_excess, of_rest = first / np.maximum(most, 1.0), (gone - first) / np.maximum(whole - most, 1.0)
    found: Times = excess * of_excess[step] + (part - excess) * of_rest[step]
    return found


def _spared_ns(edit: Rechunk, computing_ns: Times, level: Estimate) -> float:
    """ns per step that more micro-batches save on the pipeline that gains least: the others wait for it."""
    added = (edit.times - 1) * edit.count * at(edit.cost_ns, level)
    some = [computing_ns[list(ranks)] for ranks in edit.pipelines]
    idle = min(float(one.sum() - one.max()) for one in some) / edit.stages
    return idle / edit.count * (1.0 - 1.0 / edit.times) - added


NEAR = 0.02  # Share of the step without the profiler by which a replayed one may differ from it (our choice).
MOST = 2.0  # Times as much as was measured, or as events cost elsewhere, as an event may cost at most (our choice).
ROUNDS = 5  # Of halving in which the cost of an event is found: to 6 % of it.


@once
def baseline(facts: Facts) -> Replay:
    """The replay of a rank, among the others where these are known. Raises Missing as `recorded_graph` does."""
    cost, by_event = optional(recording_cost, facts), optional(event_costs, facts)
    if cost is not None or by_event is None:
        return _replay(facts, () if cost is None else (cost,))
    return _at_the_step_without_the_profiler(facts, by_event)


def _replay(facts: Facts, cost: Sequence[RecordingCost]) -> Replay:
    """The replay of one rank, or of all ranks if they were recorded; rare garbage collections do not count."""
    others, collected = facts.rank.peers, optional(garbage_collections, facts)
    uncounted = () if collected is None or not len(collected.once_ids) else (Shorten(collected.once_ids, 0.0),)
    if others is not None and others.job.join_points:
        return JobReplay(facts, others.job, uncounted, cost)
    return Replay(facts, uncounted, cost)


def _at_the_step_without_the_profiler(facts: Facts, by_event: EventCosts) -> Replay:
    """The replay with the cost of an event by which a step takes as long as without the profiler. Where every cost
    gives the same step, as where the device bounds it, the measured cost."""
    found, known = optional(slowdown, facts), partial(_replay, facts)
    replay = known(by_event.times(1.0))
    if found is None:
        return replay
    wanted_ns = found.unprofiled_ns * found.size
    if abs(replay.quality.step_time_ns / wanted_ns - 1) <= NEAR:
        return replay
    too_short = replay.quality.step_time_ns < wanted_ns
    low, high = (0.0, 1.0) if too_short else (1.0, MOST)
    other = known(by_event.times(low if too_short else high))
    if abs(other.quality.step_time_ns - replay.quality.step_time_ns) <= NEAR * wanted_ns:
        return replay
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        replay = known(by_event.times(middle))
        low, high = (low, middle) if replay.quality.step_time_ns < wanted_ns else (middle, high)
    return replay
