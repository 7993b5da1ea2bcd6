"""Frames that were on the stack when stacks began to be recorded: their lines, moment by moment, or none."""

import numpy as np
import pytest

from diagnose.facts.core.base import Facts
from diagnose.facts.core.spans import sites_at
from diagnose.reports.sections import place
from diagnose.trace.frames import Site
from tests.drawing import MAIN, Drawing

WORKER = 101


def began(*stack: str) -> Drawing:
    """Up to 1000 us, within these frames; torch's profiler starts until 8 us."""
    draw = Drawing().step(0, 9, 500).step(1, 500, 900)
    for depth, name in enumerate(stack):
        draw.frame(name, depth, 1000 - depth)
    draw.frame("torch/profiler/profiler.py(9): start", 5, 8).frame("torch/autograd/profiler.py(4): _start_trace", 6, 8)
    return draw.frame("<built-in function perf_counter_ns>", 7, 8)


def mark(draw: Drawing, line: int, function: str, at: float) -> Drawing:
    return draw.op(f"diagnose.line({line}): {function}", at, at + 0.5)


def at(draw: Drawing, *moments_us: float, tid: int = MAIN) -> list[str | None]:
    rank = draw.rank()
    track = int(np.flatnonzero(rank.tracks["thread"] == str(tid))[0])
    moments = np.array([round(1000 * one) for one in moments_us])
    sites = sites_at(Facts(rank), moments, np.full(len(moments), track))
    return [site and f"{site.place} {site.function}" for site in sites]


def test_a_frame_that_was_on_the_stack_has_the_line_that_it_came_to() -> None:
    draw = began("go.py(30): <module>", "go.py(7): main")
    mark(mark(mark(draw, 8, "main", 20), 5, "main", 40), 31, "<module>", 999.5)
    draw.frame("go.py(15): helper", 50, 60)
    assert at(draw, 10, 30, 45) == ["go.py:7 main", "go.py:8 main", "go.py:5 main"]
    assert at(draw, 55, 70, 999.7) == ["go.py:15 helper", "go.py:5 main", "go.py:31 <module>"]


def test_marks_are_no_ops() -> None:
    draw = mark(began("go.py(7): main").op("aten::mm", 20, 30), 8, "main", 40)
    assert not draw.rank().spans["name"].str.startswith("diagnose").any()
    assert len(draw.rank().ops) == 1


def test_without_marks_its_line_is_not_known_and_of_others_the_one_where_they_start() -> None:
    draw = began("go.py(30): <module>", "go.py(7): main").frame("go.py(15): helper", 50, 60)
    assert at(draw, 20, 55) == ["go.py main", "go.py:15 helper"]


def test_a_note_names_functions_without_lines() -> None:
    def noted(draw: Drawing) -> list[str]:
        return [note.what for note in draw.rank().integrity if "line" in note.what]

    stack = [f"go.py({line}): f{line}" for line in range(1, 6)]
    assert noted(began("go.py(7): main")) == ["Which line ran is not known in main."]
    assert noted(began(*stack)) == ["Which line ran is not known in f1, f2, f3 and 2 more."]
    assert noted(mark(began("go.py(7): main"), 8, "main", 20)) == []


def test_marks_tell_of_their_own_thread() -> None:
    draw = mark(began("go.py(7): main"), 8, "main", 20)
    draw.frame("go.py(50): fetch", 0.5, 1000, WORKER).frame("go.py(60): decode", 100, 200, WORKER)
    assert at(draw, 30) == ["go.py:8 main"]
    assert at(draw, 30, 150, tid=WORKER) == ["go.py fetch", "go.py:60 decode"]


def test_a_function_that_is_called_again_is_told_too() -> None:
    draw = began("go.py(30): <module>", "go.py(7): epoch").frame("go.py(3): epoch", 100, 200)
    mark(mark(draw, 9, "epoch", 20), 5, "epoch", 120)
    assert at(draw, 30, 110, 150, 210) == ["go.py:9 epoch", "go.py:3 epoch", "go.py:5 epoch", "go.py:9 epoch"]


def test_after_too_many_lines_none_is_known() -> None:
    draw = began("go.py(30): <module>", "go.py(7): main")
    mark(mark(draw, 8, "main", 20), 0, "main", 40)
    assert at(draw, 30, 50) == ["go.py:8 main", "go.py main"]
    assert at(draw, 999.5) == ["go.py <module>"]


def test_a_mark_in_another_function_than_it_names_tells_nothing() -> None:
    assert at(mark(began("go.py(7): main"), 8, "other", 20), 30) == ["go.py main"]


@pytest.mark.parametrize("profiler", ["torch_npu/profiler/profiler.py", "/v/site-packages/torch/autograd/profiler.py"])
def test_profilers_that_begin(profiler: str) -> None:
    draw = Drawing().step(0, 9, 500).frame("go.py(7): main", 0, 1000).frame(f"{profiler}(4): start", 3, 7)
    assert at(draw, 20) == ["go.py main"]


def test_frames_of_which_none_is_a_profiler_are_as_recorded() -> None:
    draw = Drawing().step(0, 9, 500).frame("go.py(7): main", 0, 1000).frame("go.py(15): helper", 50, 60)
    assert at(draw, 20, 55) == ["go.py:7 main", "go.py:15 helper"]


def test_a_place_without_a_line_is_the_function() -> None:
    told = [place(Site("go.py", line, function)) for line, function in ((7, "main"), (0, "main"), (0, "<module>"))]
    assert told == ["go.py:7 (main)", "go.py, in main()", "go.py"]
