"""Ranges of savings: by hand, their laws, and whether they hold where the truth is known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ranges
from diagnose.advice.pricing import FACTORS, confidence, ranged
from diagnose.advice.timing import between_runs, blocks_of, waiting_shares
from diagnose.contracts.finding import Level
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.time_attribution import AttributedTime, Part
from diagnose.replay.saving import Basis
from diagnose.statistics import CPU, RANKS, SESSION, Spread, in_session, moderated, of_pairs, of_waiting
from tests.runs import spent

SHARES = st.floats(0.0, 1.0)
TIMES = {Basis.REPLAYED: (0.5, 3.0)}


def test_a_range_is_the_odds_times_two_factors() -> None:
    # 200 go and 800 are left: odds of 1 : 4. Half of them are 1 : 8, three times as much is 3 : 4.
    assert ranged(200, 0, 1000, Basis.REPLAYED, factors=TIMES) == (111, 200, 429)
    # 900 go and 100 are left, 9 : 1. 4.5 : 1 and 27 : 1.
    assert ranged(900, 0, 1000, Basis.REPLAYED, factors=TIMES) == (818, 900, 964)
    # As a speed-up: 2 times as fast, less one, is 1. So 1.74 to 2.32 times, 425 to 569 of 1000.
    assert ranged(500, 0, 1000, Basis.MEASURED) == (425, 500, 569)


def test_a_doubt_of_the_recording_widens_both_ends() -> None:
    # A quarter of doubt: 1 : 4 times 0.5 * 0.75 is 3 : 32, and times 3 / 0.75 it is 1 : 1.
    assert ranged(200, 0, 1000, Basis.REPLAYED, 0.25, TIMES) == (86, 200, 500)
    assert ranged(200, 0, 1000, Basis.REPLAYED, 1.0, TIMES) == (0, 200, 1000)


@pytest.mark.parametrize("basis", [Basis.BOUNDED, Basis.AT_MOST])
def test_of_a_bound_only_the_upper_end_is_known(basis: Basis) -> None:
    assert ranged(200, 450, 1000, basis, 0.2) == (0, 200, 450)
    assert ranged(200, 100, 1000, basis) == (0, 200, 200)
    assert confidence(0, 1000, 1000, basis) is Level.LOW


@given(st.integers(-10, 10**12), st.integers(-10, 10**12), st.integers(0, 10**11), st.sampled_from(Basis), SHARES)
def test_a_range_is_in_order_and_within_the_step(likely: int, high: int, step: int, basis: Basis, doubt: float) -> None:
    low, kept, most = ranged(likely, high, step, basis, doubt)
    assert 0 <= low <= kept <= most <= step
    assert kept == min(max(likely, 0), step)


@given(st.integers(0, 10**9), st.sampled_from(list(FACTORS)), SHARES, SHARES)
def test_more_doubt_is_no_narrower_and_more_saving_no_less(likely: int, basis: Basis, one: float, two: float) -> None:
    low, _, high = ranged(likely, 0, 10**9, basis, min(one, two))
    wider = ranged(likely, 0, 10**9, basis, max(one, two))
    assert wider[0] <= low <= high <= wider[2]
    more = ranged(likely + 1, 0, 10**9, basis, min(one, two))
    assert low <= more[0]
    assert high <= more[2]


def test_nothing_saved_is_nothing_and_all_saved_is_all() -> None:
    assert ranged(0, 0, 1000, Basis.REPLAYED, 1.0) == (0, 0, 0)
    assert ranged(1000, 0, 1000, Basis.RULE_OF_THUMB, 0.5) == (1000, 1000, 1000)


def test_confidence_is_by_width() -> None:
    assert confidence(80, 100, 104, Basis.REPLAYED) is Level.HIGH
    assert confidence(80, 100, 105, Basis.MEASURED) is Level.MEDIUM
    assert confidence(90, 100, 104, Basis.TIMED_ELSEWHERE) is Level.MEDIUM
    assert confidence(50, 100, 250, Basis.RULE_OF_THUMB) is Level.MEDIUM
    assert confidence(0, 100, 101, Basis.BOUNDED) is Level.LOW


def test_published_ranges_hold_four_times_of_five() -> None:
    every = ranges.left_out(ranges.pairs())
    assert ranges.factors([pair for pair, _ in every]) == FACTORS
    groups = {basis: [one for one in every if one[0].basis is basis] for basis in FACTORS}
    held = {basis: ranges.coverage(some) for basis, some in groups.items() if len(some) >= 10}
    assert held.keys() == FACTORS.keys()
    assert all(0.75 <= share <= 0.90 for share in held.values()), held
    assert 0.75 <= ranges.coverage([one for one in every if one[0].on_gpu]) <= 0.90


COMPUTED = spent(Part.COMPUTE, "gemm", 70)
ON_DEVICE = (
    spent(Part.EXPOSED_COPY, "memory", 8, name="Memcpy DtoD (Device -> Device)"),
    spent(Part.EXPOSED_COPY, "memory", 2, name="Memset (Device)"),
)
FROM_HOST = spent(Part.EXPOSED_COPY, "memory", 10, name="Memcpy HtoD (Pageable -> Device)")


def test_variances_count_by_their_degrees_of_freedom() -> None:
    # Variances 0.02 of two values (one degree) and 0.01 of three (two); 0.04 beforehand for four: (0.16 + 0.04) / 7.
    found = moderated(Spread(0.2, 4), [[0.0, 0.2], [0.1, 0.2, 0.3], [5.0]])
    assert found.share == pytest.approx(math.sqrt((4 * 0.04 + 0.02 + 2 * 0.01) / 7))
    assert found.freedom == 7


def test_without_any_measurement_that_is_known_which_was_known_before() -> None:
    assert moderated(CPU, []) == CPU


@given(st.lists(st.lists(st.floats(-1, 1), min_size=2, max_size=5), max_size=4), st.floats(-3, 3))
def test_the_mean_of_a_group_does_not_count(groups: list[list[float]], shift: float) -> None:
    moved = [[one + shift for one in group] for group in groups]
    assert moderated(CPU, moved).share == pytest.approx(moderated(CPU, groups).share, abs=1e-9)


@pytest.mark.parametrize(("ranks", "spread"), [(None, CPU), (1, CPU), (2, RANKS)])
def test_on_a_cpu_it_counts_whether_processes_wait_for_each_other(ranks: int | None, spread: Spread) -> None:
    assert between_runs(Measure.HOST, (spent(Part.HOST, "ops", 100),), 100, ranks) == spread


@pytest.mark.parametrize(
    ("rows", "step_ns", "launches", "named"),
    [
        ((COMPUTED, *ON_DEVICE), 100, 0.2, 0.0),
        ((COMPUTED, *ON_DEVICE, FROM_HOST, spent(Part.IDLE, "ops", 10)), 100, 0.1, 0.1),
        # Recording has made the host slower; without it the step takes 90.
        ((COMPUTED, *ON_DEVICE, spent(Part.IDLE, "ops", 60)), 90, 1 / 9, 0.0),
        ((COMPUTED, spent(Part.EXPOSED_COMMUNICATION, "all_reduce", 30)), 100, 0.0, 0.3),
        # Recording has made the kernels slower.
        ((COMPUTED,), 60, 0.0, 0.0),
        ((), 100, 1.0, 0.0),
    ],
)
def test_on_a_gpu_the_share_of_the_step_counts_in_which_it_waits(
    rows: tuple[AttributedTime, ...], step_ns: float, launches: float, named: float
) -> None:
    assert waiting_shares(rows, step_ns) == pytest.approx((launches, named))
    share = math.hypot(of_waiting(launches).share, 0.18 * named)
    assert between_runs(Measure.DEVICE, rows, step_ns, None).share == pytest.approx(share)


def test_the_longer_a_gpu_waits_the_more_runs_differ_and_never_by_nothing() -> None:
    # 0.19 of a step that only waits; of half of it that by 2 ** 1.25 less; under 2 % as with 2 %.
    assert of_waiting(1.0) == Spread(0.19, 2)
    assert of_waiting(0.5) == Spread(pytest.approx(0.19 / 2.3784, rel=1e-4), 2)
    assert of_waiting(0.0) == of_waiting(0.02) == Spread(pytest.approx(0.19 * 0.0075212, rel=1e-4), 2)


def test_a_log_ratio_of_two_runs_has_twice_the_variance_of_one() -> None:
    assert of_pairs(Spread(0.03, 5)) == Spread(pytest.approx(0.0424264), 5)


def test_blocks_of_a_run_spread_as_sixths_of_its_steps_do() -> None:
    # Sixths of two steps have means 1.5, 3.5, ... 11.5: standard deviation 2 * sqrt(3.5), mean 6.5.
    assert blocks_of(range(1, 13)) == Spread(pytest.approx(2 * math.sqrt(3.5) / 6.5), 5)
    assert blocks_of((100, 101)) is None


def test_other_runs_of_a_session_count_for_few_degrees_of_freedom_only() -> None:
    others = [[0.0, 0.1, 0.2]] * 10
    found = in_session(Spread(0.05, 3), others)
    # Each group has the variance 0.01, for two degrees of freedom.
    assert found == Spread(pytest.approx(math.sqrt((3 * 0.0025 + 20 * 0.01) / 23)), SESSION)
    assert in_session(Spread(0.05, 2), [[0.0, 0.1]]).freedom == 3
    assert in_session(Spread(0.05, 7), others).freedom == 7
