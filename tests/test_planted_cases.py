"""The planted cases: each says what it is, its recordings show it and nothing private; and how often we are right."""

import gzip
import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from diagnose.rulekit.page import built_in_rules, files

if sys.version_info < (3, 11):
    pytest.skip("tomllib came with Python 3.11", allow_module_level=True)

from benchmarks import accuracy, accuracy_tables
from benchmarks.blocks import _number, truth_of, warm_up
from benchmarks.ground_truth import _recordings
from benchmarks.planted_cases import LEVELS, REMADE, Case, Machine, Trial, cases, trials
from benchmarks.verdicts import Accuracy, Figure, Poorer, Row, place_of

CASES = cases()
ABSOLUTE_PATH = re.compile(r"(?<![\w.])/(?:home|mnt|opt|root|tmp|Users|usr|var|work)/")
RECORDED = [trial for trial in trials(CASES) if trial.is_kept and trial.recording.is_dir()]
FIXED = [trial for trial in trials(CASES) if trial.fixed_is_kept and trial.fixed_recording.is_dir()]


def named(some: Case | Trial) -> str:
    return some.name if isinstance(some, Case) else f"{some.case.name}-{some.name}"


def at(folder: Path) -> str:
    return f"{folder.parent.name}-{folder.name}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_case_says_what_it_is(case: Case) -> None:
    rules = {path.stem for path in files(built_in_rules())}
    assert rules >= {*case.expected, *(rule for named in case.faults.values() for rule in named)}
    assert case.kind in ("structural", "kernel", "mixed", "control")
    assert bool(case.fixed) == (not case.is_control)
    assert (len(case.faults) > 1) == (case.kind == "mixed")
    assert not (case.expected and (case.is_control or case.faults))
    assert case.needs
    assert set(case.needs) <= {"cpu", "gpu", "gloo", "nccl"}


@pytest.mark.parametrize("case", [case for case in CASES if case.expected], ids=named)
def test_a_case_is_in_the_folder_of_a_rule_that_names_it(case: Case) -> None:
    families = {path.stem: path.parent.name for path in files(built_in_rules())}
    assert case.family in {families[rule] for rule in case.expected}


def test_ids_are_given_once() -> None:
    assert len({case.id for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_case_is_measured_at_all_levels_where_it_was_tried_and_keeps_one_recording(case: Case) -> None:
    """The medium one if its fix surely gains something, else the strong one; none if that gains nothing either."""
    truths = {trial.level: trial.truth() for trial in trials([case]) if not trial.on_gpu}
    assert case.is_control or None not in truths.values()
    counts = [level for level, truth in truths.items() if case.is_control or (truth and truth.counts)]
    best = "strong" if "strong" in counts and "medium" not in counts else "medium"
    assert [level for level in LEVELS if level in case.recordings] == [best]
    recorded = {folder.name for folder in case.folder.iterdir() if folder.is_dir() and folder.name != "__pycache__"}
    assert {name.removeprefix("gpu_") for name in recorded} <= {*case.recordings}
    if best in counts:
        assert recorded >= {*case.recordings}


def program(case: Case) -> ModuleType:
    pytest.importorskip("torch")
    return importlib.import_module(case.module)


@pytest.mark.slow
@pytest.mark.parametrize("trial", RECORDED, ids=named)
def test_a_recording_shows_what_is_planted(trial: Trial) -> None:
    program(trial.case).verify(trial.recording / "rank0.trace.json.gz")


@pytest.mark.slow
@pytest.mark.parametrize("trial", FIXED, ids=named)
def test_a_recording_without_the_fault_does_not_show_it(trial: Trial) -> None:
    with pytest.raises(AssertionError):
        program(trial.case).verify(trial.fixed_recording / "rank0.trace.json.gz")


@pytest.mark.slow
@pytest.mark.parametrize("folder", [one.recording for one in RECORDED] + [one.fixed_recording for one in FIXED], ids=at)
def test_a_recording_names_no_machine_and_no_path_on_it(folder: Path) -> None:
    for path in folder.iterdir():
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
        assert not ABSOLUTE_PATH.search(text), path
        assert json.loads(text).keys().isdisjoint({"host_name", "traceName", "trace_id"})


def test_steps_count_once_the_last_ten_are_alike() -> None:
    steady = [100] * 60
    assert warm_up(steady) == 10
    assert warm_up([1000] * 5 + steady) == 15
    assert warm_up([100, 300] * 30) == 30


def test_a_speed_up_is_the_median_of_pairs_with_its_interval() -> None:
    machine = Machine("x86_64", 2, 0.5, "2.13.0")
    alike = truth_of([200] * 5, [100] * 5, machine)
    assert (alike.speedup, alike.low, alike.high, alike.counts) == (2.0, 2.0, 2.0, True)
    # Pairs of 1.0, 1.1, 1.2, 1.3 and 1.4: the median of five drawn from them is hardly ever the largest.
    mixed = truth_of([100, 110, 120, 130, 140], [100] * 5, machine)
    assert mixed.machine == machine
    assert mixed.speedup == pytest.approx(1.2)
    assert (mixed.low, mixed.high, mixed.counts) == (pytest.approx(1.0), pytest.approx(1.4), False)


@pytest.mark.slow
def test_we_are_no_less_right_than_is_published() -> None:
    now, before = accuracy.accuracy(with_poorer=False), accuracy.published()
    for some, others in ((now.rows, before.rows), (now.fixed_runs, before.fixed_runs), (now.joints, before.joints)):
        assert [(one.case, one.trial) for one in some] == [(one.case, one.trial) for one in others]
    for one, other in zip(now.rows, before.rows, strict=True):
        assert one.measured == other.measured
        if other.place is not None:
            assert one.place is not None, one.case
            assert one.place <= other.place, one.case
        if one.measured is None:
            assert one.promised <= max(other.promised, accuracy_tables.LARGE), one.case
    for unblamed, was in zip(now.fixed_runs, before.fixed_runs, strict=True):
        assert unblamed.promised <= max(was.promised, accuracy_tables.LARGE), unblamed.case
    errors = [float(np.median(np.abs(accuracy_tables.errors(some.rows)))) for some in (now, before)]
    assert errors[0] <= errors[1] + 0.01


def test_a_fault_has_one_row_for_each_kind_of_device() -> None:
    rows = [(row.case, row.trial.startswith("gpu_")) for row in accuracy.published().rows]
    assert len(set(rows)) == len(rows)


def test_every_round_of_new_cases_begins_with_a_fault_of_its_own() -> None:
    cases = list(dict.fromkeys(row.case for row in accuracy.first_look().rows))
    starts = [cases.index(name) for name in accuracy_tables.ROUNDS]
    assert starts == sorted(set(starts))
    assert starts[0] == 0


def test_a_first_look_stays_and_is_of_new_cases_only() -> None:
    old, seen, new = (Accuracy((replace(row(2.0, 1.5), case=name),), (), ()) for name in ("old", "seen", "new"))
    found = Accuracy((*old.rows, replace(seen.rows[0], place=2), *new.rows), (), ())
    assert accuracy.looked_at(found, before=seen, known=old).rows == (*seen.rows, *new.rows)
    assert accuracy.looked_at(found, before=seen, known=found).rows == seen.rows


def test_the_first_look_is_shown_of_the_recordings_that_are_shown() -> None:
    levels = [replace(row(2.0, 1.5), trial=level) for level in LEVELS]
    found, first = Accuracy((levels[1],), (), ()), Accuracy(tuple(levels), (), ())
    assert accuracy.first_look_at(found, first).rows == (levels[1],)
    assert accuracy.first_look_at(found, Accuracy((levels[0], levels[2]), (), ())).rows == (levels[2],)


def test_faults_are_fixed_by_name_or_all_together() -> None:
    torch = pytest.importorskip("torch")
    harness = importlib.import_module("sample_traces.harness")
    runs = [harness.Run("strong", 1, torch.device("cpu"), fixed) for fixed in (None, frozenset(), frozenset({"a"}))]
    assert [run.fixed for run in runs] == [False, True, True]
    assert [[run.fixes(fault) for fault in "ab"] for run in runs] == [[False, False], [True, True], [True, False]]


def test_a_driver_that_does_not_know_a_number_says_something_else() -> None:
    assert [_number(text) for text in ("700.00", "[N/A]", "")] == [700.0, None, None]


def test_a_speed_up_is_of_what_is_left() -> None:
    assert accuracy.speedup(100, 20) == 1.25
    assert accuracy.speedup(100, 100) == 100


def test_the_first_that_names_an_expected_rule_has_the_place() -> None:
    said = [("dataloader_starvation",), ("scalar_syncs", "launch_bound"), ("launch_bound",)]
    assert place_of(("launch_bound",), said) == 2
    assert place_of(("blocking_launches", "launch_bound"), said) == 2
    assert place_of(("blocking_launches",), said) is None
    assert place_of((), said) is None


def test_subsets_of_faults_are_all_short_of_all() -> None:
    case = replace(CASES[0], faults={"b": (), "a": (), "c": ()})
    assert case.subsets == [("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c")]


def test_the_level_of_all_cases_comes_first_that_is_kept_of_most() -> None:
    levels = [trial.level for trial in trials(CASES)]
    assert levels == sorted(levels, key=["medium", "strong", "weak"].index)


def test_what_is_not_kept_is_made_outside_of_the_samples() -> None:
    case = replace(CASES[0], recordings=("medium", "strong_fixed"))
    medium, strong = (Trial(case, False, level) for level in ("medium", "strong"))
    assert list(_recordings(medium, all_levels=False)) == [(case.folder / "medium", False)]
    assert list(_recordings(strong, all_levels=False)) == [(case.folder / "strong_fixed", True)]
    assert list(_recordings(strong, all_levels=True)) == [
        (REMADE / case.name / "strong", False),
        (case.folder / "strong_fixed", True),
    ]
    assert "/build/" in (REMADE.parent.parent / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_a_part_is_decided_by_the_id_alone() -> None:
    """SHA-256 of "D01" begins with 77, which is odd, of "D02" with f2."""
    parts = {case.id: accuracy.part_of(case) for case in CASES}
    assert (parts["D01"], parts["D02"]) == ("develop", "report")


def row(measured: float | None, predicted: float | None, place: int | None = 1, promised: float = 0.0) -> Row:
    return Row(
        case="case",
        trial="strong",
        family="data_loading",
        kind="structural",
        part="report",
        found=(),
        promised=promised,
        place=place,
        measured=None if measured is None else Figure(measured, measured - 0.1, measured + 0.1),
        noise=None if measured is None else 0.02,
        predicted=None if predicted is None else Figure(predicted, predicted - 0.05, predicted + 0.05),
        summed=predicted,
        regret=None if measured is None else 0.0,
        largest_place=2,
        patterns_place=None,
        patterns=None,
    )


def test_errors_are_of_speed_ups_that_were_both_predicted_and_measured() -> None:
    rows = [row(2.0, 1.5), row(1.0, 1.1), row(2.0, None, place=None), row(None, None, place=None)]
    assert accuracy_tables.errors(rows).tolist() == pytest.approx([-0.25, 0.1])
    # Two thirds of the step were said to be left where a half was, and 10 of 11 parts where all of it was.
    assert accuracy_tables.errors_left(rows).tolist() == pytest.approx([2 / 1.5 - 1, 1 / 1.1 - 1])
    # 1.9 to 2.1 against 1.45 to 1.55; 0.9 to 1.1 against 1.05 to 1.15.
    assert [accuracy_tables.covers(one) for one in rows] == [False, True, False, False]


def test_the_tables_count_what_they_say() -> None:
    rows = (row(2.0, 1.5), row(2.0, 2.0, place=3), row(2.0, None, place=None), row(None, None, None, promised=0.06))
    text = accuracy_tables.naming(Accuracy(rows, (), ()), Accuracy(rows[:2], (), ()))
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert lines[2] == ["the fault is named first", "1 of 2", "1 of 3", "0 of 0", "1 of 3", "0 of 3", "0 of 0"]
    assert lines[3] == ["among the first three", "2 of 2", "2 of 3", "0 of 0", "2 of 3", "3 of 3", "0 of 0"]
    # (1 + 1/3 + 0) / 3, and a half of each.
    assert lines[4] == ["mean reciprocal rank", "0.67", "0.44", "0.00", "0.44", "0.50", "0.00"]
    assert lines[5][1:5] == ["0 of 0", "1 of 1", "0 of 0", "1 of 1"]


def test_what_hangs_on_a_recording_is_counted() -> None:
    less = [Poorer("case", "strong", "detail", place, 0.0, False) for place in (1, 2, 4, None)]
    less.append(Poorer("healthy", "strong", "detail", None, 0.06, True))
    text = accuracy_tables.poorer(Accuracy((), (), (), tuple(less)))
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert lines[3] == ["stacks and shapes", "1 of 4", "2 of 4", "1 of 1"]
    assert lines[2] == ["nothing", "0 of 0", "0 of 0", "0 of 0"]
