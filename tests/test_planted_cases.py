"""The planted cases: each says what it is, its recordings show it and nothing private; and how often we are right."""

from __future__ import annotations

import gzip
import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from diagnose.page import built_in_rules

if sys.version_info < (3, 11):
    pytest.skip("tomllib came with Python 3.11", allow_module_level=True)

from benchmarks import accuracy
from benchmarks.planted_cases import LEVELS, Case, cases, truth_of, warm_up

README = Path(__file__).parent.parent / "README.md"
CASES = cases()
ABSOLUTE_PATH = re.compile(r"(?<![\w.])/(?:home|mnt|opt|root|tmp|Users|usr|var|work)/")
RECORDED = [(case, level) for case in CASES for level in LEVELS if case.recording(level).is_dir()]


def named(case: Case | str) -> str:
    return case.name if isinstance(case, Case) else case


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_case_says_what_it_is(case: Case) -> None:
    rules = {path.stem for path in built_in_rules().glob("*.py")}
    assert set(case.expected) <= rules
    assert bool(case.expected) == (case.kind != "control") == bool(case.fixed)
    assert case.kind in ("structural", "kernel", "control")
    assert set(case.needs) <= {"cpu", "gpu", "gloo", "nccl"}
    assert [level for _, level in RECORDED if _ == case] == list(LEVELS)


def test_ids_are_given_once() -> None:
    assert len({case.id for case in CASES}) == len(CASES)


@pytest.mark.parametrize(("case", "level"), RECORDED, ids=named)
def test_a_recording_shows_what_is_planted(case: Case, level: str) -> None:
    pytest.importorskip("torch")
    program = importlib.import_module(f"sample_traces.{case.name}.make")
    program.verify(case.recording(level) / "rank0.trace.json.gz")


@pytest.mark.parametrize(("case", "level"), RECORDED, ids=named)
def test_a_recording_names_no_machine_and_no_path_on_it(case: Case, level: str) -> None:
    for path in case.recording(level).iterdir():
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
        assert not ABSOLUTE_PATH.search(text), path
        assert json.loads(text).keys().isdisjoint({"host_name", "traceName"})


def test_steps_count_once_the_last_ten_are_alike() -> None:
    steady = [100] * 60
    assert warm_up(steady) == 10
    assert warm_up([1000] * 5 + steady) == 15
    assert warm_up([100, 300] * 30) == 30


def test_a_speed_up_is_the_median_of_pairs_with_its_interval() -> None:
    alike = truth_of([200] * 5, [100] * 5)
    assert (alike.speedup, alike.low, alike.high, alike.counts) == (2.0, 2.0, 2.0, True)
    # Pairs of 1.0, 1.1, 1.2, 1.3 and 1.4: the median of five drawn from them is hardly ever the largest.
    mixed = truth_of([100, 110, 120, 130, 140], [100] * 5)
    assert mixed.speedup == pytest.approx(1.2)
    assert (mixed.low, mixed.high, mixed.counts) == (pytest.approx(1.0), pytest.approx(1.4), False)


def published() -> list[accuracy.Row]:
    return [accuracy.Row(**{**row, "found": tuple(row["found"])}) for row in json.loads(accuracy.ROWS.read_text())]


def test_we_are_no_less_right_than_is_published() -> None:
    now, before = accuracy.rows(), published()
    assert [(one.case, one.level) for one in now] == [(one.case, one.level) for one in before]
    for one, other in zip(now, before, strict=True):
        assert one.measured == other.measured
        if other.place is not None:
            assert one.place is not None, one.case
            assert one.place <= other.place, one.case
        if one.measured is None:
            assert one.largest <= max(other.largest, accuracy.LARGE), one.case
    errors = [float(np.median(np.abs(accuracy.errors(rows, "predicted")))) for rows in (now, before)]
    assert errors[0] <= errors[1] + 0.01


def test_the_published_table_is_that_of_the_published_rows() -> None:
    text = README.read_text(encoding="utf-8").split(accuracy.MARKS[0])[1].split(accuracy.MARKS[1])[0]
    assert text == accuracy.table(published())


def test_sums_of_durations_leave_out_what_stays() -> None:
    assert accuracy.speedup(100, 20) == 1.25
    assert accuracy.speedup(100, 100) == 100
