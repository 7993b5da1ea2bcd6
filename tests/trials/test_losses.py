"""What is said of losses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.trials.losses import compared

LOSSES = st.lists(st.floats(width=32), min_size=1, max_size=30)


@given(LOSSES, st.integers(1, 30))
def test_equal_bits_are_the_same_as_far_as_both_go(losses: list[float], length: int) -> None:
    assert compared(losses, losses, losses[:length]) == "same"


@pytest.mark.parametrize(
    ("again", "changed", "said"),
    [
        ([2.0, 1.0], [2.0, 1.000001], "rounding"),
        ([2.0, 1.0], [2.0, 1.0001], "differ"),
        ([2.0, 1.0], [2.0, math.nan], "differ"),
        ([2.0, 1.0], [2.0, math.inf], "differ"),
        ([2.0, 1.000001], [2.0, 1.0], "rounding"),
        ([2.0, 1.000001], [2.0, 1.1], "differ"),
        ([2.1, 1.0], [2.0, 1.0], "not_deterministic"),
        ([2.1, 1.0], [5.0, 1.0], "not_deterministic"),
        ([2.0, 1.0], [], None),
        ([], [2.0, 1.0], None),
    ],
)
def test_differences_are_judged_by_those_of_equal_arms(
    again: list[float], changed: list[float], said: str | None
) -> None:
    assert compared([2.0, 1.0], again, changed) == said


def test_rounding_may_grow_after_the_first_steps() -> None:
    start = [1.0] * 10
    assert compared([*start, 1.0], [*start, 1.0], [*start, 1.1]) == "rounding"


def test_rounding_of_a_loss_that_falls_to_nothing_is_of_what_it_fell_from() -> None:
    """The last losses differ by a thousandth of themselves, and by 5e-6 of the first."""
    falling = [2.0, 1e-1, 1e-2]
    assert compared(falling, falling, [2.0, 1e-1, 1.001e-2]) == "rounding"
    assert compared(falling, falling, [2.0, 1e-1, 1.1e-2]) == "differ"


@given(st.floats(1e-300, 1e300), st.floats(1e-9, 1e-1).filter(lambda share: abs(share - 2e-5) > 1e-9))
def test_the_unit_of_the_loss_does_not_matter(unit: float, change: float) -> None:
    before, after = [unit, unit / 2], [unit, unit / 2 * (1 + change)]
    assert compared(before, before, after) == compared([1.0, 0.5], [1.0, 0.5], [1.0, 0.5 * (1 + change)])


def test_zero_equals_no_other_number() -> None:
    assert compared([0.0], [0.0], [1e-30]) == "differ"
