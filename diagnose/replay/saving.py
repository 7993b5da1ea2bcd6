"""What edits would save per step, with a range, and how far the replay can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import unrecorded_work
from diagnose.facts.core.steps import steps
from diagnose.facts.run.quality import not_recorded
from diagnose.facts.run.recording_cost import RecordingCost
from diagnose.replay import simulate
from diagnose.replay.apply import EditIndex, Scenario
from diagnose.replay.build import recorded_graph
from diagnose.replay.critical_path import recorded_chain
from diagnose.replay.edits import Edit, Estimate
from diagnose.replay.graph import EdgeKind, Graph
from diagnose.replay.shown import Change, change, grounds, times_by_track
from diagnose.replay.simulate import MOST_CELLS
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray
from diagnose.trace.model import Ground, IntegrityNote

DOUBTFUL = 0.10  # From this share on, of error or unexplained time, estimates say so.
ONLY_BOUNDS = 0.30  # From this share on, estimates are bounds and nothing more.


class Basis(str, Enum):
    """What an estimate rests on."""

    REPLAYED = "replayed"
    MEASURED = "measured"  # Replayed with what changed ops were measured to take on this machine.
    TIMED_ELSEWHERE = "timed_elsewhere"  # Replayed with what such ops were timed to take on other machines.
    BOUNDED = "bounded"  # The replay explains too little of this recording: the saving is at most the upper end.
    RULE_OF_THUMB = "rule_of_thumb"  # Replayed; how much faster the fixed part gets is experience from elsewhere.
    AT_MOST = "at_most"  # Replayed as if it took no time, as no fix is known: the saving is at most that.

    @property
    def is_bound(self) -> bool:
        """Whether only the upper end says something."""
        return self in (Basis.BOUNDED, Basis.AT_MOST)


@dataclass(frozen=True)
class Saving:
    """What a fix would take off a step, end to end; 0 <= low <= likely <= high <= the step."""

    low_ns: int
    likely_ns: int
    high_ns: int
    basis: Basis
    # How it was found, not what it is:
    replayed_ns: tuple[int, int, int] | None = field(default=None, compare=False)  # The step: low, likely, high.
    device_left: float = field(default=1.0, compare=False)  # Of the time of device work, what is likely left: a share.


class Quality(Struct, frozen=True):
    """How well the replay explains the recording."""

    step_time_ns: int  # Mean of the used steps as replayed without edits: as measured, but for what does not count.
    error_share: float  # How far the model alone is off, without residuals. Negative: it predicts too little.
    unexplained_share: float  # Of the steps, what only residuals explain on the path to the end of the last one.

    @property
    def doubt(self) -> float:
        """The larger of both, as a share."""
        return max(abs(self.error_share), self.unexplained_share)


class Replay:
    """A rank's graph, ready to be asked: what would a step take if ...?"""

    def __init__(self, facts: Facts, uncounted: Sequence[Edit] = (), cost: Sequence[RecordingCost] = ()) -> None:
        """Steps are those after the edits `uncounted`, which take away what other steps do not have, and without what
        recording cost the host, where that is known. Raises Missing as `recorded_graph` does."""
        self._uncounted = tuple(uncounted)
        self._used = steps(facts)
        graph = recorded_graph(facts)
        self._index = EditIndex(facts, graph, cost)
        self._structure = simulate.folded(graph)
        self._cost = cost
        self._busy = _busy_edges(graph)
        self.quality = self._quality(graph, recorded_chain(facts).unexplained_ns)
        taken_ns = 0 if all(one.measured for one in cost) else self._measured_ns() - self.quality.step_time_ns
        self._guessed_share = max(taken_ns, 0) / max(self._measured_ns(), 1)
        lost = intervals.clip(unrecorded_work(facts), *self._used.bounds_ns[[0, -1]].tolist())
        self._lost_share = lost.total / max(self._used.window_ns, 1)

    def _quality(self, graph: Graph, unexplained_ns: int) -> Quality:
        """How far the unedited replay is off the recorded window, and how much of it no edge explains."""
        window = max(self._used.window_ns, 1)
        modelled = simulate.pure(graph, self._structure)
        return Quality(
            step_time_ns=self._step_time_ns(),
            error_share=float(modelled[-1] - modelled[0]) / window - 1.0,
            unexplained_share=unexplained_ns / window,
        )

    @property
    def _edges(self) -> int:
        return len(self._index.graph.delay_ns)

    def _measured_ns(self) -> int:
        return round_half_up(self._used.window_ns, self._used.count)

    def _step_time_ns(self) -> int:
        """ns per step without what the recording cost and what does not count."""
        if not self._uncounted and not self._cost:
            return self._measured_ns()
        replayed = int(self._run([self._scenario((), Estimate.LIKELY)])[0])
        # Recorded steps may have been the quicker ones, by chance.
        return replayed if self._cost else min(self._measured_ns(), replayed)

    def _scenario(self, edits: Sequence[Edit], level: Estimate) -> Scenario:
        return Scenario(self._index, [*self._uncounted, *edits], level)

    def step_times_ns(self, cases: Sequence[tuple[Sequence[Edit], Estimate]]) -> IntArray:
        """The mean step under each set of edits, never longer than without. Shape (cases,)."""
        return np.array([ns for ns, _ in self.after(cases)], dtype=np.int64)

    def after(self, cases: Sequence[tuple[Sequence[Edit], Estimate]]) -> list[tuple[int, float]]:
        """(mean step in ns, share left of the time of device work) under each set of edits.
        Edits change the whole recording, so the used steps begin earlier as well. Where they begin earlier by more than
        they end, the device had lived on work queued before: nothing is saved then."""
        found, at_once = list[tuple[int, float]](), max(1, MOST_CELLS // max(self._edges, 1))
        for begin in range(0, len(cases), at_once):
            made = [self._scenario(edits, level) for edits, level in cases[begin : begin + at_once]]
            times = np.minimum(self._run(made), self.quality.step_time_ns).tolist()
            found += zip(times, map(self._device_left, made), strict=True)
        return found

    def _device_left(self, made: Scenario) -> float:
        """Share of the time of device work in the used steps that is left in a scenario."""
        some = self._busy[self._index.graph.edges.kind[self._busy] == EdgeKind.WORK]
        before = float(self._index.graph.delay_ns[some].sum())
        return float(made.delay_ns[some].sum()) / before if before else 1.0

    def _times(self, made: Sequence[Scenario], at: IntArray) -> IntArray:
        """The time of points under each scenario. Shape (points, scenarios)."""
        delay = np.stack([one.delay_ns for one in made], axis=1)
        residual = np.stack([one.residual_ns for one in made], axis=1)
        return simulate.times(self._index.graph, self._structure, delay, residual, at)

    def _run(self, made: Sequence[Scenario]) -> IntArray:
        """The mean step under each scenario. Shape (scenarios,). It is at least what its busiest thread or stream has
        to do: work that moves across the border of the used steps can make them seem shorter than that."""
        bounds, count = self._times(made, self._index.graph.bounds), self._used.count
        windows = zip((bounds[-1] - bounds[0]).tolist(), made, strict=True)
        return np.array([max(round_half_up(ns, count), self._busiest_ns(one)) for ns, one in windows], dtype=np.int64)

    def _busiest_ns(self, made: Scenario) -> int:
        """ns per step that the busiest thread or stream has to do in a scenario."""
        own_ns = made.delay_ns[self._busy].astype(float)
        busy = np.bincount(self._index.graph.edges.track[self._busy], weights=own_ns)
        return int(busy.max(initial=0.0)) // self._used.count

    def savings(self, fixes: Sequence[Sequence[Edit]], after: Sequence[Edit] = ()) -> list[Saving]:
        """What each fix (a set of edits) would save alone; if `after` is given, once those edits have been made."""
        cases = [([*after, *edits], level) for edits in fixes for level in Estimate]
        found, base = self.after(cases), int(self.step_times_ns([(list(after), Estimate.LIKELY)])[0])
        basis = Basis.BOUNDED if self.quality.doubt >= ONLY_BOUNDS else Basis.REPLAYED
        savings = []
        for low, likely, high in zip(*(found[level :: len(Estimate)] for level in Estimate), strict=True):
            replayed = low[0], likely[0], high[0]
            least, middle, most = sorted(max(base - ns, 0) for ns in replayed)
            savings.append(Saving(least, middle, most, basis, replayed, likely[1]))
        return savings

    @property
    def doubt(self) -> float:
        """Share of the step that it fails to explain, that recording may have added (half of it), or that was lost."""
        return min(max(self.quality.doubt, self._guessed_share / 2, self._lost_share), 1.0)

    def changes(self, edits: Sequence[Edit]) -> tuple[Change, ...]:
        """What edits do to the used steps."""
        return tuple(change(self._index.facts, edit) for edit in edits)

    @property
    def notes(self) -> tuple[IntegrityNote, ...]:
        """What is wrong with the recording that is replayed."""
        facts = self._index.facts
        return (*facts.rank.integrity, *(optional(not_recorded, facts) or ()))

    def grounds(self, edits: Sequence[Edit]) -> frozenset[Ground]:
        """What edits rest on."""
        return grounds(self._index.facts, edits)

    def touched_share(self, edits: Sequence[Edit], by: Sequence[Edit]) -> float:
        """The share of the time that edits select, thread by thread and stream by stream, which others select too."""
        own, others = (times_by_track(self._index.facts, some) for some in (edits, by))
        both = sum(intervals.intersect(own[track], others[track]).total for track in own.keys() & others.keys())
        return both / max(sum(times.total for times in own.values()), 1)


def _busy_edges(graph: Graph) -> IntArray:
    """Edges within the used steps that stand for what a thread or stream has to do."""
    some = graph.edges
    begin, end = int(graph.observed_ns[graph.bounds[0]]), int(graph.observed_ns[graph.bounds[-1]])
    owned = (some.kind == EdgeKind.HOST) | (some.kind == EdgeKind.WORK)
    return np.flatnonzero(owned & (graph.observed_ns[some.source] >= begin) & (graph.observed_ns[some.target] <= end))
