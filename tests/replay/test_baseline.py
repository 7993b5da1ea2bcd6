"""The step that savings are measured from, where recording slows the host of a GPU."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.steps import steps
from diagnose.facts.run.recording_cost import event_costs
from diagnose.replay.baseline import baseline
from diagnose.replay.edits import Shorten
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import EventCost

HOST_BOUND = """
4 steps of 2
cpu  aten::add 0.1-0.118 x90 every 0.02
gpu  pointwise 0.108-0.109 @0.104-0.108 x90 every 0.02
"""
"""An op begins every 20 us, and the device waits for each."""

DEVICE_BOUND = """
4 steps of 1.8
cpu  aten::add 0-0.018 x90 every 0.02
gpu  pointwise 0.008-0.028 @0.004-0.008 x90 every 0.02
"""
"""Each kernel begins as the one before it ends."""


def known(text: str, *timed_ms: float, cost: EventCost | None = None) -> Facts:
    """Recorded by `diagnose profile`, with these times of steps without the profiler."""
    facts = facts_of(f"{text}\ntimed {' '.join(map(str, timed_ms))}" if timed_ms else text)
    context = facts.rank.context
    if context is not None and cost is not None:
        context = replace(context, rank=with_fields(context.rank, event_cost=cost))
    return Facts(replace(facts.rank, context=context))


def step_ms(facts: Facts) -> float:
    return baseline(facts).quality.step_time_ns / 1e6


def test_an_event_costs_what_was_measured() -> None:
    """Two moments of each op and of each call; of three calls and ops of a step the first lie outside of it."""
    costs = event_costs(known(HOST_BOUND, 1.0, cost=EventCost(op_ns=1000, call_ns=500)))
    (own,) = costs.times(1.0)
    used = steps(known(HOST_BOUND, 1.0))
    inside = (own.at_ns >= used.start_ns) & (own.at_ns < used.end_ns)
    spent = (own.at_ns - own.at_ns[0]) - own.own_ns
    assert spent[inside][-1] - spent[inside][0] == pytest.approx(used.count * 90 * 1500, rel=0.01)


@pytest.mark.parametrize("true_ms", [1.64, 1.75, 1.9])
def test_where_the_host_bounds_the_step_it_comes_out_at_the_one_without_the_profiler(true_ms: float) -> None:
    """180 events of up to 4 us a step: 0.72 ms at most."""
    assert step_ms(known(HOST_BOUND, true_ms, true_ms, true_ms)) == pytest.approx(true_ms, rel=0.02)


def test_an_event_costs_no_more_than_twice_what_is_known() -> None:
    assert step_ms(known(HOST_BOUND, 0.5, 0.5, 0.5)) == pytest.approx(2.0 - 0.72, rel=0.02)


def test_where_the_device_bounds_the_step_it_stays() -> None:
    assert step_ms(known(DEVICE_BOUND, 1.5, 1.5, 1.5)) == pytest.approx(1.8, rel=0.01)


def test_what_was_not_timed_is_left_alone() -> None:
    facts = known(HOST_BOUND)
    with pytest.raises(Missing):
        event_costs(facts)
    assert step_ms(facts) == pytest.approx(2.0)


def test_a_range_widens_by_half_of_what_recording_is_thought_to_have_added() -> None:
    """0.2 of 2 ms: the ops that are shortened to half leave 5 % more or less."""
    plain, corrected = (baseline(known(HOST_BOUND, *timed)) for timed in ((), (1.8,) * 3))
    facts = known(HOST_BOUND)
    ids = np.flatnonzero((facts.rank.spans["name"] == "aten::add").to_numpy())
    for replay, wide in ((plain, 0.0), (corrected, 0.05)):
        (saving,) = replay.savings([[Shorten(ids, 0.5)]])
        doubt = max(replay.quality.doubt, wide)
        assert saving.low_ns == pytest.approx(saving.likely_ns * (1 - doubt), rel=0.01)
        assert saving.high_ns == pytest.approx(saving.likely_ns * (1 + doubt), rel=0.01)
