"""Intervals of differences: what they rest on, and by hand what they are."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose import pipeline
from diagnose.advice.timing import error_of
from diagnose.comparing import noise
from diagnose.comparing.compare import compare
from diagnose.comparing.noise import Side, difference
from diagnose.comparing.runs import baseline_of
from diagnose.contracts.baseline import Run
from diagnose.contracts.comparison import Basis, Range
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.time_attribution import Part
from diagnose.statistics import Spread
from tests.runs import run as any_run
from tests.runs import side, spent

STEADY = (100,) * 30


def run(times_ns: tuple[int, ...], unprofiled_ns: tuple[int, ...] = ()) -> Run:
    """A recording of a training on the CPU."""
    return any_run(times_ns=times_ns, unprofiled_ns=unprofiled_ns, measure=Measure.HOST)


def error(times_ns: Sequence[int]) -> float:
    found = error_of(times_ns)
    assert found is not None
    return found.share


USUAL = Spread(0.01, 4)


def alone(mean_ns: float, share: float = 0.0, between: Spread = USUAL) -> Side:
    return Side((mean_ns,), (Spread(share, 5),), between)


def half_of(found: Range) -> float:
    assert found.low is not None
    assert found.high is not None
    return (math.log1p(found.high) - math.log1p(found.low)) / 2


def test_the_error_of_a_mean_comes_from_means_of_blocks_so_that_a_drift_counts_and_each_of_a_few_steps_is_one() -> None:
    # Blocks of two have means 1.5, 3.5, ... 11.5: their standard deviation is 2 * sqrt(3.5), and their mean 6.5.
    assert error(range(1, 13)) == pytest.approx(2 * math.sqrt(3.5) / math.sqrt(6) / 6.5)
    assert error((90, 110) * 15) == pytest.approx(0, abs=0.02)
    assert error((90,) * 15 + (110,) * 15) > 0.04
    # The standard deviation of 9, 10 and 11 is 1.
    assert error_of((9, 10, 11)) == Spread(pytest.approx(1 / math.sqrt(3) / 10), 2)
    assert error_of((100, 101)) is None


def test_one_recording_of_each_counts_as_runs_usually_differ() -> None:
    found = difference(alone(100.0), alone(110.0))
    # Student's t of 4 degrees of freedom is 2.776.
    assert found.likely == pytest.approx(0.1)
    assert half_of(found) == pytest.approx(2.7764 * 0.01 * math.sqrt(2), rel=1e-4)
    assert math.log1p(found.low or 0) + half_of(found) == pytest.approx(math.log(1.1))


def test_a_noisy_run_widens_its_interval_with_its_own_degrees_of_freedom() -> None:
    found = difference(alone(100.0, 0.05), alone(100.0))
    # Parts: 2 * 0.01**2 with 4 degrees, 0.05**2 with 5: together 5.73, so that t is that of 5, 2.571.
    variance = 2 * 0.01**2 + 0.05**2
    together = variance**2 / ((2 * 0.01**2) ** 2 / 4 + 0.05**4 / 5)
    assert 5 < together < 6
    assert half_of(found) == pytest.approx(2.5706 * math.sqrt(variance), rel=1e-4)


def test_several_recordings_tell_how_much_runs_differ_here() -> None:
    sound = (Spread(0.0, 5),) * 3
    quiet, noisy = Side((100.0,) * 3, sound, USUAL), Side((80.0, 100.0, 125.0), sound, USUAL)
    one, many, rough = (difference(some, some) for some in (alone(100.0), quiet, noisy))
    assert half_of(many) < half_of(one) < half_of(rough)
    # Variance: (4 * 0.01**2 + 2 * 2 * log(1.25)**2) / 8; t of 8 degrees of freedom is 2.306.
    variance = (4 * 0.01**2 + 4 * math.log(1.25) ** 2) / 8
    assert half_of(rough) == pytest.approx(2.306 * math.sqrt(variance * 2 / 3), rel=1e-3)


def test_sides_that_differ_in_kind_count_with_what_is_usual_of_each() -> None:
    found = difference(alone(100.0, between=Spread(0.03, 4)), alone(100.0, between=Spread(0.08, 6)))
    # Satterthwaite: (9 + 64)**2 / (9**2 / 4 + 64**2 / 6) = 7.58, rounded down to 7, of which t is 2.365.
    assert half_of(found) == pytest.approx(2.3646 * math.sqrt(0.03**2 + 0.08**2), rel=1e-4)


def test_recordings_of_both_sides_tell_by_how_much_more_than_usual_runs_differ_here_if_they_are_of_one_kind() -> None:
    sound = (Spread(0.0, 5),) * 2
    before = Side((math.exp(0.03), math.exp(-0.03)), sound, Spread(0.01, 4))
    found = difference(before, Side((1.0, 1.0), sound, Spread(0.02, 4)))
    # Times what is usual: 4 * 1 and 1 * 2 * 3**2 over 4 + 1 + 1 degrees of freedom, of which t is 2.447.
    variance = (4 + 18) / 6 * (0.01**2 + 0.02**2) / 2
    assert half_of(found) == pytest.approx(2.4469 * math.sqrt(variance), rel=1e-4)
    found = difference(before, Side((1.0, 1.0), sound, Spread(0.04, 4)))
    # The first: (4 * 0.01**2 + 2 * 0.03**2) / 5, the second: 4 * 0.04**2 / 5, both of two recordings and five degrees.
    first, second = (4 * 0.01**2 + 2 * 0.03**2) / 10, 4 * 0.04**2 / 10
    assert math.floor((first + second) ** 2 / ((first**2 + second**2) / 5)) == 8
    assert half_of(found) == pytest.approx(2.3060 * math.sqrt(first + second), rel=1e-4)


SIDES = st.builds(
    lambda means, share, freedom: Side(tuple(means), (Spread(0.01, 5),) * len(means), Spread(share, freedom)),
    st.lists(st.floats(0.9, 1.1), min_size=1, max_size=4),
    st.floats(0.001, 0.1),
    st.integers(2, 8),
)


@given(SIDES, SIDES)
def test_the_other_way_round_it_is_the_reciprocal(before: Side, after: Side) -> None:
    there, back = difference(before, after), difference(after, before)
    low, high = there.low or 0, back.high or 0
    assert ((1 + low) * (1 + high), (1 + there.likely) * (1 + back.likely)) == pytest.approx((1, 1))
    assert low < there.likely


def on_gpu(computed: int, ns: int) -> Run:
    """All of a step of this length but what is computed waits for the host; five steps like it."""
    rows = (spent(Part.COMPUTE, "gemm", computed), spent(Part.IDLE, "ops", ns - computed))
    return any_run(*rows, times_ns=(ns,) * 5, unprofiled_ns=(ns,) * 30)


def test_a_difference_shows_where_the_gpu_bounds_the_step_and_not_where_it_waits_for_its_host() -> None:
    filled = compare(side(on_gpu(100, 100)), side(on_gpu(88, 88)))
    # 0.19 * 0.02**1.25 of each; t of 2 degrees of freedom is 4.303.
    half = 4.3027 * 0.19 * 0.02**1.25 * math.sqrt(2)
    assert filled.verdict == "faster"
    assert math.log1p(filled.difference_share.high or 0) == pytest.approx(math.log(0.88) + half, rel=1e-4)
    assert compare(side(on_gpu(50, 100)), side(on_gpu(44, 88))).verdict == "cannot_tell"


@pytest.mark.parametrize(
    ("before", "after", "least"),
    [
        # Of 70 orders of four and four one is as extreme: 1/70 < 2.5 %, so that the smallest ratio is the end.
        ((10, 11, 12, 20), (24, 40, 44, 48), 24 / 20),
        # Of 252 orders of five and five 4 have two pairs the wrong way round or fewer; with three they are 7 of 252.
        ((10, 11, 12, 13, 14), (28, 42, 42, 42, 42), 28 / 12),
        ((1, 1, 1), (9, 9, 9), None),
    ],
)
def test_no_outlier_moves_the_low_end_of_a_ratio(
    before: Sequence[float], after: Sequence[float], least: float | None
) -> None:
    assert noise.least_ratio(before, after) == least


def gpu(kind: str, waits: int, times_ns: tuple[int, ...]) -> Run:
    """Steps of which the GPU waits so long for one thing."""
    return any_run(spent(Part.COMPUTE, "gemm", 100), *[spent(Part.IDLE, kind, waits)] * (waits > 0), times_ns=times_ns)


@pytest.mark.parametrize(("kind", "decides"), [("loader", True), ("ops", False)])
def test_a_part_that_is_new_decides_though_steps_vary_but_not_waits_for_launches(kind: str, decides: bool) -> None:
    before, after = gpu(kind, 0, (99, 100, 100, 101)), gpu(kind, 50, (140, 140, 140, 180))
    there, back = compare(side(before), side(after)), compare(side(after), side(before))
    # The steps show 140 / 101. Equal runs wait 0.18 more or less of it; t of 3 degrees of freedom is 3.182.
    far_ns = math.hypot(150 - 100 * 140 / 101, 50 * (1 - math.exp(-3.1824 * 0.18)))
    assert (there.difference_share.low == pytest.approx((50 - far_ns) / 100, rel=1e-3)) is decides
    assert (there.verdict, back.verdict) == ("slower", "faster")


@pytest.mark.parametrize(
    ("after", "verdict"),
    [((150,) * 30, "slower"), ((60,) * 30, "faster"), (STEADY, "cannot_tell"), ((5, 500) * 15, "slower")],
)
def test_the_verdict_is_that_of_the_whole_interval(after: tuple[int, ...], verdict: str) -> None:
    found = compare(side(run(STEADY, STEADY)), side(run(STEADY, after)))
    assert (found.verdict, found.basis) == (verdict, Basis.UNPROFILED_STEPS)


def test_an_interval_that_is_too_wide_tells_nothing() -> None:
    found = compare(side(run(STEADY, STEADY)), side(run(STEADY, (10,) * 10 + (100,) * 10 + (300,) * 10)))
    assert found.verdict == "cannot_tell"
    assert (found.smallest_visible_share or 0) > noise.WIDE


def test_too_few_steps_tell_nothing_and_have_no_interval() -> None:
    found = compare(side(run(times_ns=(100,))), side(run(times_ns=(200,))))
    assert found.verdict == "cannot_tell"
    assert (found.difference_share.low, found.difference_share.likely) == (None, 1.0)
    assert (found.difference_ns.low, found.difference_ns.likely, found.smallest_visible_share) == (None, 100, None)
    assert found.why == "One side has only 1 measured step: too few to rule out noise."


def test_recorded_steps_count_where_one_side_was_not_timed_without_the_profiler() -> None:
    found = compare(side(run(STEADY, (50,) * 30)), side(run(STEADY)))
    assert found.basis is Basis.RECORDED_STEPS
    assert (found.before_ns, found.after_ns, found.difference_ns.likely) == (100, 100, 0)


def test_of_several_recordings_the_means_are_compared() -> None:
    before, after = ([run(STEADY, (ns,) * 30) for ns in each] for each in ((100, 102, 104), (150, 152)))
    found = compare(side(*before), side(*after))
    assert (found.before_ns, found.after_ns, found.recordings) == (102, 151, (3, 2))
    assert (found.basis, found.verdict) == (Basis.RECORDINGS, "slower")


def test_several_recordings_show_that_there_is_no_difference() -> None:
    three = side(*[run(STEADY, STEADY)] * 3)
    found = compare(three, three)
    # Variance: 4 * 0.028**2 / 8, t of 8 degrees of freedom is 2.306.
    half = 2.306 * math.sqrt(4 * 0.028**2 / 8 * 2 / 3)
    assert found.verdict == "same"
    assert found.difference_share.high == pytest.approx(math.expm1(half), rel=1e-3)
    assert found.smallest_visible_share == pytest.approx(math.sinh(half), rel=1e-3)


@pytest.mark.exhaustive
def test_two_precisions_on_an_h100_are_told_apart_by_one_recording_each(corpus: Path) -> None:
    """Measured by hand, GPT-2 takes 99.769 ms in TF32 and 88.487 ms in bf16: 11.3 % less."""
    diagnoses = [pipeline.diagnose([corpus / "h100" / name]) for name in ("gpt2_1_tf32", "gpt2_2_bf16")]
    found = compare(*(baseline_of([one]) for one in diagnoses))
    low, high = found.difference_share.low or 0, found.difference_share.high or 0
    assert found.verdict == "faster"
    assert low < 88.487 / 99.769 - 1 < high < low + 0.04


def test_the_loading_that_no_workers_hide_is_told_by_four_steps_of_each(corpus: Path) -> None:
    """The steps take 115.1 to 121.1 ms, and 140.2 to 192.7 ms: of means of 117.1 and 157.6 ms 41.1 ms are loading."""
    traces = [corpus / "kineto" / "tensorboard" / f"resnet50_autograd_{count}_workers.json.gz" for count in (4, 0)]
    found = compare(*(baseline_of([pipeline.diagnose([trace])]) for trace in traces))
    far_ms = math.hypot(157.6 - 117.1 * 140.2 / 121.1, 41.1 * (1 - math.exp(-3.1824 * 0.18)))
    assert found.difference_share.low == pytest.approx((40.5 - far_ms) / 117.1, abs=0.005)
    assert (found.verdict, found.parts[0].of, found.parts[0].before_ns) == ("slower", "loader", 0)
