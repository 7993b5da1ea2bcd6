"""Values in order that rise, that change once, and that only vary."""

from itertools import combinations

import pytest

from diagnose.watched.series import _rank_sum_chance, changed, grows, risen, stretches
from tests.watched.logs import MS, S, column, noise, windows, with_columns


def test_values_that_rise_all_along() -> None:
    found = risen([100 + 10 * k for k in range(12)])
    assert found is not None
    # The medians of the first three and of the last three.
    assert (found.first, found.last, found.each) == (110, 200, 10)
    assert found.chance < 1e-7
    assert risen([110 - k for k in range(12)]) is None
    assert risen([100, 101, 102]) is None


@pytest.mark.parametrize(
    "values",
    [
        [100] * 12,
        [100, 104, 98, 101, 99, 103, 97, 102, 100, 98, 104, 101],
        [100] * 6 + [150] * 6,
        [150, 140, 130, 120, 110, 100] * 2,
        [100, 101, 102, 103, 104, 105, 106, 107, 108, 108.5, 108.7, 108.9],
    ],
    ids=["alike", "noise", "changed once", "saw", "too little"],
)
def test_values_that_do_not_rise_all_along(values: list[float]) -> None:
    assert risen(values) is None


def test_values_that_are_more_from_one_position_on() -> None:
    found = changed([10, 11, 10, 9, 10, 10, 11, 9, 10, 10, *[13, 12, 13, 14] * 3])
    assert found is not None
    assert (found.at, found.before, found.after) == (10, 10, 13)
    # All pairs in order: one of C(22, 10) ways to put ten of 22 first, at 21 positions.
    assert found.chance == pytest.approx(21 / 646_646)
    assert changed([13.0] * 10 + [10.0] * 10) is None
    assert changed([10.0] * 10 + [10.9] * 10) is None
    assert changed([10.0] * 3 + [13.0] * 3) is None  # One of 20 ways: it may be chance.


def test_what_grows_is_told_from_what_changes_once() -> None:
    factors = noise(3, 0.02)
    assert grows([(100 + 3 * k) * next(factors) for k in range(48)])
    assert not grows([(100 if k < 30 else 150) * next(factors) for k in range(48)])


@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 4), (4, 3)])
def test_the_chance_is_that_of_all_orders(first: int, second: int) -> None:
    whole = range(first + second)
    lost = [sum(a > b for a in some for b in whole if b not in some) for some in combinations(whole, first)]
    for most in range(first * second + 1):
        expected = sum(one <= most for one in lost) / len(lost)
        assert _rank_sum_chance(first, second, most) == pytest.approx(expected)


def test_a_stretch_has_the_usual_step_and_the_parts_of_the_mean_one() -> None:
    some = tuple(with_columns(one, forward=column(10, 400 * MS)) for one in windows([100 * MS] * 48))
    found = stretches(some, 24)
    assert len(found) == 24
    assert (found[1].first_step, found[1].steps, found[1].began_ns, found[1].ended_ns) == (21, 20, 3 * S, 5 * S)
    assert (found[1].step_ns, found[1].parts_ns["forward"], found[1].parts_ns["rest"]) == (100 * MS, 40 * MS, 60 * MS)
