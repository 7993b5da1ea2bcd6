"""One process with two devices, whose streams have the same numbers: who waits for whom."""

import numpy as np
import pytest
from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.device import device_work
from diagnose.facts.core.steps import steps
from diagnose.facts.run.recording_cost import event_costs
from diagnose.replay import calls as host_calls
from diagnose.replay.edits import Shorten
from diagnose.replay.job_saving import baseline
from diagnose.replay.streams import streams
from diagnose.replay.work_edges import before_on_stream, event_edges
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import EventCost
from tests.drawing import Drawing
from tests.replay.programs import synced


def pipeline(first: int, second: int) -> Facts:
    """Each of three batches is computed on device 0, then on device 1, whose stream waits for it."""
    draw = Drawing()
    for batch in range(3):
        at = 100 * batch
        draw.launch("first", (at, at + 1), (at + 2, at + 40), stream=first, device=0)
        draw.call("cudaEventRecord", at + 3, at + 4)
        record = draw._correlation
        draw.call("cudaStreamWaitEvent", at + 5, at + 6)
        awaited = {"wait_on_stream": first, "wait_on_cuda_event_record_corr_id": record}
        synced(draw, "Stream Wait Event", (at + 5, at + 5), stream=second, device=1, **awaited)
        draw.launch("second", (at + 7, at + 8), (at + 41, at + 80), stream=second, device=1)
    draw.call("cudaDeviceSynchronize", 300, 310)
    synced(draw, "Context Sync", (300, 310), stream=-1)
    return draw.facts()


def waits_of_streams(facts: Facts) -> list[tuple[int, int]]:
    work, on = device_work(facts), streams(facts)
    rows = work.start_ns.argsort().argsort()  # points: one for each operation
    found = event_edges(facts, work, on, rows, rows)
    return sorted(zip(found.source.tolist(), found.target.tolist(), strict=True))


def test_a_stream_waits_for_the_one_of_the_other_device() -> None:
    expected = [(0, 1), (2, 3), (4, 5)]
    assert waits_of_streams(pipeline(7, 20)) == expected
    assert waits_of_streams(pipeline(7, 7)) == expected


def test_a_device_that_is_waited_for_is_not_the_other() -> None:
    facts = pipeline(7, 7)
    work, on, found = device_work(facts), streams(facts), host_calls.calls(facts)
    awaited = host_calls.waits(facts, found, on)
    synced = found.end_ns[awaited.call] == found.end_ns.max()
    assert set(work.track[awaited.work[synced]].tolist()) == {on[0].track}
    assert on[0].device == 0


def test_work_without_a_duration_follows_the_work_before_it_on_its_stream() -> None:
    """Also when it, or the next, starts as the one before ends."""
    draw = Drawing().launch("a", (0, 1), (10, 100)).launch("b", (2, 3), (100, 100)).launch("c", (4, 5), (150, 150))
    facts = draw.launch("d", (6, 7), (150, 200)).launch("other", (8, 9), (120, 130), stream=8).facts()
    found, work = before_on_stream(device_work(facts), streams(facts)), device_work(facts)
    name = [*facts.rank.spans["name"].iloc[work.ids], "nothing"]
    assert {name[row]: name[one] for row, one in enumerate(found.tolist())} == {
        "a": "nothing",
        "b": "a",
        "c": "b",
        "d": "c",
        "other": "nothing",
    }


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
    assert step_ms(known(HOST_BOUND, true_ms, true_ms, true_ms)) == pytest.approx(true_ms, rel=0.05)


def test_an_event_costs_no_more_than_twice_what_is_known() -> None:
    assert step_ms(known(HOST_BOUND, 0.5, 0.5, 0.5)) == pytest.approx(2.0 - 0.72, rel=0.05)


def test_where_the_device_bounds_the_step_it_stays() -> None:
    assert step_ms(known(DEVICE_BOUND, 1.5, 1.5, 1.5)) == pytest.approx(1.8, rel=0.01)


def test_what_was_not_timed_is_left_alone() -> None:
    facts = known(HOST_BOUND)
    with pytest.raises(Missing):
        event_costs(facts)
    assert step_ms(facts) == pytest.approx(2.0)


def test_half_of_what_recording_is_thought_to_have_added_is_doubtful() -> None:
    """0.2 of 2 ms: 5 % of the step."""
    plain, corrected = (baseline(known(HOST_BOUND, *timed)) for timed in ((), (1.8,) * 3))
    facts = known(HOST_BOUND)
    ids = np.flatnonzero((facts.rank.spans["name"] == "aten::add").to_numpy())
    for replay, wide in ((plain, 0.0), (corrected, 0.05)):
        (saving,) = replay.savings([[Shorten(ids, 0.5)]])
        assert saving.low_ns == saving.likely_ns == saving.high_ns
        assert replay.doubt == pytest.approx(max(replay.quality.doubt, wide), rel=0.05)
