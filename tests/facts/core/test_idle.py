"""Every gap gets the cause that was drawn, its source line, and the causes add up to the idle time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.facts.core.base import Missing
from diagnose.facts.core.breakdown import breakdown
from diagnose.facts.core.causes import TimeCause
from diagnose.facts.core.idle import idle, idle_gaps
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from tests.drawing import Drawing

BUSY_UNTIL, BUSY_AGAIN = 100, 200


def gap() -> Drawing:
    """A step in which the device is idle from 100 to 200 us only: what ends the gap is launched at 190 to 195 us."""
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0))
    draw.step(1, -10, 400).launch("before", (-5, -2), (0, BUSY_UNTIL))
    return draw.launch("after", (190, 195), (BUSY_AGAIN, 300))


def only_cause(draw: Drawing) -> TimeCause:
    (found,) = idle(draw.facts())
    assert found.ns == 100_000
    assert found.gaps == 1
    return found.cause


def test_python_between_ops() -> None:
    assert only_cause(gap()) == TimeCause.PYTHON


def test_dispatching_ops() -> None:
    assert only_cause(gap().op("aten::a", 90, 140).op("aten::b", 141, 199)) == TimeCause.OPS


def test_waiting_for_the_loader() -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    assert only_cause(gap().span("user_annotation", name, 105, 180)) == TimeCause.LOADER


def test_the_loader_counts_only_if_it_fills_most_of_the_delay() -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    assert only_cause(gap().span("user_annotation", name, 105, 140)) == TimeCause.PYTHON


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"])
def test_a_sync_that_drained_the_queue_is_the_cause_of_what_follows(call: str) -> None:
    assert only_cause(gap().call(call, 20, 102).op("aten::a", 110, 189)) == TimeCause.SYNC


def test_a_sync_that_began_when_the_device_was_idle_drained_nothing() -> None:
    assert only_cause(gap().call("cudaStreamSynchronize", 110, 112).op("aten::a", 115, 189)) == TimeCause.OPS


def test_a_sync_on_another_thread_is_not_the_training_s() -> None:
    assert only_cause(gap().call("cudaStreamSynchronize", 20, 102, tid=999).op("aten::a", 110, 189)) == TimeCause.OPS


def test_after_a_sync_a_long_wait_for_the_loader_is_the_loader_s() -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    draw = gap().call("cudaStreamSynchronize", 20, 101).span("user_annotation", name, 104, 185)
    assert only_cause(draw) == TimeCause.LOADER


def test_a_copy_to_pageable_memory_drains_the_queue_too() -> None:
    draw = gap()
    draw.copy("DtoH (Device -> Pageable)", (20, 101), (98, BUSY_UNTIL), 4, stream=8)
    assert only_cause(draw.op("aten::a", 110, 189)) == TimeCause.SYNC


def test_allocating_inside_the_loader_is_allocation() -> None:
    draw = gap().op("aten::a", 101, 189).call("cudaMalloc", 110, 185)
    assert only_cause(draw) == TimeCause.ALLOCATION


def test_garbage_collection() -> None:
    assert only_cause(gap().op("aten::a", 101, 189).frame("Python GC", 105, 180)) == TimeCause.GARBAGE_COLLECTION


def test_a_slow_launching_call() -> None:
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 400)
    draw.launch("before", (-5, -2), (0, 100)).launch("after", (95, 198), (200, 300))
    assert only_cause(draw) == TimeCause.LAUNCH


def test_a_copy_call_that_stages_pageable_memory() -> None:
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 400)
    draw.launch("before", (-5, -2), (0, 100)).copy("HtoD (Pageable -> Device)", (95, 210), (200, 300), 1 << 20)
    assert only_cause(draw) == TimeCause.HOST_COPY


def test_queued_work_that_waits_long_waits_for_another_stream_if_there_is_one_and_briefly_turns_around() -> None:
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 40)
    draw.launch("a", (1, 2), (5, 100)).launch("b", (3, 4), (200, 300)).launch("c", (5, 6), (303, 400))
    found = {one.cause: one.ns for one in idle(draw.facts())}
    late = {TimeCause.PYTHON: 5_000}  # `a` is launched a microsecond after `first`, and starts as soon as it can
    assert found == {TimeCause.UNKNOWN: 100_000, TimeCause.BETWEEN_KERNELS: 3_000, **late}
    draw.launch("other", (7, 8), (350, 390), stream=8)
    found = {one.cause: one.ns for one in idle(draw.facts())}
    assert found == {TimeCause.DEVICE_WAIT: 100_000, TimeCause.BETWEEN_KERNELS: 3_000, **late}


def test_work_without_a_recorded_launch_leaves_the_cause_unknown() -> None:
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 400)
    draw.launch("before", (-5, -2), (0, 100)).work("after", (200, 300)).launch("end", (150, 151), (300, 301))
    assert only_cause(draw) == TimeCause.UNKNOWN


def test_the_site_is_the_innermost_frame_of_the_user_s_code() -> None:
    draw = gap().frame("/home/me/train.py(10): main", 0, 400).frame("/home/me/train.py(31): prepare", 101, 188)
    draw.frame("<built-in function sleep>", 102, 187)
    (found,) = idle(draw.facts())
    assert (found.cause, found.site) == (TimeCause.PYTHON, Site("/home/me/train.py", 31, "prepare"))


def test_the_site_of_a_sync_is_where_it_was_called_not_where_the_gap_was() -> None:
    draw = gap().call("cudaStreamSynchronize", 20, 102)
    draw.frame("/home/me/train.py(12): log_loss", 15, 103).frame("/home/me/train.py(40): forward", 104, 199)
    (found,) = idle(draw.facts())
    assert (found.cause, found.site) == (TimeCause.SYNC, Site("/home/me/train.py", 12, "log_loss"))


def test_backward_on_the_autograd_thread_is_placed_where_the_main_thread_stands() -> None:
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 400)
    draw.launch("before", (-5, -2), (0, 100)).launch("after", (190, 195), (200, 300), tid=777)
    draw.op("autograd::engine::evaluate_function: MmBackward0", 101, 199, tid=777)
    draw.frame("/home/me/train.py(50): step", -10, 390)
    (found,) = idle(draw.facts())
    assert (found.cause, found.site) == (TimeCause.OPS, Site("/home/me/train.py", 50, "step"))


def test_without_device_work_idle_time_is_missing() -> None:
    with pytest.raises(Missing, match="device work"):
        idle(Drawing().op("aten::mm", 0, 10).facts())


launched = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 30), st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=10
)
on_host = st.lists(
    st.tuples(
        st.sampled_from(["cudaStreamSynchronize", "cudaMalloc", "aten::mm", "enumerate(DataLoader)#_X.__next__"]),
        st.integers(0, 300),
        st.integers(0, 80),
    ),
    max_size=10,
)


@given(launched, on_host)
def test_causes_add_up_to_the_idle_time(
    work: list[tuple[int, int, int, int]], host: list[tuple[str, int, int]]
) -> None:
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 400)
    for stream, (call, length, delay, run) in enumerate(work):
        draw.launch("k", (call, call + length), (call + delay, call + delay + run), stream=stream)
    for name, start, length in host:
        (draw.call if name.startswith("cuda") else draw.op)(name, start, start + length)
    facts = draw.facts()
    assert sum(one.ns for one in idle(facts)) == breakdown(facts).idle_ns
    assert sum(one.gaps for one in idle(facts)) == idle_gaps(facts).gaps.size


def test_a_hole_in_a_graph_is_not_idle() -> None:
    """50 to 250 us of each step lie within a replay; what is idle before the first kernel of it does not."""
    facts = facts_of(
        """
        4 steps of 0.4
        cpu  aten::mm 0-0.01
        gpu  pointwise 0.03-0.05 @0.015 graph | pointwise 0.25-0.38 @0.015 graph
        """
    )
    assert sum(one.ns for one in idle(facts)) == 50_000
    found = breakdown(facts)
    assert (found.idle_ns, found.work_not_recorded_ns, found.busy_ns) == (50_000, 200_000, 150_000)
    assert found.step_ns == 400_000


def test_gaps_outside_of_the_host_s_recording_have_no_cause_on_the_host() -> None:
    """The host is recorded from 100 to 200 us: 0 to 100 before, and 250 to 300 after, it may have done anything."""
    draw = Drawing().work("early", (0, 10)).op("aten::mm", 100, 200).launch("k", (110, 112), (115, 250))
    found = {one.cause: one.ns for one in idle(draw.work("late", (300, 310)).facts())}
    assert found == {TimeCause.HOST_NOT_RECORDED: 155_000}


def test_work_without_a_launch_within_the_host_s_recording_has_an_unknown_cause() -> None:
    draw = Drawing().op("aten::mm", 0, 200).launch("k", (10, 12), (15, 50)).work("other", (100, 190))
    assert [one.cause for one in idle(draw.facts())] == [TimeCause.UNKNOWN]
