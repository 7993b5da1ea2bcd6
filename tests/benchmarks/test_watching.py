"""Faults that are planted in whole runs: what is told of them, and that each of their trainings runs."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.watching import against, planted, public_run
from benchmarks.watching.against import Cost, Published, Verdict
from benchmarks.watching.planted import Row, Said, Side
from diagnose.contracts.watched_run import RunPart, RunPartKind

METRIC = Row(
    "growing_metric",
    Side(18.5, {"within": 5.5}, 0, {"training": 14.0}, (Said("growing_memory", None), Said("growing_steps", 4.0))),
    Side(12.5, {"within": 0.5}, 0, {"training": 9.5}, ()),
)
RESTARTS = Row("restarts", Side(30.0, {}, 0, {"start": 9.0}, ()), Side(14.0, {}, 0, {"start": 3.0}, ()))
HEALTHY = Row("healthy", Side(13.0, {}, 0, {"training": 9.5}, (Said("periodic_outliers", 0.5),)), None)


def test_a_fault_is_named_by_any_of_its_kinds_and_its_cost_is_held_against_the_clock() -> None:
    assert (planted.place(METRIC), planted.cost_s(METRIC), METRIC.truth_s, planted.grown_s(METRIC)) == (
        2,
        4.0,
        5.0,
        4.5,
    )
    assert planted.faults([METRIC, RESTARTS, HEALTHY]).splitlines()[2:] == [
        "| accuracy over all predictions so far | 5.0 s | 6.0 s | number 2 | 4.0 s | -20% | 4.5 s | -10% |",
        "| killed twice, goes on from a checkpoint | 16.0 s | 16.0 s | no | - | - | 6.0 s | -62% |",
    ]
    assert planted.in_short([METRIC, RESTARTS, HEALTHY]) == "Of 2 planted faults 0 were named first, and 1 at all."


def test_both_controls_and_fixed_runs_are_without_a_fault() -> None:
    first, *_, last = planted.controls([METRIC, HEALTHY]).splitlines()
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


def test_a_stopwatch_goes_into_the_script_that_is_known_and_into_no_other() -> None:
    lines = "".join(f"{old}\n" for old, _ in public_run.CHANGES)
    timed = public_run.timed(lines)
    assert timed.startswith("import stopwatch\n")
    assert timed.count("stopwatch.") == len(public_run.CHANGES)
    with pytest.raises(ValueError, match=r"has 'losses = estimate_loss\(\)' 2 times"):
        public_run.timed(lines + public_run.CHANGES[0][0])


def test_parts_of_a_log_stand_beside_those_of_the_stopwatch() -> None:
    kinds = {RunPartKind.TRAINING: 45_000_000_000, RunPartKind.START: 3_520_000_000, RunPartKind.SAVE: 250_000_000}
    told = {"training": 50.0, "start": 3.2, "evaluation": 5.75, "save": 0.25}
    assert public_run.compared([RunPart(kind, ns, None) for kind, ns in kinds.items()], told).splitlines()[2:] == [
        "| training steps | 50.00 s | 45.00 s | -10.0% |",
        "| start-up | 3.20 s | 3.52 s | +10.0% |",
        "| evaluation | 5.75 s | 0.00 s | -100.0% |",
        "| checkpoints | 0.25 s | 0.25 s | +0.0% |",
    ]


def test_verdicts_of_another_tool_stand_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "planted", lambda: (METRIC, RESTARTS, HEALTHY))
    verdicts = (
        Verdict("growing_metric", "RESIDUAL_HEAVY", "crit", "Residual took 40 %.", ()),
        Verdict("long_pause", "COMPUTE_BOUND", "info", "Compute took 95 %.", ()),
        Verdict("healthy", "COMPUTE_BOUND", "info", "Compute took 95 %.", ()),
    )
    costs = (Cost("alone", (300.0, 310.0, 305.0), (200.0, 210.0, 190.0)), Cost("TraceML", (400.0,), (270.4,)))
    assert against.faults(Published(verdicts, costs)).splitlines()[2:] == [
        "| accuracy over all predictions so far | number 2 | yes | RESIDUAL_HEAVY (crit) |",
        "| one pause of 5 s in a step | - | no | COMPUTE_BOUND (info) |",
        "",
        "TraceML's verdicts without a fault: evaluations and checkpoints: COMPUTE_BOUND.",
    ]
    assert against.cost(Published(verdicts, costs)).splitlines()[2:] == [
        "| alone | 305 µs | 200 µs | - |",
        "| TraceML | 400 µs | 270 µs | 70 µs |",
    ]
