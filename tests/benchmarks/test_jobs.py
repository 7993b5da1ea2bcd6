"""Jobs of several ranks with planted faults: their table is that of the published rows, and the rows are true."""

import gzip
import json
import re
import sys
from pathlib import Path

import pandas as pd
import pytest

import diagnose
from benchmarks import changed_ops, queries
from benchmarks.changed_ops import Said, published, table, trainings
from benchmarks.jobs import tables
from benchmarks.jobs.cases import CASES, FOLDER, Case
from benchmarks.jobs.judge import Row, judge
from benchmarks.jobs.truth import truths
from benchmarks.verdicts import Figure
from tests.exporting.synthetic import training

if sys.version_info < (3, 11):
    pytest.skip("planted cases need tomllib, which came with Python 3.11", allow_module_level=True)
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
    assert [row.case for row in tables.published()] == [case.name for case in CASES]
    faulty = [case for case in CASES if not case.healthy]
    assert len({case.name for case in CASES}) == len(CASES)
    assert len(faulty) >= 16
    assert len(CASES) - len(faulty) >= 6
    assert set(truths()) == {case.name for case in faulty}
    assert {path.name for path in FOLDER.iterdir() if (path / "manifest.json").exists()} == {one.name for one in KEPT}


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


UNNAMED = Said(None, False)


def op_row(name: str, true: Figure, by_measuring: Said, counts: bool = True) -> changed_ops.Row:
    return changed_ops.Row(name, true, counts, UNNAMED, by_measuring, ops=3, not_measured=1, seconds=2.0)


def test_the_table_has_what_is_true_and_what_is_said() -> None:
    rows = (
        op_row("a", Figure(2.0, 1.9, 2.1), Said(Figure(2.2, 1.8, 2.4), True)),
        op_row("b", Figure(4.0, 3.8, 4.2), Said(Figure(5.2, 4.4, 6.0), True)),
        op_row("c", Figure(1.0, 0.9, 1.1), Said(Figure(3.0, 2.0, 4.0), True), counts=False),
    )
    assert table(rows).splitlines()[2:] == [
        "| `a` | 2.00 (1.90 to 2.10) | 2.20 (1.80 to 2.40) | yes | not named | - | 3 of 4 |",
        "| `b` | 4.00 (3.80 to 4.20) | 5.20 (4.40 to 6.00) | no | not named | - | 3 of 4 |",
        "| **median error; range met** |  | 20% | 1 of 2 | - | 0 of 0 |  |",
    ]


def test_each_training_is_published_once() -> None:
    assert sorted(one.name for one in published().rows) == sorted(one.name for one in trainings())


def test_the_ops_that_find_an_empty_queue_are_counted(tmp_path: Path) -> None:
    """Of the two used steps: each matmul finds nothing before it, each pointwise kernel finds the matmul."""
    trace = training().write(tmp_path / "rank0.json")
    diagnose.export(trace, parquet=tmp_path / "tables", tables=["kernels"])
    printed = queries.output(queries.code("queue"), tmp_path)
    rows = [line.replace("│", " ").split() for line in printed.splitlines() if "aten::" in line]
    assert rows == [["aten::linear", "2", "2", "0.1"], ["aten::relu", "0", "2", "0.0"]]


def test_the_output_on_a_public_trace_is_a_real_one(corpus: Path) -> None:
    shown = [text for text in queries.texts(corpus) if text.block == "query-queue"]
    assert [one.current for one in shown] == [True]


def test_the_rank_with_the_least_time_in_collectives_is_the_one_that_computes_most(tmp_path: Path) -> None:
    _, recording = queries.SAMPLES["ranks"]
    diagnose.export(recording, parquet=tmp_path / "tables", tables=["collectives", "ops"])
    calls = pd.read_parquet(tmp_path / "tables" / "collectives").query("used")
    waiting = calls.groupby("rank")["dur_ns"].sum()
    assert waiting.idxmin() == 1  # As the sample was made.
