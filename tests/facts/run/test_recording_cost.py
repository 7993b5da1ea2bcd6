"""What recording adds is taken off by phase, and within a phase by event."""

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.steps import steps
from diagnose.facts.run.recording_cost import RecordingCost, recording_cost
from diagnose.facts.run.timed_steps import Slowdown, slowdown, unrecorded
from diagnose.replay.edits import Shorten
from diagnose.replay.saving import Replay
from diagnose.synthetic.reading import facts_of
from diagnose.trace.intervals import IntArray
from diagnose.trace.manifest import RankManifest, Timed
from diagnose.trace.model import Context
from tests.facts.core.test_run import UNKNOWN

MS = 1_000_000

TWO_PRODUCTS = """
    5 steps of 100
    cpu  aten::mm 10-20 | aten::addmm 30-50 | optimizer 60-90
"""


def timed(wall_ms: int, optimizer_ms: int, nodes: int = 0, steps: int = 5) -> Timed:
    phases = {"optimizer": (optimizer_ms * MS,) * steps} if optimizer_ms else {}
    return Timed(first_step=0, wall_ns=(wall_ms * MS,) * steps, phases_ns=phases, nodes=(nodes,) * steps * bool(nodes))


def replace_phases(some: Timed, phases_ns: dict[str, tuple[int, ...]]) -> Timed:
    return msgspec.structs.replace(some, phases_ns=phases_ns)


def known(drawing: str, alone: Timed, recorded: Timed) -> Facts:
    rank = RankManifest(rank=0, unprofiled=alone, timing=recorded)
    return Facts(replace(facts_of(drawing).rank, context=Context(rank, UNKNOWN, 1)))


def own_ms(found: RecordingCost, begin_ns: int, end_ns: int) -> float:
    own = np.interp([begin_ns, end_ns], found.at_ns, found.own_ns)
    return float(own[1] - own[0]) / MS


def of_name(facts: Facts, name: str) -> IntArray:
    return np.flatnonzero((facts.rank.spans["name"] == name).to_numpy())


def test_each_phase_keeps_what_it_takes_without_the_profiler() -> None:
    """The optimizer takes 20 of 30 ms, the rest 60 of 70."""
    facts = known(TWO_PRODUCTS, timed(80, 20), timed(100, 30))
    found, used = recording_cost(facts), steps(facts)
    assert own_ms(found, used.start_ns, used.end_ns) == pytest.approx(4 * 80, abs=1e-3)
    for begin in used.bounds_ns[:-1].tolist():
        assert own_ms(found, begin + 60 * MS, begin + 90 * MS) == pytest.approx(20, abs=1e-3)


def test_within_a_phase_events_cost_the_same_however_long_they_are() -> None:
    """Of the rest of four steps 40 ms are the recorder's. An event's begin and end count for the time before and after
    them: two steps at 0, products at 10, 20, 30 and 50, the optimizer at 60 and 90, two steps at 100, but only one at
    the very end. That makes 3 + 2 + 2 + 2 + 2 + 3 parts in a step and 55 in all: 2 of a product, 3 of the first pause.
    """
    facts = known(TWO_PRODUCTS, timed(80, 20), timed(100, 30))
    found, begin = recording_cost(facts), int(steps(facts).start_ns)
    assert own_ms(found, begin + 10 * MS, begin + 20 * MS) == pytest.approx(10 - 40 * 2 / 55, abs=1e-3)
    assert own_ms(found, begin + 30 * MS, begin + 50 * MS) == pytest.approx(20 - 40 * 2 / 55, abs=1e-3)
    assert own_ms(found, begin, begin + 10 * MS) == pytest.approx(10 - 40 * 3 / 55, abs=1e-3)


def test_savings_are_of_the_training_s_own_time() -> None:
    facts = known(TWO_PRODUCTS, timed(80, 20), timed(100, 30))
    replay, product = Replay(facts, (), [recording_cost(facts)]), of_name(facts, "aten::addmm")
    assert replay.quality.step_time_ns == pytest.approx(80 * MS, abs=1000)
    (saving,) = replay.savings([[Shorten(product, 0.0)]])
    assert saving.likely_ns == pytest.approx((20 - 40 * 2 / 55) * MS, abs=1000)
    assert Replay(facts).savings([[Shorten(product, 0.0)]])[0].likely_ns == 20 * MS


def test_recorded_steps_may_be_quicker_by_chance() -> None:
    """Of 105 ms, where 100 were recorded, the optimizer takes 33: what it saves is not less for that."""
    facts = known(TWO_PRODUCTS, timed(105, 33), timed(100, 30))
    replay, update = Replay(facts, (), [recording_cost(facts)]), of_name(facts, "Optimizer.step#AdamW.step")
    assert replay.quality.step_time_ns == pytest.approx(105 * MS, abs=1000)
    assert replay.savings([[Shorten(update, 0.0)]])[0].likely_ns == pytest.approx(33 * MS, abs=1000)


def test_steps_that_do_more_are_compared_for_as_much_work() -> None:
    """Recorded steps make twice as many nodes: 100 of 120 ms are their own, though others take 50."""
    facts = known("5 steps of 120\ncpu  aten::mm 10-20 | optimizer 60-84", timed(50, 10, 10), timed(120, 24, 20))
    assert slowdown(facts) == Slowdown(50 * MS, 50 * MS, pytest.approx(1.2), True, size=2.0)
    used = steps(facts)
    assert own_ms(recording_cost(facts), used.start_ns, used.end_ns) == pytest.approx(4 * 100, abs=1e-3)


def test_a_step_that_does_four_times_as_much_may_take_four_times_as_long() -> None:
    alone = Timed(first_step=0, wall_ns=(10 * MS, 40 * MS, 10 * MS), nodes=(5, 20, 5))
    assert unrecorded(known(TWO_PRODUCTS, alone, timed(100, 30, 10))).long == 0
    mean = slowdown(known(TWO_PRODUCTS, alone, timed(100, 30, 10))).unprofiled_ns
    assert mean == 20 * MS
    unlike = Timed(first_step=0, wall_ns=(10 * MS, 40 * MS, 10 * MS), nodes=(5, 5, 5))
    assert unrecorded(known(TWO_PRODUCTS, unlike, timed(100, 30, 5))).long == 1


@pytest.mark.parametrize(
    ("alone", "recorded"),
    [
        (timed(80, 0), timed(100, 0)),
        (timed(80, 20), timed(100, 30, steps=2)),  # Not all that were used.
        (timed(80, 20), replace_phases(timed(100, 30), {"optimizer": (30 * MS,)})),  # Written by somebody else.
    ],
)
def test_without_times_by_phase_nothing_is_said(alone: Timed, recorded: Timed) -> None:
    with pytest.raises(Missing, match="Record with diagnose profile"):
        recording_cost(known(TWO_PRODUCTS, alone, recorded))
