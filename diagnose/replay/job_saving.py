"""What fixes save of a job's step, where the recordings of all its ranks are known.

A fix is found on one rank, in its code, and its replay says how much shorter each of the rank's own stretches between
two collectives gets. The other ranks run the same code: a stretch of theirs gets shorter too, by as much at most, and
not shorter than the one on the rank that was fixed, for what only that rank had is not on theirs. A collective that a
fix removes or shortens is so on all of its ranks: they do not meet in it, or its transfer is shorter. The joined
replay then says when the last rank is through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.facts.communication.own_time import begun, stretches_ns
from diagnose.facts.core.base import Facts
from diagnose.facts.run.recording_cost import RecordingCost
from diagnose.replay import job as jobs
from diagnose.replay.apply import Scenario
from diagnose.replay.edits import Edit, Estimate, Even, Own, Rechunk, at
from diagnose.replay.graph import Graph
from diagnose.replay.moments import own_stretches
from diagnose.replay.saving import Quality, Replay
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import Course, Job

Times = npt.NDArray[Any]


class JobReplay(Replay):
    """A rank's graph with the other ranks around it: what would the job's step take if ...?"""

    def __init__(
        self, facts: Facts, job: Job, uncounted: Sequence[Edit] = (), cost: RecordingCost | None = None
    ) -> None:
        """As a Replay. `job`: the ranks, this one among them, as its `peers` say."""
        self._job, self._joined = job, jobs.joined_ranks(facts)
        self._at = job.ranks.index(facts.rank.index)
        self._own = [own.astype(np.float64) for own in self._joined.own_ns]
        self._segment = [_segments(one) for one in job.courses]
        self._alike = [_same_calls(one, job.courses[self._at]) for one in job.courses]
        self._stretches = own_stretches(facts)
        super().__init__(facts, uncounted, cost)

    def _measured_ns(self) -> int:
        return self._job.step_ns

    def _quality(self, graph: Graph, unexplained_ns: int) -> Quality:
        """As of the rank, but what it was held up for by collectives is explained by the other ranks."""
        alone, lane = super()._quality(graph, unexplained_ns), self._job.courses[self._at].lane
        held = float((lane.until_ns - lane.from_ns).sum()) / max(self._used.window_ns, 1)
        return Quality(
            step_time_ns=alone.step_time_ns,
            error_share=math.copysign(max(abs(alone.error_share) - held, 0.0), alone.error_share),
            unexplained_share=max(alone.unexplained_share - held, 0.0),
        )

    def floor_ns(self, edits: Sequence[Edit], level: Estimate) -> int:
        """The least a step can take after the edits: what the busiest rank does by itself, per step."""
        (own,) = self._own_ns([self._scenario(edits, level)])
        return max(int(one.sum()) for one in own) // self._used.count

    def _run(self, made: Sequence[Scenario]) -> IntArray:
        own = self._own_ns(made)
        spared = [self._spared_ns(one, ns) for one, ns in zip(made, own, strict=True)]
        left = [self._left(one) for one in made]
        found: IntArray = self._joined.step_ns(own, left) - np.array(spared, dtype=np.int64)
        return found

    def _left(self, made: Scenario) -> list[jobs.Left]:
        """What is left of each rank's calls: of those of ranks that do the same as of this one's."""
        ids = self._job.courses[self._at].calls.ids
        mine = jobs.Left(made.share_left(ids), made.happens(ids))
        return [mine if alike else _all_of(one) for alike, one in zip(self._alike, self._job.courses, strict=True)]

    def _spared_ns(self, made: Scenario, own: list[IntArray]) -> int:
        """What more micro-batches spare in each step, of ranks that take so much by themselves."""
        before = np.array([max(float(one.sum()), 1.0) for one in self._own])
        left = np.array([float(one.sum()) for one in own]) / before
        computing = np.array([one.compute_ns.sum() for one in self._job.courses]) * left / self._joined.steps
        edits = [edit for edit in made.of_ranks if isinstance(edit, Rechunk)]
        return round(sum(_spared_ns(edit, computing, made.level) for edit in edits))

    def _own_ns(self, made: Sequence[Scenario]) -> list[list[IntArray]]:
        """The own time of each rank under each scenario."""
        graph = self._desk.graph
        late_ns = self._stretches.moments_ns - graph.observed_ns[graph.marks]
        begin, end = np.split(self._times(made, graph.marks) + late_ns[:, None], 2)
        # A collective that is gone may be over before what came before it: a stretch begins after the one before.
        in_turn = np.stack((begin, end), axis=1).reshape(-1, len(made))
        lasted = np.diff(np.maximum.accumulate(in_turn, axis=0), axis=0)[::2]
        shorter = (self._stretches.until_ns - self._stretches.from_ns)[:, None] - lasted
        return [self._ranks(shorter[:, k], one) for k, one in enumerate(made)]

    def _ranks(self, shorter_ns: IntArray, made: Scenario) -> list[IntArray]:
        """The own time of each rank, once this rank's stretches have got shorter by so much."""
        fixed = np.maximum(self._own[self._at] - shorter_ns, 0.0)
        own = [fixed if at == self._at else self._like(at, fixed) for at in range(len(self._own))]
        for edit in made.of_ranks:
            if isinstance(edit, Even):
                much = at(edit.much, made.level)
                own = [
                    _evened(one, ns, edit.of, 1.0 - much * (1.0 - keep)) for one, ns, keep in self._zipped(own, edit)
                ]
        return [np.rint(one).astype(np.int64) for one in own]

    def _zipped(self, own: list[Times], edit: Even) -> list[tuple[Course, Times, Times]]:
        return list(zip(self._job.courses, own, edit.keep, strict=True))

    def _like(self, other: int, fixed: Times) -> Times:
        """The own time of another rank, shortened like this one's where it does the same."""
        ours, theirs = self._own[self._at], self._own[other]
        if self._alike[other]:
            mine, its = self._segment[self._at], self._segment[other]
        else:
            mine, its = np.zeros(len(ours), dtype=np.int64), np.zeros(len(theirs), dtype=np.int64)
        before, left, now = (np.bincount(at, weights=ns) for at, ns in ((mine, ours), (mine, fixed), (its, theirs)))
        shortened: Times = theirs * (_shortened(now, before, left) / np.maximum(now, 1.0))[its]
        return shortened


def _all_of(one: Course) -> jobs.Left:
    return jobs.Left(np.ones(len(one.calls.ids)), np.ones(len(one.calls.ids), dtype=bool))


def _shortened(now: Times, before: Times, left: Times) -> Times:
    """What is left of others' stretches where one of `before` has become `left`."""
    found: Times = np.minimum(now, np.maximum(left, now - np.maximum(before - left, 0.0)))
    return found


def _segments(one: Course) -> IntArray:
    """Which stretch between two calls each own time is in: where ranks wait in between differs. Shape (events + 1,)."""
    asks = ~one.lane.waits
    return np.concatenate(([0], np.cumsum(asks)))


def _same_calls(one: Course, other: Course) -> bool:
    """Whether both ask for the same calls in the same order."""

    def asked(course: Course) -> list[str]:
        call = course.lane.call[~course.lane.waits]
        return ["" if k < 0 else course.operations[course.calls.operation[k]] for k in call.tolist()]

    return asked(one) == asked(other)


def _evened(one: Course, own: Times, of: Own, keep: Times) -> Times:
    """Own time of which the share `keep` of what it is to be `of` is left in each step."""
    all_of_it, computing = stretches_ns(one)
    part = computing if of is Own.COMPUTE else np.maximum(all_of_it - computing, 0)
    return np.maximum(own - part * (1.0 - keep[begun(one)]), 0.0)


def _spared_ns(edit: Rechunk, computing_ns: Times, level: Estimate) -> float:
    """Of the pipeline that gains least: where one ends, it meets others."""
    added = (edit.times - 1) * edit.count * at(edit.cost_ns, level)
    some = [computing_ns[list(ranks)] for ranks in edit.pipelines]
    idle = min(float(one.sum() - one.max()) for one in some) / edit.stages
    return idle / edit.count * (1.0 - 1.0 / edit.times) - added
