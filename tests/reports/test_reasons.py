"""The sum behind a saving, in sentences: each number is that of the finding."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding, ReplayQuality
from diagnose.replay.saving import Basis
from diagnose.replay.shown import Change, ChangeKind
from diagnose.reports.findings import changes, formula
from tests.reports.drawn import waiting_for_data


@pytest.fixture
def diagnosed(tmp_path: Path) -> Diagnosis:
    found = waiting_for_data(tmp_path)
    return replace(found, replay=ReplayQuality(step_time_ns=100_000_000, error_share=0.0, unexplained_share=0.0))


def saving(diagnosed: Diagnosis, low: float, likely: float, high: float, *steps: float) -> RankedFinding:
    """A finding that saves so many ms, and leaves the step so long: low, likely, high."""
    replayed = [round(ms * 1e6) for ms in steps]
    priced = replace(
        diagnosed.findings[0].saving,
        low_ns=round(low * 1e6),
        likely_ns=round(likely * 1e6),
        high_ns=round(high * 1e6),
        basis=Basis.REPLAYED,
        replayed_ns=(replayed[0], replayed[1], replayed[2]),
    )
    return replace(diagnosed.findings[0], saving=priced)


def test_the_sum_is_the_recorded_step_less_the_replayed_one(diagnosed: Diagnosis) -> None:
    one = saving(diagnosed, 10, 20, 30, 90, 80, 70)
    assert formula(one, diagnosed) == [
        "The replayed step takes 100 ms; with that change, 80.0 ms (low estimate: 90.0 ms, high: 70.0 ms).",
        "100.000 ms - 80.000 ms = 20.000 ms saved.",
    ]


def test_a_bound_may_be_nothing(diagnosed: Diagnosis) -> None:
    doubtful = replace(diagnosed, replay=replace(diagnosed.replay, unexplained_share=0.12))
    one = saving(diagnosed, 8.8, 20, 33.6, 90, 80, 70)
    bound = replace(one, saving=replace(one.saving, low_ns=0, basis=Basis.BOUNDED))
    assert formula(bound, doubtful)[2:] == [
        "The replay leaves 12.0 % of this recording unexplained: the saving may also be 0."
    ]


def test_savings_of_the_step_without_the_profiler_say_so(diagnosed: Diagnosis) -> None:
    alone = replace(diagnosed, steps=replace(diagnosed.steps, unprofiled_step_time_ns=50_000_000))
    assert formula(saving(diagnosed, 5, 10, 15, 90, 80, 70), alone)[2:] == ["Of the step of 50.0 ms that is 10.0 ms."]


def test_what_was_not_replayed_has_no_sum(diagnosed: Diagnosis) -> None:
    one = diagnosed.findings[0]
    assert formula(replace(one, saving=replace(one.saving, replayed_ns=None)), diagnosed) == []
    assert formula(one, replace(diagnosed, replay=None)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            Change(ChangeKind.SHORTEN, 6, 2_000_000, (0.8, 0.5, 0.1)),
            "2 operations or calls a step, 2.00 ms together, made shorter: 50.0 % of their time is left"
            " (low saving: 80.0 %, high: 10.0 %).",
        ),
        (
            Change(ChangeKind.REPLACE, 3, 1_000_000, (0.5, 0.5, 0.5)),
            "1 operations or calls a step, 1.00 ms together, joined into fewer: 50.0 % of their time is left.",
        ),
        (
            Change(ChangeKind.REMOVE, 4, 1_000, (0.0, 0.0, 0.0)),
            "1.3 operations or calls a step, 1.00 us together, taken away.",
        ),
        (
            Change(ChangeKind.DETACH, 3, 5_000_000, None),
            "1 operations or calls a step, 5.00 ms together, waited for by nobody any more.",
        ),
    ],
)
def test_what_was_changed_is_said_per_step(diagnosed: Diagnosis, change: Change, said: str) -> None:
    assert diagnosed.steps.used == 3
    assert changes(replace(diagnosed.findings[0], changes=(change,)), diagnosed) == [said]


def test_what_changes_nothing_in_the_used_steps_is_left_out(diagnosed: Diagnosis) -> None:
    nothing = Change(ChangeKind.REMOVE, 0, 0, (0.0, 0.0, 0.0))
    assert changes(replace(diagnosed.findings[0], changes=(nothing,)), diagnosed) == []
