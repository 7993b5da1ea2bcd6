"""Intervals of speed-ups, on numbers whose answers come from printed tables, by hand, or hold for all."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose import statistics as looks
from diagnose.statistics import CPU, RANKS, Spread, of_waiting, student, wait_alike, waited_share
from tests.exhaustive import some_of

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


@pytest.mark.parametrize(("pairs", "freedom", "alpha"), [(3, 2, 0.05), (2, 5, 0.04), (5, 4, 0.05), (18, 21, 0.01)])
def test_at_the_critical_value_an_effect_is_one_over_alpha_times_as_likely_as_none(
    pairs: int, freedom: int, alpha: float
) -> None:
    """An effect of variance 10 makes t so much wider: sqrt(1 + 10 pairs) times as wide."""
    t, wider = looks.critical(pairs, freedom, alpha), math.sqrt(1 + 10 * pairs)
    without, with_effect = ((1 + one**2 / freedom) ** (-(freedom + 1) / 2) for one in (t, t / wider))
    assert with_effect / wider / without == pytest.approx(1 / alpha)


def test_nothing_is_claimed_in_more_than_5_of_100_however_often_it_is_looked() -> None:
    """50,000 walks of 100 pairs that are normally distributed, looked at after each from the third on."""
    draw = np.random.default_rng(1)
    total, squares, wrong = np.zeros(50_000), np.zeros(50_000), np.zeros(50_000, dtype=bool)
    for pairs in range(1, 101):
        new = draw.normal(size=len(total))
        total, squares = total + new, squares + new**2
        if pairs > 2:
            variance = (squares - total**2 / pairs) / (pairs - 1)
            wrong |= np.abs(total) / np.sqrt(pairs * variance) > looks.critical(pairs, pairs - 1)
    assert 0.02 < wrong.mean() < 0.05


def test_an_interval_by_hand() -> None:
    """Mean 0.2, deviation 0.1 of three; of pairs usually sqrt(2) * 0.05 with two degrees of freedom.
    Together (2 * 0.005 + 2 * 0.01) / 4, with four. May it miss the truth in 4 %, then of (sqrt(31) / 0.04)^(2 / 5) =
    7.202 the critical value is the root of 4 * 6.202 / (1 - 7.202 / 31): 5.685. Alone three do not do for 1 %."""
    half = 5.6847 * math.sqrt(0.0075) / math.sqrt(3)
    found = looks.speed_up([0.1, 0.2, 0.3], Spread(0.05, 2))
    wanted = [math.exp(0.2 - half), math.exp(0.2), math.exp(0.2 + half)]
    assert [found.low, found.likely, found.high] == pytest.approx(wanted, rel=1e-4)


def test_pairs_that_agree_better_than_usual_count_alone() -> None:
    """Variance 1e-8 of five, in 1 %: of (sqrt(51) / 0.01)^(2 / 5) = 13.85 the root of 4 * 12.85 / (1 - 0.272)."""
    found = looks.speed_up([0.1 + 1e-4 * one for one in (-1, -1, 0, 1, 1)], Spread(0.05, 2))
    assert math.log(found.high / found.low) / 2 == pytest.approx(8.40 * 1e-4 / math.sqrt(5), rel=1e-3)


def test_other_fixes_of_the_session_tell_how_pairs_spread_here() -> None:
    """Beforehand 2 * 0.005 with two degrees, of the session 0.0002 with one; then the pairs' 0.02 with two.
    Before the trial (0.01 + 0.0002) / 3 with three degrees; with it (0.0102 + 0.02) / 5. As above, 5.011 is
    critical."""
    found = looks.speed_up([0.1, 0.2, 0.3], Spread(0.05, 2), [[0.4, 0.42]])
    assert math.log(found.high / found.likely) == pytest.approx(
        5.0110 * math.sqrt((0.0102 + 0.02) / 5) / math.sqrt(3), rel=1e-4
    )


def test_a_claim_in_hand_is_decided() -> None:
    """76 times as fast in three pairs of blocks."""
    found = looks.speed_up([math.log(one) for one in (74.0, 76.0, 79.0)])
    assert looks.verdict(found.low, found.high) == "keep"


@given(RATIOS, st.floats(-1, 1))
def test_slower_is_faster_the_other_way_round_and_a_gain_of_all_pairs_moves_the_interval(
    ratios: list[float], gain: float
) -> None:
    before, after = looks.speed_up(ratios, CPU), looks.speed_up([gain - ratio for ratio in ratios], CPU)
    assert before.low < before.likely < before.high
    wanted = [math.exp(gain) / one for one in reversed(before)]
    assert list(after) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "verdict", "enough"),
    [
        (1.2, 1.9, "keep", False),
        (1.2, 1.45, "keep", True),
        (66.8, 87.6, "keep", False),
        (1.001, 1.06, "keep", True),
        (0.09, 0.99, "slower", True),
        (0.95, 1.029, "no_gain", True),
        (0.6, 1.029, "no_gain", False),
        (0.95, 1.049, "no_gain", False),
        (0.9, 1.1, "inconclusive", False),
    ],
)
def test_an_interval_decides_as_soon_as_it_excludes_a_gain_or_none(
    low: float, high: float, verdict: str, enough: bool
) -> None:
    assert (looks.verdict(low, high), looks.enough(low, high)) == (verdict, enough)


def test_pairs_that_a_decision_needs_are_forecast_by_hand() -> None:
    """A gain of 10 % known to 20 %: 30 pairs more make it four times as many. Of none, 5 % are to be told."""
    gain = looks.Interval(math.exp(-0.1), math.exp(0.1), math.exp(0.3))
    assert (looks.pairs_to_go(gain, 10), looks.pairs_to_go(gain, 4)) == (30, 0)
    none = looks.Interval(math.exp(-0.1), 1.0, math.exp(0.1))
    assert looks.pairs_to_go(none, 10) == math.ceil(10 * ((0.1 / math.log(1.05)) ** 2 - 1))
    assert looks.pairs_to_go(looks.Interval(1.1, 1.2, 1.3), 10) == 0


def claims(draw: random.Random, spread: float, between: Spread) -> bool:
    """Whether a trial of nothing says at any look that the step has changed. Two other trials were made before it."""
    pair = math.sqrt(2) * spread
    others = [[draw.gauss(0, pair) for _ in range(3)] for _ in range(2)]
    ratios = [draw.gauss(0, pair) for _ in range(18)]
    seen = [looks.speed_up(ratios[:pairs], between, others) for pairs in range(2, 19)]
    return any(not found.low < 1 < found.high for found in seen)


@pytest.mark.slow
@pytest.mark.parametrize("spread", some_of([0.003, 0.028, 0.06], [0.028]))
def test_equal_arms_show_a_difference_in_at_most_5_of_100(spread: float) -> None:
    """However often it is looked, and whether they differ by as much as usual. 1000 trials that change nothing."""
    draw = random.Random(5)
    assert sum(claims(draw, spread, CPU) for _ in range(1000)) <= 50


@pytest.mark.exhaustive
@pytest.mark.parametrize("between", [CPU, RANKS, of_waiting(0.0), of_waiting(0.5)])
def test_so_do_arms_of_trainings_that_differ_in_how_much_their_runs_do(between: Spread) -> None:
    """Variances vary as an inverse chi-squared distribution does."""
    draw, wrong = random.Random(6), 0
    for _ in range(1000):
        chi = sum(draw.gauss(0, 1) ** 2 for _ in range(between.freedom))
        wrong += claims(draw, between.share * math.sqrt(between.freedom / chi), between)
    assert wrong <= 50


def test_what_other_processes_take_is_taken_out() -> None:
    """Usually a step waits for 10 ns. One of 100 without the fix has waited for 60 of 150, one with it for 40 of 80."""
    steps, waited = [(100.0, 50.0), (150.0, 50.0), (100.0, 80.0)], [(0.1, 0.2), (0.4, 0.2), (0.1, 0.5)]
    assert [number for pair in wait_alike(steps, waited) for number in pair] == pytest.approx([100, 50] * 3)


def test_what_one_side_waits_throughout_is_of_the_fix() -> None:
    """Without it eight threads share two cores. Of two pairs nothing is known."""
    steps, waited = [(200.0, 100.0), (210.0, 100.0), (190.0, 110.0)], [(0.5, 0.0), (0.52, 0.0), (0.49, 0.01)]
    assert wait_alike(steps, waited) == steps
    assert wait_alike([(100.0, 50.0), (150.0, 50.0)], [(0.1, 0.2), (0.4, 0.2)]) == [(100.0, 50.0), (150.0, 50.0)]


@pytest.mark.exhaustive
def test_a_machine_that_is_busy_now_and_then_makes_no_gain_of_nothing() -> None:
    """1000 trials of steps of 100 ns with 2 % of noise, of which other processes take a third now and then."""
    draw, wrong = random.Random(3), 0
    for _ in range(1000):
        shares = [(draw.choice((0.0, 0.33)), draw.choice((0.0, 0.33))) for _ in range(27)]
        steps = [(100 * draw.gauss(1, 0.02) / (1 - one), 100 * draw.gauss(1, 0.02) / (1 - two)) for one, two in shares]
        alike = [wait_alike(steps[:pairs], shares[:pairs]) for pairs in range(3, 28)]
        seen = [looks.speed_up([math.log(one / other) for one, other in some]) for some in alike]
        wrong += any(not found.low < 1 < found.high for found in seen)
    assert wrong <= 50


def test_a_step_that_only_waits_leaves_a_tenth() -> None:
    assert (waited_share(30.0, 120.0), waited_share(130.0, 120.0)) == (0.25, 0.9)
