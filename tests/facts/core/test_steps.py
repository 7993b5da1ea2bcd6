"""Step times from device ends, and what is done when there are none."""

import gc
import weakref

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.facts.core.breakdown import NO_DEVICE, breakdown, device_time
from diagnose.facts.core.spans import sites_of
from diagnose.facts.core.steps import Measure, steps
from diagnose.synthetic.reading import facts_of
from diagnose.trace.enums import SpanKind
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


@pytest.mark.parametrize(
    ("without", "numbers"),
    [((3,), (1, 2)), ((2, 3, 4), (1,)), ((1,), (3, 4, 5, 6)), ((1, 3, 5), (2, 4, 6)), ((1, 2, 4, 5), (3, 6))],
)
def test_the_step_after_one_whose_work_was_lost_is_not_used(without: tuple[int, ...], numbers: tuple[int, ...]) -> None:
    """Of seven steps of 100 us. Where most others have none, two marks or three make a step."""
    draw = Drawing()
    for number in range(7):
        at = 100 * number
        draw.step(number, at, at + 100)
        if number not in without:
            draw.launch("k", (at, at + 1), (at + 2, at + 90))
    found = steps(draw.facts())
    assert found.numbers == numbers
    assert found.dropped == tuple(number for number in range(7) if number not in numbers)


@pytest.mark.parametrize(
    ("launched", "before", "window"),
    [
        (5, 1, 200_000),  # from 900 on: what it waited for was not recorded
        (890, 1, 1_100_000),  # the host launched nothing sooner
        (5, 60, 1_100_000),  # there was enough to do before
    ],
)
def test_without_steps_a_wait_for_what_was_not_recorded_is_left_out(launched: int, before: int, window: int) -> None:
    draw = Drawing().launch("copy", (0, 1), (0, before)).launch("k", (launched, launched + 1), (900, 1100))
    assert steps(draw.facts()).window_ns == window


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


def test_one_step_begins_where_the_device_has_done_what_was_before_it() -> None:
    draw = Drawing().work("before", (0, 90)).step(3, 20, 150).launch("k", (25, 27), (95, 170))
    assert steps(draw.facts()).times_ns.tolist() == [80_000]  # from 90 to 170


def test_one_step_begins_at_its_own_work_if_other_work_goes_on_beside_it() -> None:
    draw = Drawing().work("beside", (0, 160), stream=8).step(3, 20, 150).launch("k", (25, 27), (95, 170))
    assert steps(draw.facts()).times_ns.tolist() == [75_000]  # from 95 to 170


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


TIMED = "timed " + "20 " * 20
LONG_IN_4 = "cpu  aten::mm 0-20 not in 4 | aten::mm 0-90 in 4"


def of_cpu(*lines: str, head: str = f"8 steps of 100\n1 threads, 2 cores\n{TIMED}\n") -> Facts:
    return facts_of(head + "\n".join(lines))


def test_the_longest_run_of_steps_that_nothing_held_up_is_used() -> None:
    """Of steps 1 to 7 the fourth took 90 ms in its ops, others 20."""
    used = steps(of_cpu(LONG_IN_4))
    assert (used.numbers, used.held_up, used.dropped) == ((1, 2, 3), (4,), (0, 4, 5, 6, 7))
    used = steps(of_cpu("cpu  aten::mm 0-20 not in 2 | aten::mm 0-90 in 2"))
    assert (used.numbers, used.held_up, used.count) == ((3, 4, 5, 6, 7), (2,), 5)


@pytest.mark.parametrize(
    "facts",
    [
        of_cpu("cpu  aten::mm 0-20 | aten::sort 20-90 in 4"),  # it does more
        of_cpu("cpu  aten::mm 0-20 | load 20-90 in 4"),  # it waits
        of_cpu("cpu  aten::mm 0-20 not in 4 | aten::mm 0-55 in 4"),  # not three times as long
        of_cpu("cpu  aten::mm 0-2 not in 4 | aten::mm 0-30 in 4"),  # hardly longer than others as a whole
        of_cpu(LONG_IN_4, head=f"8 steps of 100\n1 threads, 2 cores\n{TIMED} 70\n"),  # one that was timed, too
        of_cpu(LONG_IN_4, head="8 steps of 100\n1 threads, 2 cores\ntimed 20 20 20\n"),  # few were timed
        of_cpu(LONG_IN_4, head=f"8 steps of 100\nrank 0 of 2\n1 threads, 2 cores\n{TIMED}\n"),  # others go on
        of_cpu(LONG_IN_4, head="8 steps of 100\n"),  # nothing is known
    ],
    ids=["more", "waits", "not so long", "small part", "timed", "few timed", "ranks", "unknown"],
)
def test_steps_that_are_used_all_the_same(facts: Facts) -> None:
    assert (steps(facts).numbers, steps(facts).held_up) == ((1, 2, 3, 4, 5, 6, 7), ())


def test_who_asks_for_steps_gets_them() -> None:
    facts = of_cpu(LONG_IN_4)
    assert steps(Facts(facts.rank, (3, 5))).numbers == (3, 4, 5)


def without_device() -> Facts:
    return facts_of("3 steps of 10\ncpu  aten::mm 1-2")


def test_the_same_is_missing_each_time() -> None:
    facts = without_device()
    for get in (device_time, device_time, breakdown):
        with pytest.raises(Missing) as raised:
            get(facts)
        assert raised.value == NO_DEVICE
    assert Missing("device work", "Buy a GPU.") != NO_DEVICE


def test_what_was_missing_of_a_rank_does_not_keep_its_tables() -> None:
    facts = without_device()
    assert optional(breakdown, facts) is None
    tables = weakref.ref(facts)
    del facts
    gc.collect()
    assert tables() is None


@pytest.mark.parametrize(("kind", "line"), [(SpanKind.SYSTEM, 2), (SpanKind.RUNTIME, 5)])
def test_a_call_of_the_system_has_the_line_of_its_middle_and_others_that_of_their_start(
    kind: SpanKind, line: int
) -> None:
    """The frame that sleeps is placed 10 us too late, as it was recorded in another step."""
    draw = Drawing().step(0, 0, 1_000).frame("train.py(5): <module>", 0, 1_000).op("aten::add", 0, 50)
    rank = draw.frame("train.py(2): wait", 110, 200).call("clock_nanosleep", 100, 200).rank()
    asleep = np.flatnonzero(rank.spans["name"] == "clock_nanosleep")
    kinds = rank.spans["kind"].copy()
    kinds.iloc[asleep] = kind.value
    facts = Facts(replace(rank, spans=rank.spans.assign(kind=kinds)))
    assert [site.line for site in sites_of(facts, asleep) if site] == [line]
