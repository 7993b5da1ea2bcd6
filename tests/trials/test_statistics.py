"""Intervals of speed-ups, on numbers whose answers come from printed tables, by hand, or hold for all."""

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose import statistics as looks
from diagnose.statistics import CPU, RANKS, Spread, of_waiting, student, wait_alike, waited_share

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
    assert student(probability, freedom) == pytest.approx(quantile, abs=6e-4)


def test_an_interval_by_hand() -> None:
    """Mean 0.2, deviation 0.1 of three; of pairs usually sqrt(2) * 0.05 with two degrees of freedom.

    Together (2 * 0.005 + 2 * 0.01) / 4, with four. A look may be wrong in 1 %: in 0.8 % by this, t is 4.908,
    and in 0.2 % by the three alone, whose t is 22.327 (tables).
    """
    half = 4.9076 * math.sqrt(0.0075) / math.sqrt(3)
    found = looks.of_runs([0.1, 0.2, 0.3], Spread(0.05, 2))
    wanted = [math.exp(0.2 - half), math.exp(0.2), math.exp(0.2 + half)]
    assert [found.low, found.likely, found.high] == pytest.approx(wanted, rel=1e-4)


def test_pairs_that_agree_better_than_usual_count_alone() -> None:
    """Deviation 0.0001 of three: half of the interval is 22.327 * 0.0001 / sqrt(3)."""
    found = looks.of_runs([0.0999, 0.1, 0.1001], Spread(0.05, 2))
    assert math.log(found.high / found.low) / 2 == pytest.approx(22.327 * 0.0001 / math.sqrt(3), rel=1e-3)


def test_other_runs_of_the_session_tell_how_pairs_spread_here() -> None:
    """Beforehand 2 * 0.005 with two degrees, of the session 0.0002 with one; then the pairs' 0.02 with two.

    Before the trial (0.01 + 0.0002) / 3 with three degrees; with it (0.0102 + 0.02) / 5, of which t in 0.8 % is 4.262.
    """
    as_it_is = looks.like_pairs([1.0, math.exp(0.01 * math.sqrt(2))])
    found = looks.of_runs([0.1, 0.2, 0.3], Spread(0.05, 2), [as_it_is])
    assert math.log(found.high / found.likely) == pytest.approx(
        4.2619 * math.sqrt((0.0102 + 0.02) / 5) / math.sqrt(3), rel=1e-4
    )


def test_two_pairs_of_runs_that_differ_by_3_percent_tell_something() -> None:
    """Plain pairs would say 12.7 and more times 3 %. Here (4 * 2 * 0.028**2 + 0.0009) / 5, t in 0.8 % is 4.262."""
    found = looks.of_runs([0.03 / math.sqrt(2), -0.03 / math.sqrt(2)], CPU)
    half = 4.2619 * math.sqrt((8 * 0.028**2 + 0.0009) / 5) / math.sqrt(2)
    assert half == pytest.approx(0.1141, abs=1e-4)
    assert math.log(found.high) == pytest.approx(half, rel=1e-4)


@pytest.mark.parametrize("schedule", [[2, 3, 5, 8, 12, 18], [5, 8, 12, 18, 27, 41, 60]], ids=["runs", "blocks"])
def test_all_looks_together_may_be_wrong_in_5_of_100(schedule: list[int]) -> None:
    """By 200,000 walks of steps that are normally distributed; looks at one of them overlap."""
    draw, wrong = np.random.default_rng(1), np.zeros(200_000, dtype=bool)
    walks, before = np.zeros(len(wrong)), 0
    limit = statistics.NormalDist().inv_cdf(1 - looks.ALPHA_OF_LOOK / 2)
    for pairs in schedule:
        walks += draw.normal(0, math.sqrt(pairs - before), len(wrong))
        wrong, before = wrong | (np.abs(walks) > limit * math.sqrt(pairs)), pairs
    assert 0.039 < wrong.mean() < 0.046


@given(RATIOS)
def test_slower_is_faster_the_other_way_round(ratios: list[float]) -> None:
    faster, slower = looks.of_runs(ratios, CPU), looks.of_runs([-ratio for ratio in ratios], CPU)
    assert faster.low < faster.likely < faster.high
    assert [1 / slower.high, 1 / slower.likely, 1 / slower.low] == pytest.approx(
        [faster.low, faster.likely, faster.high], rel=1e-9
    )


@given(RATIOS, st.floats(-1, 1))
def test_a_gain_of_all_pairs_moves_the_interval(ratios: list[float], gain: float) -> None:
    before, after = looks.of_runs(ratios, CPU), looks.of_runs([ratio + gain for ratio in ratios], CPU)
    assert after.low / before.low == pytest.approx(math.exp(gain), rel=1e-6)
    assert after.high / before.high == pytest.approx(math.exp(gain), rel=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "enough"),
    [
        (1.2, 1.9, True),
        (0.5, 0.7, True),
        (0.995, 1.005, True),
        (1.005, 1.06, False),
        (0.95, 1.009, True),
        (0.95, 1.011, False),
        (0.9, 1.1, False),
        (1.5, 11.6, False),
        (0.09, 0.7, False),
    ],
)
def test_enough_is_a_narrow_interval_or_one_that_gains_or_surely_gains_nothing(
    low: float, high: float, enough: bool
) -> None:
    assert looks.enough(low, high) is enough


def test_an_interval_that_is_far_too_wide_decides_nothing_wherever_it_lies() -> None:
    """As where a machine was busy in both runs without the fix: 2 pairs of a step that takes 6.5 ms and took 66."""
    assert [looks.verdict(*one) for one in ((1.5, 11.6), (0.09, 0.7))] == ["inconclusive"] * 2
    assert looks.verdict(4.4, 7.4) == "keep"


def test_equal_arms_that_differ_by_a_third_show_nothing_soon() -> None:
    assert looks.hopeless([0.4, -0.35, 0.02, 0.3, -0.31])
    assert not looks.hopeless([0.4, -0.35, 0.02])
    assert not looks.hopeless([0.41, 0.38, 0.43])
    assert not looks.hopeless([0.004, -0.003, 0.001])


def claims(draw: random.Random, spread: float, between: Spread) -> bool:
    """Whether a trial of nothing says at any look that the step has changed. Two other trials were made before it."""
    pair = math.sqrt(2) * spread
    others = [[draw.gauss(0, pair) for _ in range(3)] for _ in range(2)]
    ratios = [draw.gauss(0, pair) for _ in range(looks.MOST_PAIRS)]
    seen = [looks.of_runs(ratios[:pairs], between, others) for pairs in looks.schedule(2)]
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
    assert looks.schedule(3) == [3, 5, 8, 12, 18]
    assert looks.schedule(2) == [2, 3, 5, 8, 12, 18]
    assert looks.schedule(12) == [12, 18]


def test_few_pairs_are_judged_by_the_spread_of_all() -> None:
    """Two pairs of deviation 0.014, three of 0.01: 0.012 of three degrees of freedom, of which t in 1 % is 5.841."""
    own, others = [0.1, 0.12], [[0.3, 0.31, 0.32]]
    half = 5.8409 * math.sqrt((0.0002 + 2 * 0.0001) / 3 / 2)
    found = looks.interval(own, others)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((0.11 - half, 0.11 + half), abs=1e-4)
    assert found.high / found.low < looks.interval(own).high / looks.interval(own).low


def test_pairs_that_spread_far_more_than_all_others_are_judged_alone() -> None:
    assert looks.interval([0.1, 0.2, 0.3], [[0.3, 0.31, 0.32]]) == looks.interval([0.1, 0.2, 0.3])


def test_what_other_processes_take_is_taken_out() -> None:
    """Usually a step waits for 10 ns. One of 100 without the fix has waited for 60 of 150, one with it for 40 of 80."""
    steps, waited = [(100.0, 50.0), (150.0, 50.0), (100.0, 80.0)], [(0.1, 0.2), (0.4, 0.2), (0.1, 0.5)]
    assert [number for pair in wait_alike(steps, waited) for number in pair] == pytest.approx([100, 50] * 3)


def test_what_one_side_waits_throughout_is_of_the_fix() -> None:
    """Without it eight threads share two cores. Of two pairs nothing is known."""
    steps, waited = [(200.0, 100.0), (210.0, 100.0), (190.0, 110.0)], [(0.5, 0.0), (0.52, 0.0), (0.49, 0.01)]
    assert wait_alike(steps, waited) == steps
    assert wait_alike([(100.0, 50.0), (150.0, 50.0)], [(0.1, 0.2), (0.4, 0.2)]) == [(100.0, 50.0), (150.0, 50.0)]


@pytest.mark.slow
def test_a_machine_that_is_busy_now_and_then_makes_no_gain_of_nothing() -> None:
    """1000 trials of steps of 100 ns with 2 % of noise, of which other processes take a third now and then."""
    draw, wrong = random.Random(3), 0
    for _ in range(1000):
        shares = [(draw.choice((0.0, 0.33)), draw.choice((0.0, 0.33))) for _ in range(27)]
        steps = [(100 * draw.gauss(1, 0.02) / (1 - one), 100 * draw.gauss(1, 0.02) / (1 - two)) for one, two in shares]
        alike = [wait_alike(steps[:pairs], shares[:pairs]) for pairs in (5, 8, 12, 18, 27)]
        seen = [looks.interval([math.log(one / other) for one, other in some]) for some in alike]
        wrong += any(not found.low < 1 < found.high for found in seen)
    assert wrong <= 50


def test_a_step_that_only_waits_leaves_a_tenth() -> None:
    assert (waited_share(30.0, 120.0), waited_share(130.0, 120.0)) == (0.25, 0.9)
