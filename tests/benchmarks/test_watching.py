"""Faults that are planted in whole runs: what is told of them, and that each of their trainings runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.watching import planted
from benchmarks.watching.planted import Row, Said, Side

LEAK = Row(
    "growing_metric",
    Side(18.0, 0, {"training": 14.0}, (Said("growing_memory", None), Said("growing_steps", 4.0))),
    Side(13.0, 0, {"training": 9.5}, ()),
)
HEALTHY = Row("healthy", Side(13.0, 0, {"training": 9.5}, (Said("periodic_outliers", 0.5),)), None)


def test_a_fault_is_named_by_any_of_its_kinds_and_its_cost_is_held_against_the_clock() -> None:
    assert (planted.place(LEAK), planted.cost_s(LEAK), LEAK.truth_s, planted.grown_s(LEAK)) == (2, 4.0, 5.0, 4.5)
    (line,) = planted.faults([LEAK, HEALTHY]).splitlines()[2:]
    told = "| accuracy over all predictions so far | 5.0 s | number 2 | 4.0 s | -20% | 4.5 s | -10% |"
    assert line == told
    assert planted.in_short([LEAK, HEALTHY]) == "Of 1 planted faults 0 were named first, and 1 at all."


def test_both_controls_and_fixed_runs_are_without_a_fault() -> None:
    first, *_, last = planted.controls([LEAK, HEALTHY]).splitlines()
    assert first == "Of 2 runs without a fault, 1 had a finding:"
    assert last == "| evaluations and checkpoints | `periodic_outliers` (0.5 s) |"


def test_each_case_has_a_training_and_each_training_a_case() -> None:
    pytest.importorskip("torch")
    from benchmarks.watching import trainings

    assert [name for name, _ in trainings.cases()] == [case.name for case in planted.CASES]


@pytest.mark.slow
@pytest.mark.parametrize("bad", [True, False], ids=["bad", "fixed"])
@pytest.mark.parametrize("name", [case.name for case in planted.CASES if not case.restarts])
def test_trainings_run_in_small(name: str, bad: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from benchmarks.watching import trainings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainings, "VALIDATION_BATCHES", 1)
    made: Any = dict(trainings.cases())[name]
    monkeypatch.setattr(made, "epochs", 2)
    monkeypatch.setattr(made, "steps", 4)
    training = made(bad)
    training.run()
    assert training.number == 8
    assert training.loss.item() > 0
