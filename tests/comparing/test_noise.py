"""Intervals of differences: what they rest on, and by hand what they are."""

import math

import pytest

from diagnose.comparing import noise
from diagnose.comparing.compare import compare
from diagnose.comparing.noise import Side, Spread, difference, error_share
from diagnose.findings.comparison import Basis
from tests.runs import run, side

STEADY = (100,) * 30


def test_the_error_of_a_mean_comes_from_means_of_blocks_so_that_a_drift_counts() -> None:
    # Blocks of two have means 1.5, 3.5, ... 11.5: their standard deviation is 2 * sqrt(3.5), and their mean 6.5.
    assert error_share(range(1, 13)) == pytest.approx(2 * math.sqrt(3.5) / math.sqrt(6) / 6.5)
    alternating = (90, 110) * 15
    assert error_share(alternating) == pytest.approx(0, abs=0.02)
    assert error_share((90,) * 15 + (110,) * 15) > 0.04


def test_fewer_than_three_steps_say_nothing() -> None:
    assert math.isnan(error_share((100, 101)))


def test_one_recording_of_each_counts_as_runs_usually_differ() -> None:
    found = difference(Side((100.0,), (0.0,)), Side((110.0,), (0.0,)), Spread(0.01, 4))
    # Student's t of 4 degrees of freedom is 2.776: half the interval of the logarithm is 2.776 * 0.01 * sqrt(2).
    half = 2.7764 * 0.01 * math.sqrt(2)
    assert found.likely == pytest.approx(0.1)
    assert found.low == pytest.approx(1.1 * math.exp(-half) - 1, abs=1e-5)
    assert found.high == pytest.approx(1.1 * math.exp(half) - 1, abs=1e-5)


def test_several_recordings_tell_how_much_runs_differ_here() -> None:
    spread = Spread(0.01, 4)
    quiet = Side((100.0, 100.0, 100.0), (0.0,) * 3)
    noisy = Side((80.0, 100.0, 125.0), (0.0,) * 3)
    one = difference(Side((100.0,), (0.0,)), Side((100.0,), (0.0,)), spread)
    many = difference(quiet, quiet, spread)
    rough = difference(noisy, noisy, spread)
    assert many.high is not None
    assert one.high is not None
    assert rough.high is not None
    assert many.high < one.high < rough.high
    # Variance: (4 * 0.01**2 + 2 * 2 * log(1.25)**2) / 8; t of 8 degrees of freedom is 2.306.
    variance = (4 * 0.01**2 + 4 * math.log(1.25) ** 2) / 8
    assert math.log1p(rough.high) == pytest.approx(2.306 * math.sqrt(variance * 2 / 3), rel=1e-3)


def test_a_noisy_run_widens_its_interval() -> None:
    quiet, noisy = Side((100.0,), (0.0,)), Side((100.0,), (0.05,))
    wide, narrow = (difference(quiet, one, Spread(0.01, 4)) for one in (noisy, quiet))
    assert wide.high is not None
    assert narrow.high is not None
    assert wide.high > 2 * narrow.high


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
