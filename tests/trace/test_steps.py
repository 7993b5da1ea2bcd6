"""Steps from profiler, optimizer and loader markers, and the step of each span."""

from diagnose.trace.model import Step
from tests.drawing import Drawing

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_profiler_steps_are_the_steps() -> None:
    found = Drawing().step(8, 0, 10).op("aten::mm", 1, 2).step(9, 12, 30).rank()
    assert found.steps == (Step(8, 0, 10_000), Step(9, 12_000, 30_000))
    assert found.provenance.step_marker == "ProfilerStep"


def test_work_belongs_to_the_step_that_launched_it_and_host_spans_to_the_one_they_start_in() -> None:
    draw = Drawing().step(0, 0, 10).launch("a", (1, 2), (50, 60)).op("between", 10, 11).step(1, 12, 30)
    draw.launch("b", (13, 14), (61, 70)).work("orphan", (20, 21), stream=9)
    spans = draw.rank().spans
    found = {name: step for name, step in zip(spans["name"], spans["step"], strict=True) if "cuda" not in name}
    assert found == {"ProfilerStep#0": 0, "a": 0, "between": -1, "ProfilerStep#1": 1, "b": 1, "orphan": -1}


def test_repeated_and_nested_step_marks_count_once() -> None:
    draw = Drawing().step(0, 0, 10).step(0, 0, 10).step(5, 0, 9).step(1, 10, 20).step(1, 11, 12)
    draw.span("user_annotation", "ProfilerStep#0", 0, 10, tid=77).op("aten::mm", 1, 2)
    assert [step.number for step in draw.rank().steps] == [0, 1]


def test_overlapping_steps_are_cut_at_the_next() -> None:
    assert Drawing().step(0, 0, 15).step(1, 10, 20).rank().steps == (Step(0, 0, 10_000), Step(1, 10_000, 20_000))


def test_without_profiler_steps_the_ends_of_the_optimizer_s_calls_bound_the_steps() -> None:
    draw = Drawing().op("aten::mm", 0, 1)
    for at in (10, 30, 60):
        draw.span("user_annotation", "Optimizer.step#Adam.step", at, at + 5)
        draw.span("user_annotation", LOADER, at - 8, at - 7)
    found = draw.rank()
    assert found.steps == (Step(0, 15_000, 35_000), Step(1, 35_000, 65_000))
    assert found.provenance.step_marker == "the ends of Optimizer.step#Adam.step"


def test_without_an_optimizer_the_starts_of_the_loader_s_calls_do() -> None:
    draw = Drawing().op("aten::mm", 0, 1)
    for at in (10, 30, 60):
        draw.span("user_annotation", LOADER, at, at + 5)
    assert draw.rank().steps == (Step(0, 10_000, 30_000), Step(1, 30_000, 60_000))


def test_two_optimizers_make_no_extra_steps() -> None:
    draw = Drawing().op("aten::mm", 0, 1)
    for at in (10, 30, 60):
        draw.span("user_annotation", "Optimizer.step#Adam.step", at, at + 2)
        draw.span("user_annotation", "Optimizer.step#SGD.step", at + 5, at + 6)
    assert draw.rank().steps == (Step(0, 16_000, 36_000), Step(1, 36_000, 66_000))


def test_two_calls_say_too_little_about_a_period() -> None:
    draw = Drawing().op("aten::mm", 0, 1)
    for at in (10, 30):
        draw.span("user_annotation", "Optimizer.step#Adam.step", at, at + 2)
    found = draw.rank()
    assert found.steps == ()
    assert found.provenance.step_marker == ""


def test_a_kernel_named_like_a_marker_is_none() -> None:
    draw = Drawing()
    for at in (0, 10, 20, 30):
        draw.work("ProfilerStep#1", (at, at + 5)).work("Optimizer.step#x", (at, at + 5), cat="gpu_user_annotation")
    assert draw.rank().steps == ()


def test_ranges_called_steps_bound_steps_where_nothing_else_does() -> None:
    synthetic = Drawing()
    for number in range(4):
        synthetic.span("user_annotation", f"train_step {number}", 100 * number, 100 * number + 60)
        if number:
            synthetic.span("user_annotation", "step", 100 * number + 10, 100 * number + 20, tid=7)
    synthetic.span("user_annotation", "steps taken", 5, 6).span("user_annotation", "stepper 1", 7, 8)
    rank = synthetic.rank()
    bounds = [(step.start_ns, step.end_ns) for step in rank.steps]
    assert bounds == [(0, 100_000), (100_000, 200_000), (200_000, 300_000)]
    assert rank.provenance.step_marker == "the starts of ranges called train_step"


def test_a_marker_of_pytorch_goes_before_ranges_called_steps() -> None:
    synthetic = Drawing()
    for number in range(4):
        synthetic.span("user_annotation", "iteration", 100 * number, 100 * number + 60)
        synthetic.span("user_annotation", "Optimizer.step#SGD.step", 100 * number + 50, 100 * number + 60)
    assert synthetic.rank().provenance.step_marker == "the ends of Optimizer.step#SGD.step"
