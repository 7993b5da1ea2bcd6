"""Intervals of speed-ups, on numbers whose answers come from printed tables, by hand, or hold for all."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.advice.equal_runs import CPU, RANKS, of_waiting
from diagnose.advice.student import Spread
from diagnose.contracts.trials import Range
from diagnose.trials import statistics as looks

RATIOS = st.lists(st.floats(-1, 1), min_size=3, max_size=12).filter(lambda some: max(some) - min(some) > 1e-6)


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [  # From the table of percentage points of the t-distribution, Pearson and Hartley.
        (0.95, 1, 6.314),
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.995, 2, 9.925),
        (0.975, 3, 3.182),
        (0.975, 4, 2.776),
        (0.99, 5, 3.365),
        (0.995, 7, 3.499),
        (0.975, 10, 2.228),
        (0.9995, 11, 4.437),
        (0.975, 30, 2.042),
    ],
)
def test_quantiles_are_those_of_the_tables(probability: float, freedom: int, quantile: float) -> None:
    assert looks.student(probability, freedom) == pytest.approx(quantile, abs=6e-4)


def test_an_interval_by_hand() -> None:
    """Mean 0.2, deviation 0.1 of three; of pairs usually sqrt(2) * 0.05 with two degrees of freedom.

    Together (2 * 0.005 + 2 * 0.01) / 4, with four. The first look may be wrong in 2.5 %: in 2 % by this, t is 3.747
    (tables), and in 0.5 % by the three alone, whose t is 14.089.
    """
    half = 3.7469 * math.sqrt(0.0075) / math.sqrt(3)
    found = looks.of_runs([0.1, 0.2, 0.3], 1, Spread(0.05, 2))
    wanted = [math.exp(0.2 - half), math.exp(0.2), math.exp(0.2 + half)]
    assert [found.low, found.likely, found.high] == pytest.approx(wanted, rel=1e-4)


def test_pairs_that_agree_better_than_usual_count_alone() -> None:
    """Deviation 0.0001 of three: half of the interval is 14.089 * 0.0001 / sqrt(3)."""
    found = looks.of_runs([0.0999, 0.1, 0.1001], 1, Spread(0.05, 2))
    assert math.log(found.high / found.low) / 2 == pytest.approx(14.089 * 0.0001 / math.sqrt(3), rel=1e-3)


def test_other_runs_of_the_session_tell_how_pairs_spread_here() -> None:
    """Beforehand 2 * 0.005 with two degrees, of the session 0.0002 with one; then the pairs' 0.02 with two.

    Before the trial (0.01 + 0.0002) / 3 with three degrees; with it (0.0102 + 0.02) / 5, of which t in 2 % is 3.365.
    """
    as_it_is = looks.like_pairs([1.0, math.exp(0.01 * math.sqrt(2))])
    found = looks.of_runs([0.1, 0.2, 0.3], 1, Spread(0.05, 2), [as_it_is])
    assert math.log(found.high / found.likely) == pytest.approx(
        3.3649 * math.sqrt((0.0102 + 0.02) / 5) / math.sqrt(3), rel=1e-4
    )


def test_two_pairs_of_runs_that_differ_by_3_percent_tell_something() -> None:
    """Plain pairs would say 12.7 and more times 3 %. Here (4 * 2 * 0.028**2 + 0.0009) / 5, t in 2 % is 3.365."""
    found = looks.of_runs([0.03 / math.sqrt(2), -0.03 / math.sqrt(2)], 1, CPU)
    half = 3.3649 * math.sqrt((8 * 0.028**2 + 0.0009) / 5) / math.sqrt(2)
    assert half == pytest.approx(0.0901, abs=1e-4)
    assert math.log(found.high) == pytest.approx(half, rel=1e-4)


def test_all_looks_together_may_be_wrong_as_often_as_one() -> None:
    shares = [looks.alpha_of(look) for look in range(1, 1000)]
    assert shares == sorted(shares, reverse=True)
    assert 0.0499 < sum(shares) < 0.05


@given(RATIOS, st.integers(1, 9))
def test_slower_is_faster_the_other_way_round(ratios: list[float], look: int) -> None:
    faster, slower = looks.of_runs(ratios, look, CPU), looks.of_runs([-ratio for ratio in ratios], look, CPU)
    assert faster.low < faster.likely < faster.high
    assert [1 / slower.high, 1 / slower.likely, 1 / slower.low] == pytest.approx(
        [faster.low, faster.likely, faster.high], rel=1e-9
    )


@given(RATIOS, st.floats(-1, 1))
def test_a_gain_of_all_pairs_moves_the_interval(ratios: list[float], gain: float) -> None:
    before, after = looks.of_runs(ratios, 1, CPU), looks.of_runs([ratio + gain for ratio in ratios], 1, CPU)
    assert after.low / before.low == pytest.approx(math.exp(gain), rel=1e-6)
    assert after.high / before.high == pytest.approx(math.exp(gain), rel=1e-6)


@given(RATIOS)
def test_a_later_look_at_the_same_pairs_says_less(ratios: list[float]) -> None:
    first, second = looks.of_runs(ratios, 1, CPU), looks.of_runs(ratios, 2, CPU)
    assert second.low < first.low
    assert first.high < second.high


@pytest.mark.parametrize(
    ("measured", "enough"),
    [
        (Range(1.2, 1.5, 1.9), True),
        (Range(0.5, 0.6, 0.7), True),
        (Range(0.995, 1.0, 1.005), True),
        (Range(1.005, 1.03, 1.06), False),
        (Range(0.9, 1.0, 1.1), False),
    ],
)
def test_enough_is_a_narrow_interval_or_one_clearly_off_1(measured: Range, enough: bool) -> None:
    assert looks.enough(measured) is enough


def test_equal_arms_that_differ_by_a_third_show_nothing_soon() -> None:
    assert looks.hopeless([0.4, -0.35, 0.02, 0.3, -0.31], 2)
    assert not looks.hopeless([0.4, -0.35, 0.02], 1)
    assert not looks.hopeless([0.41, 0.38, 0.43], 1)
    assert not looks.hopeless([0.004, -0.003, 0.001], 1)


def claims(draw: random.Random, spread: float, between: Spread) -> bool:
    """Whether a trial of nothing says at any look that the step has changed. Two other trials were made before it."""
    pair = math.sqrt(2) * spread
    others = [[draw.gauss(0, pair) for _ in range(3)] for _ in range(2)]
    ratios = [draw.gauss(0, pair) for _ in range(looks.MOST_PAIRS)]
    seen = [looks.of_runs(ratios[:pairs], look, between, others) for look, pairs in enumerate(looks.schedule(3), 1)]
    return any(not found.low < 1 < found.high for found in seen)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.003, 0.028, 0.06])
def test_equal_arms_show_a_difference_in_at_most_5_of_100(spread: float) -> None:
    """However often it is looked, and whether they differ by as much as usual. 1000 trials that change nothing."""
    draw = random.Random(5)
    assert sum(claims(draw, spread, CPU) for _ in range(1000)) <= 50


@pytest.mark.slow
@pytest.mark.parametrize("between", [CPU, RANKS, of_waiting(0.0), of_waiting(0.5)])
def test_so_do_arms_of_trainings_that_differ_in_how_much_their_runs_do(between: Spread) -> None:
    """Variances vary as an inverse chi-squared distribution does."""
    draw, wrong = random.Random(6), 0
    for _ in range(1000):
        chi = sum(draw.gauss(0, 1) ** 2 for _ in range(between.freedom))
        wrong += claims(draw, between.share * math.sqrt(between.freedom / chi), between)
    assert wrong <= 50


def test_each_look_has_half_as_many_pairs_again() -> None:
    assert looks.schedule(3) == [3, 5, 8, 12]
    assert looks.schedule(2) == [2, 3, 5, 8, 12]
    assert looks.schedule(12) == [12]
    assert [looks.look_of(pairs, 3) for pairs in range(2, 13)] == [1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 4]


def test_noise_is_the_deviation_of_equal_arms() -> None:
    """Of two that differ by 2 %: half of that, by the square root of two."""
    assert looks.noise([100.0, 102.0]) == pytest.approx(math.log(1.02) / math.sqrt(2))


def test_few_pairs_are_judged_by_the_spread_of_all() -> None:
    """Two pairs of deviation 0.014 with three of 0.01: 0.012 of three degrees of freedom, of which t is 4.177."""
    own, others = [0.1, 0.12], [[0.3, 0.31, 0.32]]
    half = 4.1765 * math.sqrt((0.0002 + 2 * 0.0001) / 3 / 2)
    found = looks.interval(own, 1, others)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((0.11 - half, 0.11 + half), abs=1e-4)
    assert found.high / found.low < looks.interval(own, 1).high / looks.interval(own, 1).low


def test_pairs_that_spread_far_more_than_all_others_are_judged_alone() -> None:
    assert looks.interval([0.1, 0.2, 0.3], 1, [[0.3, 0.31, 0.32]]) == looks.interval([0.1, 0.2, 0.3], 1)
