"""The parts of a step add up, count no time twice, and agree with counting microsecond by microsecond."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.facts.core.base import Missing
from diagnose.facts.core.breakdown import TimeCause, breakdown, launch_table, launches, round_half_up, shared_out
from diagnose.facts.core.idle import idle, idle_gaps
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from tests.drawing import Drawing, step_to_fill

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy HtoD (Pinned -> Device)"


def test_each_moment_counts_once_and_compute_before_communication_before_copies() -> None:
    draw = step_to_fill()
    draw.launch("gemm", (1, 2), (10, 30))
    draw.launch(NCCL, (3, 4), (20, 50), stream=20)
    draw.launch(COPY, (5, 6), (40, 60), stream=30, cat="gpu_memcpy")
    draw.launch("Memset (Device)", (7, 8), (70, 71), stream=7, cat="gpu_memset")
    found = breakdown(draw.facts())
    assert found.step_ns == 100_000
    assert found.compute_ns == 21_000  # 10-30 and 99-100
    assert found.exposed_communication_ns == 20_000  # 30-50
    assert found.exposed_copy_ns == 11_000  # 50-60 and 70-71
    assert found.idle_ns == 48_000
    assert found.busy_ns == 52_000


def test_annotations_on_the_device_and_work_on_two_streams_or_devices_are_not_counted_twice() -> None:
    draw = step_to_fill()
    draw.launch("a", (1, 2), (10, 30), stream=7)
    draw.launch("b", (1, 2), (10, 30), stream=8)
    draw.launch("c", (1, 2), (20, 40), stream=7, device=1)
    draw.work("ProfilerStep#1", (0, 100), cat="gpu_user_annotation")
    assert breakdown(draw.facts()).busy_ns == 31_000


work = st.lists(
    st.tuples(st.sampled_from(["gemm", NCCL, COPY]), st.integers(0, 99), st.integers(1, 40), st.integers(1, 3)),
    max_size=12,
)


@given(work)
def test_the_parts_agree_with_counting_every_microsecond(pieces: list[tuple[str, int, int, int]]) -> None:
    draw = step_to_fill()
    moments: list[set[str]] = [set() for _ in range(100)]
    moments[99].add("last")
    for name, start, length, stream in pieces:
        end = min(start + length, 100)
        draw.launch(name, (-5, -4), (start, end), stream=stream, cat="gpu_memcpy" if name == COPY else "kernel")
        for at in range(start, end):
            moments[at].add(name)
    compute = sum(bool(names & {"gemm", "last"}) for names in moments)
    communication = sum(NCCL in names and not names & {"gemm", "last"} for names in moments)
    copies = sum(names == {COPY} for names in moments)
    found = breakdown(draw.facts())
    assert found.step_ns == 100_000
    assert (found.compute_ns, found.exposed_communication_ns) == (1000 * compute, 1000 * communication)
    assert found.exposed_copy_ns == 1000 * copies
    assert found.idle_ns == 1000 * sum(not names for names in moments)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=6), st.integers(1, 50))
def test_shared_out_parts_add_up_and_are_within_one_of_their_quotient(totals: list[int], count: int) -> None:
    parts = shared_out(totals, count)
    assert sum(parts) == round_half_up(sum(totals), count)
    assert all(abs(part * count - total) <= count for part, total in zip(parts, totals, strict=True))


def test_depth_counts_what_was_launched_on_the_stream_and_has_not_finished() -> None:
    draw = Drawing()
    draw.launch("a", (0, 2), (10, 30))
    draw.launch("b", (4, 6), (30, 50))
    draw.launch("other stream", (7, 8), (9, 60), stream=8)
    draw.launch("c", (35, 37), (50, 53))
    draw.launch("d", (70, 72), (75, 76))
    table = launch_table(draw.facts())
    assert table.depth.tolist() == [0, 1, 0, 1, 0]
    assert table.delay_ns.tolist() == [10_000, 26_000, 2_000, 15_000, 5_000]


def test_depth_is_right_where_two_threads_launch_and_work_ends_in_another_order() -> None:
    draw = Drawing()
    draw.launch("first", (0, 1), (50, 60))
    draw.launch("by another thread", (2, 3), (10, 25), thread=9)
    draw.launch("third", (25, 26), (61, 62))  # The second has finished, the first has not.
    draw.launch("last", (61, 63), (70, 71), thread=9)  # Of three the third has not.
    table = launch_table(draw.facts())
    assert table.depth.tolist() == [0, 1, 1, 1]


def test_the_summary_of_the_used_steps() -> None:
    draw = Drawing().step(0, 0, 10).launch("first", (1, 2), (5, 20)).step(1, 10, 90).step(2, 90, 200)
    draw.launch("a", (11, 13), (20, 40)).launch("b", (14, 18), (40, 43)).launch("c", (100, 103), (110, 150))
    found = launches(draw.facts())
    assert found.per_step == 2  # 3 launches in 2 steps, rounded half up
    assert found.call_ns == 4_500
    assert (found.delay_median_ns, found.depth_max, found.depth_median) == (10_000, 2, 1)
    assert found.empty_queue_share == pytest.approx(1 / 3)
    assert (found.tiny_kernels, found.tiny_kernel_ns) == (1, 1_500)


def test_a_graph_launch_is_one_entry_in_the_queue() -> None:
    draw = Drawing().launch("k1", (0, 5), (10, 20), api="cudaGraphLaunch")
    correlation = draw.events[-1]["args"]["correlation"]
    draw.work("k2", (20, 40), correlation=correlation)
    draw.launch("after", (30, 31), (40, 50))
    table = launch_table(draw.facts())
    assert table.depth.tolist() == [0, 0, 1]


def test_without_launches_the_fact_is_missing() -> None:
    with pytest.raises(Missing, match="launches of device work"):
        launches(Drawing().work("k", (0, 5)).facts())


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


NEXT_OF_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
NEXT_IN_PROCESS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize(
    ("draw", "cause"),
    [
        (gap(), TimeCause.PYTHON),
        (gap().op("aten::a", 90, 140).op("aten::b", 141, 199), TimeCause.OPS),
        (gap().span("user_annotation", NEXT_OF_WORKERS, 105, 180), TimeCause.LOADER),
        (gap().span("user_annotation", NEXT_OF_WORKERS, 105, 140), TimeCause.PYTHON),  # it has to fill most of the gap
        # A sync that drained the queue is the cause of what follows.
        (gap().call("cudaStreamSynchronize", 20, 102).op("aten::a", 110, 189), TimeCause.SYNC),
        (gap().call("cudaDeviceSynchronize", 20, 102).op("aten::a", 110, 189), TimeCause.SYNC),
        (gap().call("cudaEventSynchronize", 20, 102).op("aten::a", 110, 189), TimeCause.SYNC),
        # One that began when the device was idle drained nothing, and one on another thread is not the training's.
        (gap().call("cudaStreamSynchronize", 110, 112).op("aten::a", 115, 189), TimeCause.OPS),
        (gap().call("cudaStreamSynchronize", 20, 102, tid=999).op("aten::a", 110, 189), TimeCause.OPS),
        # After a sync a long wait for the loader is the loader's.
        (
            gap().call("cudaStreamSynchronize", 20, 101).span("user_annotation", NEXT_IN_PROCESS, 104, 185),
            TimeCause.LOADER,
        ),
        # A copy to pageable memory drains the queue too.
        (
            gap().copy("DtoH (Device -> Pageable)", (20, 101), (98, BUSY_UNTIL), 4, stream=8).op("aten::a", 110, 189),
            TimeCause.SYNC,
        ),
        (gap().op("aten::a", 101, 189).call("cudaMalloc", 110, 185), TimeCause.ALLOCATION),
        (gap().op("aten::a", 101, 189).frame("Python GC", 105, 180), TimeCause.GARBAGE_COLLECTION),
    ],
)
def test_the_cause_of_a_gap_is_what_the_host_did_in_it(draw: Drawing, cause: TimeCause) -> None:
    assert only_cause(draw) == cause


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
    facts = facts_of("""
        4 steps of 0.4
        cpu  aten::mm 0-0.01
        gpu  pointwise 0.03-0.05 @0.015 graph | pointwise 0.25-0.38 @0.015 graph
    """)
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
