"""`diagnose export` as users run it: files of Parquet, whole or none, and sentences where that cannot be."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

import diagnose
from diagnose.cli import group
from diagnose.exporting import tables
from diagnose.exporting.tables import TABLES
from diagnose.facts.core.base import Facts
from diagnose.source import processes
from tests.cli.invoking import refused, run
from tests.drawing import Drawing
from tests.exporting.synthetic import HOSTILE, training
from tests.test_secrets import TOKEN, planted

ROOT = Path(__file__).parents[2]
RANKS = ROOT / "sample_traces" / "planted" / "ranks" / "one_rank_computes_more" / "medium"
RECORD = "diagnose-export.json"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return training().write(tmp_path / "rank0.json")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Ranks 0 to 2 of 3."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(3):
        training(distributedInfo={"rank": rank, "world_size": 3}).write(folder / f"{'cab'[rank]}.json")
    return folder


def invoked(*words: object) -> Result:
    return CliRunner().invoke(group, ["export", *map(str, words)])


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_all_tables_that_can_be_made_are_written(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "tables"
    assert invoked(trace, "--parquet", out).exit_code == 0
    assert {path.parent.name for path in out.glob("*/rank0.parquet")} == set(TABLES) - {"syncs", "memory"}


def test_pandas_reads_back_what_was_made(trace: Path, tmp_path: Path) -> None:
    invoked(trace, "--parquet", tmp_path / "t")
    kernels = pd.read_parquet(tmp_path / "t" / "kernels")
    assert kernels["queue_depth"].tolist() == [0, 1, 0, 1, 0, 1]
    assert kernels["registers"].isna().all()
    assert kernels["dur_ns"].dtype == "Int64"
    assert parquet.read_metadata(tmp_path / "t" / "kernels" / "rank0.parquet").num_rows == 6


def test_files_of_ranks_have_columns_of_the_same_types(tmp_path: Path) -> None:
    """Whatever is in them: some read the types of all from the first."""
    folder = tmp_path / "job"
    folder.mkdir()
    training(distributedInfo={"rank": 0}).write(folder / "a.json")
    Drawing(distributedInfo={"rank": 1}).op("aten::mm", 0, 9).launch("k", (1, 2), (3, 4)).write(folder / "b.json")
    assert invoked(folder, "--parquet", tmp_path / "t").exit_code == 0
    for table in ("kernels", "copies", "collectives", "ops", "spans", "tracks", "links"):
        first, second = (parquet.read_schema(tmp_path / "t" / table / f"rank{rank}.parquet") for rank in range(2))
        assert first.equals(second), table


def test_it_says_what_it_wrote_and_what_was_not_recorded(trace: Path, tmp_path: Path) -> None:
    done = invoked(trace, "--parquet", tmp_path / "t", "--table", "kernels,steps", "--table", "memory")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (
        "2 tables of rank 0:\n"
        "  steps    3 rows\n"
        "  kernels  6 rows\n"
        "\n"
        "Not recorded:\n"
        "  memory: memory events. Record with profile_memory=True, or diagnose profile --memory.\n"
    )
    assert files(tmp_path / "t") == [RECORD, "kernels/rank0.parquet", "steps/rank0.parquet"]
    told = json.loads((tmp_path / "t" / RECORD).read_text())
    assert told["rows"] == {"steps": 3, "kernels": 6}
    assert told["absent"] == ["memory: memory events. Record with profile_memory=True, or diagnose profile --memory."]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_each_rank_has_a_file_with_its_number(
    job: Path, tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "POOL_BYTES", 0)
    assert invoked(job, "--parquet", tmp_path / "t", "--jobs", jobs, "--table", "kernels").exit_code == 0
    assert files(tmp_path / "t") == [RECORD, *(f"kernels/rank{rank}.parquet" for rank in range(3))]
    every = pd.read_parquet(tmp_path / "t" / "kernels")
    assert every.groupby("rank").size().to_dict() == {0: 6, 1: 6, 2: 6}
    for rank in range(3):
        assert (pd.read_parquet(tmp_path / "t" / "kernels" / f"rank{rank}.parquet")["rank"] == rank).all()


def test_ranks_that_files_do_not_tell_are_their_places(tmp_path: Path) -> None:
    """As in an analysis: `b` is rank 1, so `a` is 0 and `c` is 2."""
    (tmp_path / "job").mkdir()
    for name, header in (("a", {}), ("b", {"distributedInfo": {"rank": 1}}), ("c", {})):
        training(**header).write(tmp_path / "job" / f"{name}.json")
    assert invoked(tmp_path / "job", "--parquet", tmp_path / "t", "--table", "ranks").exit_code == 0
    found = pd.read_parquet(tmp_path / "t" / "ranks")
    assert dict(zip(found["rank"], found["file"], strict=True)) == {0: "a.json", 1: "b.json", 2: "c.json"}


@pytest.mark.slow
def test_findings_are_those_of_the_analysis(tmp_path: Path) -> None:
    invoked(RANKS, "--parquet", tmp_path / "t", "--table", "findings")
    found = diagnose.analyze(RANKS)
    assert files(tmp_path / "t") == [RECORD, f"findings/rank{found.rank}.parquet"]
    rows = pd.read_parquet(tmp_path / "t" / "findings")
    assert rows["rule"].tolist() == [finding.rule for finding in found.findings]
    assert rows["saving_ns"].tolist() == [finding.saving.likely_ns for finding in found.findings]


def test_findings_that_could_not_be_looked_for_are_no_empty_table(tmp_path: Path) -> None:
    """Annotations alone: nothing that a step could be made of."""
    Drawing().span("user_annotation", "mine", 0, 9).write(tmp_path / "a.json")
    done = invoked(tmp_path / "a.json", "--parquet", tmp_path / "t", "--table", "findings,spans")
    assert done.exit_code == 0
    assert "  findings: no step can be simulated. Run diagnose analyze to see why.\n" in done.stdout
    assert files(tmp_path / "t") == [RECORD, "spans/rank0.parquet"]


def test_python_writes_the_same(trace: Path, tmp_path: Path) -> None:
    written = diagnose.export(trace, parquet=tmp_path / "a", tables=["steps"])
    assert written.rows == {"steps": 3}
    invoked(trace, "--parquet", tmp_path / "b", "--table", "steps")
    assert pd.read_parquet(tmp_path / "a" / "steps").equals(pd.read_parquet(tmp_path / "b" / "steps"))
    with pytest.raises(ValueError, match="There is no table step"):
        diagnose.export(trace, parquet=tmp_path / "c", tables=["step"])


def test_an_earlier_export_is_replaced(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "t"
    invoked(trace, "--parquet", out, "--table", "kernels,steps")
    (out / ".unfinished-left").mkdir()
    (out / ".unfinished-left" / "half.parquet").write_text("half")
    assert invoked(trace, "--parquet", out, "--table", "ops").exit_code == 0
    assert files(out) == [RECORD, "ops/rank0.parquet"]


@pytest.mark.parametrize("other", ["notes.txt", "kernels/notes.txt", "kernels/rank0.parquet"])
def test_a_folder_with_other_files_is_refused_and_stays(trace: Path, tmp_path: Path, other: str) -> None:
    """The last: tables without the record of an export may be anybody's."""
    out = tmp_path / "t"
    (out / other).parent.mkdir(parents=True)
    (out / other).write_text("mine")
    refused(run("export", trace, "--parquet", out), f"{out} has other files. Name a new folder")
    assert files(out) == [other]


def test_other_files_within_an_export_are_never_removed(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "t"
    invoked(trace, "--parquet", out, "--table", "steps")
    (out / "steps" / "notes.txt").write_text("mine")
    refused(run("export", trace, "--parquet", out), "has other files")
    assert files(out) == [RECORD, "steps/notes.txt", "steps/rank0.parquet"]


def test_a_place_that_is_no_folder_is_refused(trace: Path, tmp_path: Path) -> None:
    refused(run("export", trace, "--parquet", trace), f"Cannot write to {trace}: File exists. Choose another folder.")
    refused(run("export", trace, "--parquet", trace / "t"), "Cannot write to", "Not a directory")
    refused(run("export", trace, "--parquet", "https://example.com/t"), "diagnose cannot write to web servers")


def test_what_cannot_be_read_leaves_nothing(trace: Path, tmp_path: Path) -> None:
    """A table that there is not, a trace that is none, a folder of such."""
    (tmp_path / "job").mkdir()
    broken = tmp_path / "job" / "a.json"
    broken.write_text("no trace")
    for words, said in (
        ((trace, "--table", "kernel"), ("There is no table kernel.", "spans")),
        ((broken,), ("is not a profiler trace",)),
        ((broken.parent,), ("a.json is not a profiler trace",)),
    ):
        refused(run("export", *words, "--parquet", tmp_path / "t"), *said)
        assert not (tmp_path / "t").exists()


def test_without_pyarrow_it_says_what_to_install(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = invoked(trace, "--parquet", tmp_path / "t")
    assert done.exit_code == 1  # Of click's runner; the program's own is 2.
    assert "pip install 'torch-diagnose[parquet]'" in done.stderr
    assert not (tmp_path / "t").exists()


def test_a_damaged_file_of_a_folder_is_left_out_and_named(job: Path, tmp_path: Path) -> None:
    (job / "d.json").write_text("no trace")
    done = run("export", job, "--parquet", tmp_path / "t", "--table", "steps")
    assert done.returncode == 0
    assert "d.json is not a profiler trace" in done.stderr
    assert len(files(tmp_path / "t")) == 4
    assert "d.json is not a profiler trace" in json.loads((tmp_path / "t" / RECORD).read_text())["notes"][-1]


def test_a_rank_on_which_we_fail_is_left_out_and_named(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(facts: Facts, names: object) -> Iterator[object]:
        if facts.rank.provenance.rank != 1:
            raise ZeroDivisionError
        yield from really(facts, ["steps"])

    really = tables.made
    monkeypatch.setattr(tables, "made", fail)
    monkeypatch.delenv("DIAGNOSE_DEBUG")
    done = invoked(job, "--parquet", tmp_path / "t", "--table", "steps")
    assert done.exit_code == 0
    assert files(tmp_path / "t") == [RECORD, "steps/rank1.parquet"]
    assert done.stderr.count("diagnose itself failed on ") == 2
    assert "(ZeroDivisionError). Please report it." in done.stderr


def test_an_export_beside_its_traces_is_no_trace(job: Path) -> None:
    assert invoked(job, "--parquet", job / "tables", "--table", "steps").exit_code == 0
    again = run("export", job, "--parquet", job / "tables", "--table", "steps")
    assert (again.returncode, again.stderr) == (0, "")


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_leaves_the_earlier_export(trace: Path, tmp_path: Path) -> None:
    """No file may grow beyond a few hundred bytes: what a full disk does to the writer."""
    out = tmp_path / "t"
    invoked(trace, "--parquet", out, "--table", "steps")
    before = (out / "steps" / "rank0.parquet").read_bytes()
    done = subprocess.run(
        [sys.executable, "-B", "-m", "diagnose", "export", str(trace), "--parquet", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)),
    )
    refused(done, f"Cannot write to {out}: File too large. Choose another folder.")
    assert files(out) == [RECORD, "steps/rank0.parquet"]
    assert (out / "steps" / "rank0.parquet").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interruption_leaves_no_half_file(tmp_path: Path, jobs: str) -> None:
    """Files are large enough for processes of their own, which are interrupted as well, as by a terminal.
    The first process stops where it has begun to write its first file, while the second has not got beyond its start.
    """
    for rank in range(3):
        training(distributedInfo={"rank": rank}, padding="x" * 2_000_000).write(tmp_path / f"r{rank}.json")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import pathlib, sys, time\nfrom pyarrow import parquet\n"
        "parquet.ParquetWriter.write_table = lambda *ignored, **named: time.sleep(600)\n"
        "if '--multiprocessing-fork' in sys.orig_argv:\n"
        "    try:\n        pathlib.Path(__file__).with_name('first').mkdir()\n"
        "    except FileExistsError:\n        time.sleep(600)\n"
    )
    out = tmp_path / "t"
    words = [sys.executable, "-m", "diagnose", "export", str(tmp_path), "--parquet", str(out), "--jobs", jobs]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), os.environ["PYTHONPATH"]])}
    given: dict[str, Any] = {"env": environment, "stderr": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen(words, cwd=ROOT, **given) as process:
        while not list(out.glob(".unfinished-*/*/*.parquet")):
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate()
    assert (process.returncode, said.strip()) == (130, b"Interrupted.")
    assert not out.exists()


def test_names_of_a_hostile_trace_are_only_text(tmp_path: Path) -> None:
    draw = training(deviceProperties=[{"id": 0, "name": HOSTILE.replace("\ud800", "")}])
    draw.op(HOSTILE.replace("\ud800", ""), 301, 302).op("../../escape", 303, 304)
    draw.write(tmp_path / "a.json")
    done = run("export", tmp_path / "a.json", "--parquet", tmp_path / "t")
    assert done.returncode == 0
    assert {path.name for path in (tmp_path / "t").rglob("*.parquet")} == {"rank0.parquet"}
    names = [str(name) for name in pd.read_parquet(tmp_path / "t" / "ops")["name"]]
    assert all(name.isprintable() for name in names)
    assert any("DROP TABLE" in name for name in names)


def test_no_secret_of_a_trace_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(planted())
    assert run("export", tmp_path / "a.json", "--parquet", tmp_path / "t").returncode == 0
    for path in (tmp_path / "t").rglob("*"):
        if path.suffix == ".parquet":
            assert TOKEN not in parquet.read_table(path).to_pandas().to_csv()
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes()
