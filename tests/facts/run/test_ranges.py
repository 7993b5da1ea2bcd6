"""Ranges that a script marks, by name."""

from __future__ import annotations

from diagnose.facts.run.ranges import ranges
from tests.drawing import Drawing


def test_ranges_of_one_name() -> None:
    draw = Drawing()
    for number in range(5):
        at = 100 * number
        draw.step(number, at, at + 100).launch("k", (at + 1, at + 2), (at + 5, at + 99))
    draw.span("user_annotation", "validate", 20, 30)  # in step 0, which is not used
    draw.span("user_annotation", "validate", 220, 230).span("user_annotation", "validate", 240, 260)
    found = ranges(draw.facts()).named("validate")
    # Four steps are used: 30 us in one of them.
    assert (len(found.ids), found.total_calls, found.host_ns, found.steps_share) == (3, 2, 7_500, 0.25)


def test_a_name_that_is_not_there() -> None:
    draw = Drawing().step(0, 0, 100).launch("k", (1, 2), (5, 99))
    found = ranges(draw.facts()).named("validate")
    assert (len(found.ids), found.total_calls, found.host_ns, found.steps_share) == (0, 0, 0, 0.0)
