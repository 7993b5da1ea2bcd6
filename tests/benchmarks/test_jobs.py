"""Jobs of several ranks with planted faults: their table is that of the published rows, and the rows are true."""

import gzip
import json
import re
import sys

import pytest

if sys.version_info < (3, 11):
    pytest.skip("planted cases need tomllib, which came with Python 3.11", allow_module_level=True)

from benchmarks import texts
from benchmarks.jobs import tables
from benchmarks.jobs.cases import CASES, FOLDER, Case
from benchmarks.jobs.judge import Row, judge
from benchmarks.jobs.truth import truths

KEPT = [case for case in CASES if case.kept.is_dir()]


def row(
    bad: float, fixed: float | None, predicted: tuple[float, float, float] | None, place: int | None, promised: float
) -> Row:
    expected = () if fixed is None else ("ST01",)
    return Row("case", "title", 4, True, expected, 2 * bad, bad, fixed, ("ST01",), place, predicted, promised)


def test_what_is_predicted_is_compared_as_a_share_of_the_step() -> None:
    # 40 of 200 ms recorded are 20 %; 30 of 100 ms measured are 30 %.
    one = row(100.0, 70.0, (20.0, 40.0, 70.0), 1, 0.2)
    assert one.saved == pytest.approx(0.3)
    assert one.error == pytest.approx(0.1)
    assert one.in_range
    assert not row(100.0, 70.0, (20.0, 40.0, 50.0), 1, 0.2).in_range


def test_the_table_counts_what_it_says() -> None:
    rows = [
        row(100.0, 70.0, (20.0, 40.0, 70.0), 1, 0.2),
        row(100.0, 70.0, (50.0, 60.0, 70.0), 2, 0.3),
        row(100.0, 50.0, None, None, 0.0),
        row(100.0, None, None, None, 0.06),
        row(100.0, None, None, None, 0.04),
    ]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables.summary(rows).splitlines()[2:]]
    assert [line[1] for line in lines] == ["1 of 3", "2 of 3", "5.0%", "2 of 2", "1 of 2"]


def test_jobs_are_many_and_measured() -> None:
    faulty = [case for case in CASES if not case.healthy]
    assert len({case.name for case in CASES}) == len(CASES)
    assert len(faulty) >= 16
    assert len(CASES) - len(faulty) >= 6
    assert set(truths()) == {case.name for case in faulty}
    assert {path.name for path in FOLDER.iterdir() if (path / "manifest.json").exists()} == {one.name for one in KEPT}


def test_the_published_tables_are_those_of_the_published_rows() -> None:
    assert [table.case for table in tables.published()] == [case.name for case in CASES]
    published = [text for text in texts.texts() if text.block in ("jobs", "jobs-cases")]
    assert [table.block for table in published if not table.current] == []
    assert len(published) == 2


@pytest.mark.slow
@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.name)
def test_the_published_verdict_is_what_is_said_of_the_recording(case: Case) -> None:
    published = next(table for table in tables.published() if table.case == case.name)
    assert judge(case, truths().get(case.name)) == published


@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.name)
def test_a_recording_names_no_machine_and_no_path_on_it(case: Case) -> None:
    for path in case.kept.iterdir():
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
        assert not re.search(r"(?<![\w.])/(?:home|mnt|opt|root|tmp|Users|usr|var|work)/", text), path
        assert json.loads(text).keys().isdisjoint({"host_name", "traceName", "trace_id"})
