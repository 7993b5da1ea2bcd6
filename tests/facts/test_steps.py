"""Step times from device ends, and what is done when there are none."""

import pytest

from diagnose.facts.base import Missing
from diagnose.facts.steps import Measure, steps
from tests.drawing import Drawing


def three_steps() -> Drawing:
    """Host spans of 30, 50 and 100 us; the device finishes a step's work at 110, 210 and 320 us."""
    draw = Drawing()
    for number, (start, end), run in ((7, (0, 30), (10, 110)), (8, (30, 80), (110, 210)), (9, (80, 180), (215, 320))):
        draw.step(number, start, end).launch("k", (start + 1, start + 3), run)
    return draw


def test_a_step_lasts_from_device_end_to_device_end_and_the_first_is_not_used() -> None:
    found = steps(three_steps().facts())
    assert found.measure == Measure.DEVICE
    assert found.numbers == (8, 9)
    assert found.times_ns.tolist() == [100_000, 110_000]
    assert (found.recorded, found.dropped) == (3, (7,))


def test_work_that_runs_after_its_step_s_host_span_still_belongs_to_the_step() -> None:
    draw = three_steps().launch("late", (170, 172), (320, 400))
    assert steps(draw.facts()).times_ns.tolist() == [100_000, 190_000]


def test_a_last_step_with_too_little_work_is_not_used() -> None:
    draw = Drawing()
    for number in range(4):
        start = number * 100
        draw.step(number, start, start + 100)
        for k in range(10 if number < 3 else 6):
            draw.launch("k", (start + k, start + k + 1), (start + 10 * k, start + 10 * k + 10))
    assert steps(draw.facts()).numbers == (1, 2)


def test_without_device_work_steps_last_from_marker_to_marker() -> None:
    draw = Drawing().step(0, 0, 90).step(1, 100, 190).step(2, 200, 330)
    for start in (10, 110, 210):
        draw.op("aten::mm", start, start + 5)
    found = steps(draw.facts())
    assert found.measure == Measure.HOST
    assert found.times_ns.tolist() == [100_000, 130_000]


def test_one_step_lasts_from_its_start_to_its_last_device_end() -> None:
    found = steps(Drawing().step(3, 20, 50).launch("k", (25, 27), (30, 170)).facts())
    assert (found.measure, found.numbers, found.times_ns.tolist()) == (Measure.ONE_STEP, (3,), [150_000])


def test_without_steps_the_window_is_all_device_work() -> None:
    found = steps(Drawing().op("aten::mm", 0, 9).launch("k", (1, 2), (10, 40)).work("l", (60, 70)).facts())
    assert (found.measure, found.times_ns.tolist()) == (Measure.WINDOW, [60_000])


def test_steps_are_selected_by_number() -> None:
    found = steps(three_steps().facts((9, 20)))
    assert (found.numbers, found.times_ns.tolist(), found.dropped) == ((9,), [110_000], (7, 8))


def test_a_range_without_a_usable_step_says_which_there_are() -> None:
    with pytest.raises(Missing, match="usable steps of this recording are 8-9"):
        steps(three_steps().facts((1, 7)))


def test_a_range_needs_marked_steps() -> None:
    with pytest.raises(Missing, match="marked steps"):
        steps(Drawing().launch("k", (1, 2), (10, 40)).facts((1, 2)))


def test_nothing_to_measure_is_missing() -> None:
    with pytest.raises(Missing, match="device work and ops"):
        steps(Drawing().span("unheard_of", "x", 0, 5).facts())


def test_what_takes_no_time_is_no_step() -> None:
    with pytest.raises(Missing, match="anything that takes time"):
        steps(Drawing().work("k", (5, 5)).work("k", (5, 5)).facts())
