"""Timelines: which lane and kind everything drawn gets, and when; and what holds for those of real traces."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from diagnose.contracts.timeline import KINDS, MarkKind, Timeline
from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.facts.core.breakdown import IDLE_CAUSES, breakdown, device_time
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.steps import steps
from diagnose.source import ranks
from diagnose.timeline import drawing as module
from diagnose.timeline.drawing import MOST_MARKS, MOST_NAME, timeline
from diagnose.timeline.marks import MOST_STREAMS, MOST_THREADS, Marks, lanes, window
from diagnose.trace import intervals
from tests.drawing import Drawing
from tests.replay.test_corpus_replay import FILES

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
BACKWARD = 200  # The thread of the backward pass.
Bar = tuple[int, str, str, float, float]  # lane, name, kind, start and duration in us


def path_lane(drawn: Timeline) -> int:
    """The lane of the critical path; the number of lanes if there is none."""
    groups = [lane.group for lane in drawn.lanes]
    return groups.index("path") if "path" in groups else len(groups)


def bars(drawn: Timeline, marks: Marks | None = None) -> list[Bar]:
    """Bars of all lanes but that of the critical path, which is not counted."""
    shown, path = all_bars(drawn, marks), path_lane(drawn)
    return [(lane - (lane > path), *rest) for lane, *rest in shown if lane != path]  # type: ignore[misc]


def path_bars(drawn: Timeline) -> list[Bar]:
    return [bar for bar in all_bars(drawn) if bar[0] == path_lane(drawn)]


def all_bars(drawn: Timeline, marks: Marks | None = None) -> list[Bar]:
    found = Marks.of(drawn.tables[0]) if marks is None else marks
    return [
        (lane, drawn.labels[label], drawn.kinds[kind], start / 1000, dur / 1000)
        for lane, start, dur, label, kind, *_ in zip(
            *(column.tolist() for column in msgspec.structs.astuple(found)), strict=True
        )
    ]


def lane_names(drawn: Timeline) -> list[str]:
    return [lane.name for lane in drawn.lanes if lane.group != "path"]


def one_step() -> Drawing:
    """Of the steps one is used, from 20 to 100 us; the host begins to launch it at 12 us."""
    draw = Drawing().step(0, 0, 10).launch("first", (1, 2), (5, 20)).step(1, 10, 90)
    draw.op("a", 11, 50).op("b", 13, 45).op("c", 15, 40).op("d", 20, 35)
    draw.launch("gemm", (12, 14), (25, 40)).launch(NCCL, (16, 17), (30, 60), stream=20)
    draw.copy("HtoD (Pinned -> Device)", (18, 19), (60, 70), 4096)
    draw.call("cudaStreamSynchronize", 60, 75).span("user_annotation", LOADER, 76, 84)
    draw.op("MmBackward0", 50, 55, tid=BACKWARD).launch("backward", (51, 52), (70, 72), tid=BACKWARD)
    return draw.launch("last", (85, 87), (90, 100))


def test_lanes_are_the_idle_device_the_path_the_streams_and_the_threads_the_main_one_first() -> None:
    drawn = timeline(one_step().facts())
    assert [(lane.name, lane.group) for lane in drawn.lanes] == [
        ("GPU idle", "idle"),
        ("critical path", "path"),
        ("stream 7", "device"),
        ("stream 20 (communication)", "device"),
        ("main thread: ops", "host"),
        ("", "host"),
        ("", "host"),
        ("main thread: calls", "host"),
        ("thread 2: ops", "host"),
        ("thread 2: calls", "host"),
    ]
    assert drawn.left_out == ()


def test_every_mark_has_its_lane_name_kind_and_time_from_the_start() -> None:
    drawn = timeline(one_step().facts())
    assert bars(drawn) == [
        (0, "", "idle/between_kernels", 8, 5),
        (0, "", "idle/loader", 60, 18),
        (1, "first", "compute", 0, 8),
        (1, "gemm", "compute", 13, 15),
        (1, "Memcpy HtoD (Pinned -> Device)", "copy", 48, 10),
        (1, "backward", "compute", 58, 2),
        (1, "last", "compute", 78, 10),
        (2, NCCL, "communication", 18, 30),
        (3, "a", "op", 0, 38),
        (3, LOADER, "loader", 64, 8),
        (4, "b", "op", 1, 32),
        (5, "c", "op", 3, 25),
        (6, "cudaLaunchKernel", "launch", 0, 2),
        (6, "cudaLaunchKernel", "launch", 4, 1),
        (6, "cudaMemcpyAsync", "copy_call", 6, 1),
        (6, "cudaStreamSynchronize", "sync", 48, 15),
        (6, "cudaLaunchKernel", "launch", 73, 2),
        (7, "MmBackward0", "op", 38, 5),
        (8, "cudaLaunchKernel", "launch", 39, 1),
    ]
    (table,) = drawn.tables
    assert (table.start_ns, table.end_ns, table.resolution_ns) == (0, 88_000, 0)
    assert set(Marks.of(table).count.tolist()) == {1}


def test_the_timeline_begins_with_the_first_launch_of_its_steps() -> None:
    drawn = timeline(one_step().facts())
    assert (drawn.dur_ns, drawn.steps, drawn.bounds_ns) == (88_000, (1,), (8_000, 88_000))


def test_the_host_s_lead_is_drawn_at_most_as_long_as_the_steps() -> None:
    draw = Drawing().step(0, 0, 10).launch("first", (1, 2), (5, 300)).step(1, 10, 60)
    facts = draw.launch("k", (12, 13), (310, 350)).op("aten::a", 240, 255).facts()
    assert window(facts) == (250_000, 350_000)
    drawn = timeline(facts)
    assert (drawn.dur_ns, drawn.bounds_ns) == (100_000, (50_000, 100_000))
    assert ("aten::a", 0, 5) in [(name, start, dur) for _, name, _, start, dur in bars(drawn)]
    assert "cudaLaunchKernel" not in drawn.labels


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("cpu_op", "record_param_comms", "collective"),
        ("user_annotation", "my forward", "annotation"),
        ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "loader"),
        ("cuda_runtime", "cudaGraphLaunch", "launch"),
        ("cuda_driver", "cuLaunchKernel", "launch"),
        ("cuda_runtime", "cudaMemsetAsync", "launch"),
        ("cuda_runtime", "cudaMemcpyAsync", "copy_call"),
        ("cuda_runtime", "cudaMemcpy", "sync"),
        ("cuda_runtime", "cudaEventSynchronize", "sync"),
        ("cuda_runtime", "cudaDeviceSynchronize", "sync"),
        ("cuda_runtime", "cudaMalloc", "allocation"),
        ("cuda_runtime", "cudaHostAlloc", "allocation"),
        ("cuda_runtime", "cudaEventRecord", "call"),
    ],
)
def test_the_kind_of_a_mark_on_the_host(category: str, name: str, kind: str) -> None:
    draw = Drawing().op("aten::a", 0, 100).launch("k", (1, 2), (2, 90)).span(category, name, 10, 20)
    drawn = timeline(draw.facts())
    ((lane, _, found, start, dur),) = [bar for bar in bars(drawn) if bar[1] == name]
    assert (found, start, dur) == (kind, 9, 10)  # the launch at 1 us is where the timeline begins
    # Below the idle device, the stream and the op around it.
    assert (lane, lane_names(drawn)[lane]) == (3, "main thread: calls" if category.startswith("cuda_") else "")


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("Memset (Device)", "gpu_memset", "copy"),
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy", "copy"),
        (NCCL, "kernel", "communication"),
        ("ampere_sgemm_128x64_nn", "kernel", "compute"),
    ],
)
def test_the_kind_of_a_mark_on_the_device(name: str, category: str, kind: str) -> None:
    drawn = timeline(Drawing().work(name, (0, 10), cat=category).facts())
    assert bars(drawn) == [(0, name, kind, 0, 10)]


def test_a_stream_is_named_for_what_it_does_most() -> None:
    draw = Drawing().launch("k", (0, 1), (1, 6), stream=7)
    draw.copy("HtoD (Pinned -> Device)", (2, 3), (6, 20), 64, stream=7).launch(NCCL, (4, 5), (6, 9), stream=8)
    assert lane_names(timeline(draw.facts()))[1:3] == ["stream 7 (copies)", "stream 8 (communication)"]


def test_with_several_devices_streams_say_theirs() -> None:
    draw = Drawing().launch("k", (0, 1), (1, 9), device=1).launch("k", (2, 3), (3, 9), stream=20)
    draw.launch("k", (4, 5), (5, 9))
    assert lane_names(timeline(draw.facts()))[1:4] == ["GPU 0 stream 7", "GPU 0 stream 20", "GPU 1 stream 7"]


def test_an_idle_gap_bears_the_line_it_comes_from() -> None:
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 500)
    draw.launch("a", (-5, -2), (0, 100)).launch("b", (190, 195), (200, 203)).launch("c", (194, 195), (206, 300))
    draw.launch("d", (340, 345), (350, 400)).launch("e", (430, 435), (440, 500))
    draw.frame("/home/me/train.py(10): main", -10, 500).frame("/home/me/train.py(31): prepare", 101, 188)
    draw.frame("/home/me/train.py(31): prepare", 401, 429)
    found = [(name, kind, dur) for lane, name, kind, _, dur in bars(timeline(draw.facts())) if lane == 0]
    assert found == [
        ("/home/me/train.py:31", "idle/python", 100),
        ("", "idle/between_kernels", 3),
        ("/home/me/train.py:10", "idle/python", 50),
        ("/home/me/train.py:31", "idle/python", 40),
    ]


def test_the_critical_path_has_kernels_by_name_and_the_host_s_time_by_line() -> None:
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 500)
    draw.frame("/home/me/train.py(10): main", -10, 500).frame("/home/me/data.py(31): prepare", 20, 80)
    draw.op("aten::mm", 80, 95).launch("gemm", (90, 92), (110, 160))
    drawn = timeline(draw.facts())
    assert (drawn.lanes[1].name, drawn.lanes[1].group) == ("critical path", "path")
    # The timeline begins with the launch at 90 us before the start of the used step.
    assert [(name, kind, dur) for _, name, kind, _, dur in path_bars(drawn)] == [
        ("/home/me/train.py:10", "path/python", 20),
        ("/home/me/data.py:31", "path/python", 60),
        ("/home/me/train.py:10", "op", 10),
        ("/home/me/train.py:10", "launch", 20),
        ("gemm", "compute", 50),
    ]


def test_long_names_are_clipped() -> None:
    drawn = timeline(Drawing().work("x" * 200, (0, 10)).facts())
    assert drawn.labels == ("x" * (MOST_NAME - 1) + "…",)


def test_names_that_are_the_same_once_clipped_are_one_label() -> None:
    drawn = timeline(Drawing().work("x" * 200, (0, 10)).work("x" * 201, (10, 20)).work("y", (20, 30)).facts())
    assert sorted(drawn.labels) == ["x" * (MOST_NAME - 1) + "…", "y"]
    assert [name[0] for _, name, *_ in bars(drawn)] == ["x", "x", "y"]


def test_kinds_are_numbered_as_gaps_number_their_causes() -> None:
    assert timeline(one_step().facts()).kinds == KINDS
    causes = KINDS[len(MarkKind) :][: len(IDLE_CAUSES)]
    assert [kind.removeprefix("idle/") for kind in causes] == [cause.value for cause in IDLE_CAUSES]


def test_streams_and_threads_with_little_time_are_left_out() -> None:
    draw = Drawing()
    for k in range(MOST_STREAMS + 2):
        draw.launch(f"k{k}", (k, k + 1), (k + 1, 100 - k), stream=20 + k)
    for k in range(MOST_THREADS + 3):
        draw.op(f"aten::{k}", 0, 90 - k, tid=1000 + k)
    drawn = timeline(draw.facts())
    assert drawn.left_out == (
        "2 more streams, none with more time than those",
        "4 more threads, none with more time than those",
    )
    assert lane_names(drawn)[1 : MOST_STREAMS + 1] == [f"stream {20 + k}" for k in range(MOST_STREAMS)]
    assert sum(lane.group == "host" for lane in drawn.lanes) == MOST_THREADS
    # The main thread, which only launches, has a lane although the others have more time.
    assert {"k9", "aten::3", "cudaLaunchKernel"} < set(drawn.labels)
    assert not {"k10", "k11", "aten::4", "aten::5", "aten::6", "aten::7"} & set(drawn.labels)


def test_a_trace_of_the_host_alone_has_its_threads_and_no_idle_lane() -> None:
    draw = Drawing().step(0, 0, 10).op("aten::a", 1, 9).step(1, 10, 20).op("aten::b", 11, 19).op("aten::c", 12, 18)
    drawn = timeline(draw.facts())
    assert [(lane.name, lane.group) for lane in drawn.lanes] == [
        ("critical path", "path"),
        ("main thread: ops", "host"),
        ("", "host"),
    ]
    assert bars(drawn) == [(0, "aten::b", "op", 1, 8), (1, "aten::c", "op", 2, 6)]
    assert (drawn.dur_ns, drawn.steps, drawn.bounds_ns) == (10_000, (1,), (0, 10_000))


def test_a_trace_of_the_device_alone_has_its_streams_and_no_idle_lane() -> None:
    drawn = timeline(Drawing().work("k", (0, 10)).work("k", (12, 20)).facts())
    assert [(lane.name, lane.group) for lane in drawn.lanes] == [("stream 7", "device")]


def test_a_thread_with_calls_and_no_ops_shows_its_calls() -> None:
    drawn = timeline(Drawing().launch("k", (0, 2), (3, 9)).launch("k", (4, 6), (10, 20)).facts())
    assert lane_names(drawn) == ["GPU idle", "stream 7", "main thread: calls"]
    assert [bar for bar in bars(drawn) if bar[0] == 2] == [
        (2, "cudaLaunchKernel", "launch", 0, 2),
        (2, "cudaLaunchKernel", "launch", 4, 2),
    ]


def test_the_main_thread_comes_first_also_where_another_has_more_time() -> None:
    draw = Drawing().step(0, 0, 100).op("aten::mine", 10, 20).op("aten::theirs", 0, 90, tid=BACKWARD)
    drawn = timeline(draw.launch("k", (11, 12), (30, 60)).facts())
    assert lane_names(drawn)[2:] == ["main thread: ops", "main thread: calls", "thread 2: ops"]
    assert [lane for lane, name, *_ in bars(drawn) if name.startswith("aten::")] == [2, 4]


def test_without_marked_steps_all_work_is_drawn_and_no_step_is_named() -> None:
    drawn = timeline(Drawing().launch("k", (1, 2), (3, 9)).facts())
    assert (drawn.steps, drawn.bounds_ns, drawn.dur_ns) == ((), (2_000, 8_000), 8_000)


def test_work_that_nothing_launched_belongs_to_the_step_in_which_it_ran() -> None:
    draw = Drawing().step(5, 0, 10).step(6, 10, 20).work("k", (3, 9)).work("k", (12, 19))
    drawn = timeline(draw.facts())
    assert (drawn.steps, drawn.bounds_ns) == ((6,), (0, 10_000))


def test_with_nothing_to_measure_there_is_no_timeline() -> None:
    with pytest.raises(Missing, match="device work and ops"):
        timeline(Drawing().frame("train.py(1): main", 0, 5).facts())


def many_marks() -> Drawing:
    """Used steps of 100, 120 and 300 us, with 10, 12 and 30 kernels of 6 us and gaps of 4."""
    draw = Drawing()
    for number, (start, end) in enumerate(((0, 100), (100, 200), (200, 320), (320, 620))):
        draw.step(number, start, end)
        for at in range(start, end, 10):
            draw.launch(f"k{at}", (at, at + 1), (at + 4, at + 10))
    return draw


def test_what_is_too_much_is_merged_and_one_typical_step_is_shown_in_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = timeline(many_marks().facts())
    (exact,) = whole.tables
    assert (exact.resolution_ns, len(bars(whole))) == (0, 3 * 52)  # calls, kernels and gaps
    # The typical step has 12 calls, kernels and gaps, and as many stretches of the critical path as fit.
    most = Marks.of(exact).within(100_000, 220_000).size
    monkeypatch.setattr(module, "MOST_MARKS", most)
    drawn = timeline(many_marks().facts())
    overview, detail = drawn.tables
    assert Marks.of(overview).size <= most
    assert overview.resolution_ns > 0
    assert Marks.of(overview).count.sum() == Marks.of(exact).size
    assert (overview.start_ns, overview.end_ns) == (0, drawn.dur_ns)
    # 120 us is the median of 100, 120 and 300.
    assert (detail.start_ns, detail.end_ns) == drawn.bounds_ns[1:3]
    assert detail.end_ns - detail.start_ns == 120_000
    assert detail.resolution_ns == 0
    assert bars(drawn, Marks.of(detail)) == bars(whole, Marks.of(exact).within(detail.start_ns, detail.end_ns))


def test_a_step_with_too_much_is_merged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MARKS", 12)
    drawn = timeline(many_marks().facts())
    assert all(Marks.of(table).size <= 12 for table in drawn.tables)
    assert all(table.resolution_ns > 0 for table in drawn.tables)


def test_what_just_fits_is_kept_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    size = Marks.of(timeline(one_step().facts()).tables[0]).size
    monkeypatch.setattr(module, "MOST_MARKS", size)
    assert [table.resolution_ns for table in timeline(one_step().facts()).tables] == [0]
    monkeypatch.setattr(module, "MOST_MARKS", size - 1)
    assert len(timeline(one_step().facts()).tables) == 2


@pytest.mark.parametrize("name", FILES)
def test_timelines_of_real_traces(corpus: Path, name: str) -> None:
    facts = Facts(ranks.read(corpus / "kineto" / name))
    drawn, laid_out = timeline(facts), lanes(facts)
    assert drawn.lanes == laid_out.lanes
    assert drawn.bounds_ns[-1] == drawn.dur_ns
    assert drawn.bounds_ns[0] >= 0
    assert len(drawn.bounds_ns) == max(len(drawn.steps), 1) + 1
    used = np.zeros(len(drawn.labels), dtype=bool)
    for table in drawn.tables:
        marks = Marks.of(table)
        assert 0 < marks.size <= MOST_MARKS
        assert 0 <= marks.lane.min() <= marks.lane.max() < len(drawn.lanes)
        assert 0 <= marks.kind.min() <= marks.kind.max() < len(drawn.kinds)
        assert 0 <= marks.label.min() <= marks.label.max() < len(drawn.labels)
        assert marks.count.min() >= 1
        assert (np.diff(marks.lane) >= 0).all()
        assert (np.diff(marks.start_ns)[np.diff(marks.lane) == 0] >= 0).all()
        assert marks.start_ns.min() >= table.start_ns
        assert (marks.start_ns + marks.dur_ns).max() <= table.end_ns
        assert (marks.dur_ns >= 0).all()
        used[marks.label] = True
    assert used.all()
    assert max(map(len, drawn.labels)) <= MOST_NAME
    assert not any(label.startswith("ProfilerStep#") for label in drawn.labels)
    _idle_lane_has_the_idle_time(facts, drawn)


def _idle_lane_has_the_idle_time(facts: Facts, drawn: Timeline) -> None:
    zero = window(facts)[0]
    has_lane = drawn.lanes[0].group == "idle"
    assert has_lane == (optional(idle_gaps, facts) is not None)
    for table in drawn.tables:
        marks = Marks.of(table)
        idle = (marks.kind >= len(MarkKind)) & (marks.kind < len(MarkKind) + len(IDLE_CAUSES))
        hole = marks.kind == list(MarkKind).index(MarkKind.WORK_NOT_RECORDED)
        assert ((idle | hole) == (has_lane & (marks.lane == 0))).all()
        if has_lane and table.resolution_ns == 0:
            part = intervals.clip(device_time(facts).idle, zero + table.start_ns, zero + table.end_ns)
            assert marks.dur_ns[idle].sum() == part.total
    if has_lane and len(drawn.tables) == 1:
        total = Marks.of(drawn.tables[0]).where(Marks.of(drawn.tables[0]).lane == 0).dur_ns.sum()
        parts = breakdown(facts)
        assert total / steps(facts).count == pytest.approx(parts.idle_ns + parts.work_not_recorded_ns, abs=2)
