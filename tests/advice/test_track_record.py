"""What trials tell of a rule's predictions, on numbers whose answers follow by hand, and laws of corrections."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.advice.track_record import blended, by_rule, corrected, track_record
from diagnose.contracts.ledger import Entry
from diagnose.contracts.trials import Range, Verdict
from diagnose.replay.saving import Basis, Saving

GAINS = [0.20, 0.22, 0.24, 0.26, 0.28]
"""Predicted, of five runs: logarithms of speed-ups."""


def around(gain: float, half: float) -> Range:
    """A speed-up, within `half` of its logarithm."""
    return Range(math.exp(gain - half), math.exp(gain), math.exp(gain + half))


def entry(
    predicted: float | None = 0.2, measured: float | None = 0.2, half: float = 0.02, verdict: Verdict = "keep"
) -> Entry:
    """Gains as logarithms; a prediction is good for a tenth of itself."""
    return Entry(
        day="2026-11-26",
        rule="slow_part",
        tool_version="0.1.0",
        torch_version="2.13.0",
        device="A GPU",
        predicted=None if predicted is None else around(predicted, predicted / 10),
        measured=None if measured is None else around(measured, half),
        verdict=verdict,
    )


def test_a_prediction_held_if_the_likely_measurement_lies_within_it() -> None:
    """0.18 to 0.22: a measurement that reaches into it from outside does not help."""
    some = [entry(measured=gain) for gain in (0.17, 0.19, 0.2, 0.21, 0.23)]
    assert [track_record([one]).held for one in some] == [0, 1, 1, 1, 0]


def test_the_ratio_is_of_gains() -> None:
    """0.5, 1 and 1.2: the mean is 0.9; the interval is Student's of 99 %, 9.925 standard errors."""
    found = track_record([entry(0.2, 0.1), entry(0.3, 0.3), entry(0.25, 0.3)])
    assert (found.trials, found.measured, found.compared, found.held) == (3, 3, 3, 1)
    assert found.ratio_median == pytest.approx(1.0)
    error = math.sqrt((0.4**2 + 0.1**2 + 0.3**2) / 2 / 3)
    assert found.ratio is not None
    assert msgspec.structs.astuple(found.ratio) == pytest.approx(
        (0.9 - 9.925 * error, 0.9, 0.9 + 9.925 * error), abs=1e-3
    )
    assert found.factor is None


@pytest.mark.parametrize(
    "one",
    [
        entry(measured=None, verdict="inconclusive"),
        entry(measured=None, verdict="not_injected"),
        entry(verdict="changes_numbers"),
        entry(verdict="out_of_memory"),
        entry(verdict="not_injected"),
        entry(predicted=None),
        entry(predicted=0.0),
        entry(half=0.21),
    ],
    ids=["nothing measured", "not injected", "other numbers", "no memory", "void later", "bound", "no gain", "noise"],
)
def test_what_tells_nothing_is_counted_as_a_trial_alone(one: Entry) -> None:
    found = track_record([one] * 7)
    assert (found.trials, found.compared, found.held, found.ratio_median, found.ratio) == (7, 0, 0, None, None)


def test_a_fix_that_gained_nothing_or_was_slower_counts() -> None:
    """Noise is judged by the prediction: else only what went well would be left."""
    found = track_record([entry(0.2, 0.0, verdict="no_gain"), entry(0.3, -0.1, verdict="slower")])
    assert (found.compared, found.held) == (2, 0)
    assert found.ratio_median == pytest.approx((0 - 1 / 3) / 2)


def test_a_recording_that_is_tried_again_counts_once_as_it_was_measured_last() -> None:
    found = track_record([entry(0.2, 0.1), entry(0.3, 0.3), entry(0.2, 0.2), entry(0.2, half=1.0)])
    assert (found.trials, found.measured, found.compared, found.held) == (4, 4, 2, 2)


def test_five_that_agree_correct_and_four_do_not() -> None:
    some = [entry(gain, gain / 2) for gain in GAINS]
    assert track_record(some[:4]).factor is None
    factor = track_record(some).factor
    assert factor is not None
    assert msgspec.structs.astuple(factor) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize("ratios", [[1, 1, 1, 1, 1], [0.9, 1.1, 1, 0.95, 1.05], [0.4, 0.5, 0.9, 1.1, 1.3]])
def test_five_without_a_bias_correct_nothing(ratios: list[float]) -> None:
    found = track_record([entry(gain, gain * ratio) for gain, ratio in zip(GAINS, ratios, strict=True)])
    assert (found.compared, found.factor) == (5, None)


def test_what_never_gains_is_corrected_to_nothing_and_not_below() -> None:
    found = track_record([entry(gain, -gain / 10 - gain**2, verdict="slower") for gain in GAINS])
    assert found.ratio is not None
    assert found.ratio.high < 0
    assert found.factor == Range(0.0, 0.0, 0.0)


def test_trials_of_other_devices_do_not_count() -> None:
    """Also where the device is not known."""
    some = [entry(), msgspec.structs.replace(entry(), device="Another"), msgspec.structs.replace(entry(), device=None)]
    assert {rule: one.trials for rule, one in by_rule(some, "A GPU").items()} == {"slow_part": 1}
    assert by_rule(some, None) == {}


def test_a_correction_raises_what_is_left_to_a_power() -> None:
    """Of 100: 64 are left, and 80 of half the gain; 50.5 % would be 70.7."""
    found = corrected(Saving(19, 36, 51, Basis.REPLAYED), 100, Range(0.0, 0.5, 1.0))
    assert (found.low_ns, found.likely_ns, found.high_ns) == (0, 20, 51)


STEP_NS = 10**8
TIMES = st.lists(st.integers(0, STEP_NS), min_size=3, max_size=3).map(sorted)
POWERS = st.lists(st.floats(0, 5), min_size=3, max_size=3).map(sorted)


def of(times: list[int], powers: list[float]) -> tuple[int, int, int]:
    found = corrected(Saving(*times, Basis.REPLAYED), STEP_NS, Range(*powers))
    return found.low_ns, found.likely_ns, found.high_ns


@given(TIMES, POWERS)
def test_a_corrected_saving_is_one(times: list[int], powers: list[float]) -> None:
    low, likely, high = of(times, powers)
    assert 0 <= low <= likely <= high <= STEP_NS


@given(TIMES, TIMES, POWERS)
def test_a_correction_keeps_the_order_of_savings(some: list[int], others: list[int], powers: list[float]) -> None:
    less, more = (list(map(pick, zip(some, others, strict=True))) for pick in (min, max))
    assert all(one <= other for one, other in zip(of(less, powers), of(more, powers), strict=True))


@given(TIMES)
def test_a_correction_by_one_changes_nothing(times: list[int]) -> None:
    assert list(of(times, [1.0, 1.0, 1.0])) == times


def test_factors_are_blended_by_weight() -> None:
    assert blended([(3.0, Range(0, 0, 1)), (1.0, Range(1, 2, 3))]) == Range(0.25, 0.5, 1.5)
    assert blended([(0.0, Range(0, 0, 0))]) == Range(1, 1, 1)
