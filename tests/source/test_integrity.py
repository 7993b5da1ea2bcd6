"""Every note is there when its defect is, and not when it is not."""

from collections.abc import Callable
from typing import Any

import pytest

from diagnose.trace.model import Severity
from tests.drawing import MAIN, Drawing


def sound() -> Drawing:
    """Four steps of ten kernels, with shapes, stacks, memory and sync events, in nanoseconds."""
    draw = Drawing()
    for number in range(4):
        at = number * 1000
        draw.step(number, at, at + 1000).frame("/home/me/train.py(3): main", at, at + 999)
        for k in range(10):
            draw.op("aten::mm", at + k * 50, at + k * 50 + 9.123, **{"Input Dims": [[2, 2]]})
            draw.launch("gemm", (at + k * 50 + 1, at + k * 50 + 2), (at + k * 50 + 10, at + k * 50 + 30.5))
        draw.work("Stream Sync", (at + 900, at + 901), cat="cuda_sync", cuda_sync_kind="Stream Sync")
    return draw


def notes(draw: Drawing) -> list[str]:
    return [note.what for note in draw.rank().integrity]


def test_a_sound_recording_has_nothing_to_note() -> None:
    assert notes(sound()) == []


def no_launches_for_work(draw: Drawing) -> None:
    for k in range(5):
        draw.work("orphan", (100 * k + 40, 100 * k + 45))


def launches_without_work(draw: Drawing) -> None:
    for k in range(5):
        draw.call("cudaLaunchKernel", 100 * k + 40, 100 * k + 41)


def graph_without_kernels(draw: Drawing) -> None:
    draw.call("cudaGraphLaunch", 40, 41)


def graph_with_fewer_kernels(draw: Drawing) -> None:
    """Each step replays a graph of three kernels, of which one is missing in the second."""
    for step in range(4):
        at = step * 1000
        draw.launch("g", (at + 800, at + 801), (at + 810, at + 815), api="cudaGraphLaunch")
        for k in range(1, 2 if step == 1 else 3):
            last = draw.events[-1]["args"]["correlation"]
            draw.work("g", (at + 810 + 10 * k, at + 815 + 10 * k), correlation=last)


def kernels_without_a_time(draw: Drawing) -> None:
    for event in draw.events:
        event["ts"] += 5e6
    for event in [event for event in draw.events if event["name"] == "gemm"][10:13]:
        event["ts"] = event["dur"] = 0


def no_category(draw: Drawing) -> None:
    draw.span("", "What is this?", 3990, 3995)


def work_before_its_launch(draw: Drawing) -> None:
    draw.launch("early", (60, 61), (45, 48))


def only(wanted: Callable[[dict[str, Any]], bool]) -> Callable[[Drawing], None]:
    def defect(draw: Drawing) -> None:
        draw.events = [event for event in draw.events if wanted(event)]

    return defect


def without(*categories: str) -> Callable[[Drawing], None]:
    return only(lambda event: event["cat"] not in categories)


def no_shapes(draw: Drawing) -> None:
    for event in draw.events:
        event["args"].pop("Input Dims", None)


def unfinished(draw: Drawing) -> None:
    draw.op("aten::mm", 3990, 4000, finished=False)


def whole_microseconds(draw: Drawing) -> None:
    for event in draw.events:
        event["ts"], event["dur"] = int(event["ts"]), int(event["dur"])


def outside_the_window(draw: Drawing) -> None:
    """Before 100 us: a mark, a frame, 2 ops, 2 calls, 2 kernels. After 3000 us: 9 ops, 9 calls, 10 kernels, a sync.
    A window whose end no clock can tell is none."""
    draw.span("Trace", "PyTorch Profiler (0)", 100, 3000, tid="PyTorch Profiler")
    draw.span("Trace", "PyTorch Profiler (1)", 100, 1e306, tid="PyTorch Profiler")


def profiler_overhead(draw: Drawing) -> None:
    draw.events.append(
        {"ph": "X", "cat": "overhead", "name": "Buffer Flush", "pid": -1, "tid": MAIN, "ts": 5, "dur": 1500, "args": {}}
    )


OF_ALL = {
    *("No training steps are marked.", "Only one step was recorded."),
    *("No runtime calls were recorded.", "No framework ops were recorded."),
}
"""Warnings that make no recorded time doubtful: rules say what they cannot tell, or lower all findings."""

FOLLOWS = {"No framework ops were recorded.": ["Input shapes were not recorded."]}


@pytest.mark.parametrize(
    ("defect", "note"),
    [
        (no_launches_for_work, "5 of 45 device operations have no launch in the file."),
        (launches_without_work, "5 of 45 kernel launches have no kernel in the file."),
        (graph_without_kernels, "1 of 1 graph launches have no kernels in the file."),
        (graph_with_fewer_kernels, "1 of 4 graph launches have fewer kernels than others of the same graph."),
        (kernels_without_a_time, "3 events had no usable time and were left out."),
        (no_category, "1 events have no category, and no name that tells what they are."),
        (work_before_its_launch, "1 device operations start before their launching call, by up to 15 us."),
        (only(lambda event: "ProfilerStep" not in event["name"]), "No training steps are marked."),
        (only(lambda event: event["ts"] < 1000), "Only one step was recorded."),
        (only(lambda event: event["ts"] < 3200), "The last recorded step (3) is incomplete."),
        (no_shapes, "Input shapes were not recorded."),
        (without("python_function"), "Call stacks were not recorded."),
        (without("cuda_sync"), "Synchronisation events were not recorded."),
        (without("kernel", "cuda_runtime", "cuda_sync"), "No device work was recorded."),
        (without("cuda_runtime"), "No runtime calls were recorded."),
        (without("cpu_op"), "No framework ops were recorded."),
        (outside_the_window, "37 events start outside the window in which the profiler says it recorded."),
        (unfinished, "1 ops were still running when recording ended."),
        (whole_microseconds, "Times are in whole microseconds."),
        (profiler_overhead, "The profiler's own work took 1.5 ms (1 events)."),
    ],
)
def test_a_defect_is_noted_and_nothing_else_but_what_follows_from_it(
    defect: Callable[[Drawing], None], note: str
) -> None:
    draw = sound()
    defect(draw)
    assert notes(draw) == [note, *FOLLOWS.get(note, [])]
    for one in draw.rank().integrity:
        assert bool(one.doubts) == (one.severity != Severity.NOTE and one.what not in OF_ALL)


def test_work_before_the_first_call_was_launched_before_recording() -> None:
    draw = sound()
    for k in range(5):
        draw.work("before", (-50 + k, -49 + k))
    (note,) = draw.rank().integrity
    assert note.what.startswith("5 of 45 device operations have no launch")
    assert note.severity == "note"


@pytest.mark.parametrize(
    ("categories", "how"),
    [
        (("cuda_runtime",), "torch.profiler records calls since PyTorch 1.8."),
        (("cuda_runtime", "cpu_op"), "Profile with ProfilerActivity.CPU as well."),
    ],
)
def test_the_host_is_asked_for_only_where_nothing_of_it_was_recorded(categories: tuple[str, ...], how: str) -> None:
    draw = sound()
    without(*categories)(draw)
    (effect,) = (note.effect for note in draw.rank().integrity if note.what == "No runtime calls were recorded.")
    assert effect.endswith(how)
