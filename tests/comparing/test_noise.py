"""Intervals of differences: what they rest on, and by hand what they are."""

import math
from collections.abc import Sequence

import pytest

from diagnose.advice.timing import Spread, error_of
from diagnose.comparing import noise
from diagnose.comparing.compare import compare
from diagnose.comparing.noise import Side, difference
from diagnose.contracts.comparison import Basis, Range
from tests.runs import run, side

STEADY = (100,) * 30


def error(times_ns: Sequence[int]) -> float:
    found = error_of(times_ns)
    assert found is not None
    return found.share


def alone(mean_ns: float, share: float = 0.0) -> Side:
    return Side((mean_ns,), (Spread(share, 5),))


def half_of(found: Range) -> float:
    """Of the interval of the logarithm."""
    assert found.low is not None
    assert found.high is not None
    return (math.log1p(found.high) - math.log1p(found.low)) / 2


def test_the_error_of_a_mean_comes_from_means_of_blocks_so_that_a_drift_counts() -> None:
    # Blocks of two have means 1.5, 3.5, ... 11.5: their standard deviation is 2 * sqrt(3.5), and their mean 6.5.
    assert error(range(1, 13)) == pytest.approx(2 * math.sqrt(3.5) / math.sqrt(6) / 6.5)
    assert error((90, 110) * 15) == pytest.approx(0, abs=0.02)
    assert error((90,) * 15 + (110,) * 15) > 0.04


def test_each_of_a_few_steps_is_a_block() -> None:
    # The standard deviation of 9, 10 and 11 is 1.
    assert error_of((9, 10, 11)) == Spread(pytest.approx(1 / math.sqrt(3) / 10), 2)
    assert error_of((100, 101)) is None


def test_one_recording_of_each_counts_as_runs_usually_differ() -> None:
    found = difference(alone(100.0), alone(110.0), Spread(0.01, 4))
    # Student's t of 4 degrees of freedom is 2.776.
    assert found.likely == pytest.approx(0.1)
    assert half_of(found) == pytest.approx(2.7764 * 0.01 * math.sqrt(2), rel=1e-4)
    assert math.log1p(found.low or 0) + half_of(found) == pytest.approx(math.log(1.1))


def test_a_noisy_run_widens_its_interval_with_its_own_degrees_of_freedom() -> None:
    found = difference(alone(100.0, 0.05), alone(100.0), Spread(0.01, 4))
    # Parts: 2 * 0.01**2 with 4 degrees, 0.05**2 with 5: together 5.73, so that t is that of 5, 2.571.
    variance = 2 * 0.01**2 + 0.05**2
    together = variance**2 / ((2 * 0.01**2) ** 2 / 4 + 0.05**4 / 5)
    assert 5 < together < 6
    assert half_of(found) == pytest.approx(2.5706 * math.sqrt(variance), rel=1e-4)


def test_several_recordings_tell_how_much_runs_differ_here() -> None:
    spread, sound = Spread(0.01, 4), (Spread(0.0, 5),) * 3
    quiet, noisy = Side((100.0,) * 3, sound), Side((80.0, 100.0, 125.0), sound)
    one, many, rough = (difference(some, some, spread) for some in (alone(100.0), quiet, noisy))
    assert half_of(many) < half_of(one) < half_of(rough)
    # Variance: (4 * 0.01**2 + 2 * 2 * log(1.25)**2) / 8; t of 8 degrees of freedom is 2.306.
    variance = (4 * 0.01**2 + 4 * math.log(1.25) ** 2) / 8
    assert half_of(rough) == pytest.approx(2.306 * math.sqrt(variance * 2 / 3), rel=1e-3)


@pytest.mark.parametrize(
    ("after", "verdict"),
    [((150,) * 30, "slower"), ((60,) * 30, "faster"), (STEADY, "cannot_tell"), ((5, 500) * 15, "slower")],
)
def test_the_verdict_is_that_of_the_whole_interval(after: tuple[int, ...], verdict: str) -> None:
    found = compare(side(run(times_ns=STEADY, unprofiled_ns=STEADY)), side(run(times_ns=STEADY, unprofiled_ns=after)))
    assert (found.verdict, found.basis) == (verdict, Basis.UNPROFILED_STEPS)


def test_an_interval_that_is_too_wide_tells_nothing() -> None:
    wild = (10,) * 10 + (100,) * 10 + (300,) * 10
    found = compare(side(run(times_ns=STEADY, unprofiled_ns=STEADY)), side(run(times_ns=STEADY, unprofiled_ns=wild)))
    assert found.verdict == "cannot_tell"
    assert found.smallest_visible_share is not None
    assert found.smallest_visible_share > noise.WIDE


def test_too_few_steps_tell_nothing_and_have_no_interval() -> None:
    found = compare(side(run(times_ns=(100,))), side(run(times_ns=(200,))))
    assert found.verdict == "cannot_tell"
    assert (found.difference_share.low, found.difference_share.likely) == (None, 1.0)
    assert (found.difference_ns.low, found.difference_ns.likely, found.smallest_visible_share) == (None, 100, None)
    assert found.why == "A side has 1 measured step: too few to tell noise from a difference."


def test_recorded_steps_count_where_one_side_was_not_timed_without_the_profiler() -> None:
    found = compare(side(run(times_ns=STEADY, unprofiled_ns=(50,) * 30)), side(run(times_ns=STEADY)))
    assert found.basis is Basis.RECORDED_STEPS
    assert (found.before_ns, found.after_ns, found.difference_ns.likely) == (100, 100, 0)


def test_of_several_recordings_the_means_are_compared() -> None:
    before = [run(times_ns=STEADY, unprofiled_ns=(ns,) * 30) for ns in (100, 102, 104)]
    after = [run(times_ns=STEADY, unprofiled_ns=(ns,) * 30) for ns in (150, 152)]
    found = compare(side(*before), side(*after))
    assert (found.before_ns, found.after_ns, found.recordings) == (102, 151, (3, 2))
    assert (found.basis, found.verdict) == (Basis.RECORDINGS, "slower")


def test_several_recordings_show_that_there_is_no_difference() -> None:
    three = side(*[run(times_ns=STEADY, unprofiled_ns=STEADY)] * 3)
    found = compare(three, three)
    # Variance: 2 * 0.024**2 / 6, t of 6 degrees of freedom is 2.447.
    half = 2.447 * math.sqrt(2 * 0.024**2 / 6 * 2 / 3)
    assert found.verdict == "same"
    assert found.difference_share.high == pytest.approx(math.expm1(half), rel=1e-3)
    assert found.smallest_visible_share == pytest.approx(math.sinh(half), rel=1e-3)
