"""The gate of `diagnose analyze`: exit codes, SARIF, JUnit, and what a job on GitHub is told."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from diagnose.contracts.diagnosis import Diagnosis
from tests.cli.invoking import refused, run
from tests.drawing import Drawing


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """Of each 10 ms the training process loads batches for 4 ms, at a line of `train.py` in a git checkout."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text("def main():\n    for batch in loader:\n        train(batch)\n")
    draw = Drawing()
    for number in range(4):
        at = number * 10_000
        draw.step(number, at, at + 10_000).frame("train.py(1): main", at, at + 10_000)
        draw.span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 4_000)
        draw.op("aten::mm", at + 4_600, at + 4_700)
        draw.launch("k", (at + 4_650, at + 4_660), (at + 4_670, at + 8_000))
        draw.span("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", at + 9_000, at + 9_100)
    return draw.write(tmp_path / "trace.json")


def test_the_exit_code_says_whether_a_fix_would_save_too_much(slow: Path) -> None:
    assert run("analyze", slow, "--fail-over", "90%").returncode == 0
    over = run("analyze", slow, "--fail-over", "5%")
    assert over.returncode == 1
    assert "Over --fail-over: dataloader_starvation" in over.stderr


def test_sarif_and_junit_beside_the_report(slow: Path, tmp_path: Path) -> None:
    files = ["--sarif", "a.sarif", "--junit", "a.xml"]
    done = run("analyze", slow.name, *files, "--fail-over", "5%", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("One step takes")
    (found,) = json.loads((tmp_path / "a.sarif").read_text())["runs"]
    levels = {one["ruleId"]: one["level"] for one in found["results"]}
    assert levels["DL02"] == "error"
    cases = ET.parse(tmp_path / "a.xml").iter("testcase")
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert failed == ["DL02 dataloader_starvation"]


@pytest.mark.parametrize("form", ["sarif", "junit"])
def test_a_result_on_standard_output_is_all_there_is(slow: Path, form: str) -> None:
    done = run("analyze", slow, f"--{form}", "-")
    assert (done.returncode, done.stderr) == (0, "")
    if form == "sarif":
        assert json.loads(done.stdout)["version"] == "2.1.0"
    else:
        assert ET.fromstring(done.stdout).tag == "testsuites"


def test_a_trace_is_never_overwritten_by_them(slow: Path) -> None:
    before = slow.read_bytes()
    for form in ("sarif", "junit"):
        refused(run("analyze", slow, f"--{form}", slow), "is a trace to be read")
    assert slow.read_bytes() == before


def test_a_job_on_github_gets_annotations_and_a_summary_and_json_stays_whole(slow: Path, tmp_path: Path) -> None:
    page = tmp_path / "summary.md"
    page.write_text("# Before\n")
    job = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(page)}
    done = run("analyze", slow.name, "--json", "-", "--fail-over", "5%", cwd=tmp_path, **job)
    assert done.returncode == 1
    assert any(finding.rule == "dataloader_starvation" for finding in Diagnosis.from_json(done.stdout).findings)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("::notice title=diagnose::One step takes")
    assert any(line.startswith("::error ") and "(DL02 dataloader_starvation)" in line for line in lines)
    assert lines[-1].startswith("Over --fail-over")
    text = page.read_text()
    assert text.startswith("# Before\n## One step takes")


def test_nothing_is_told_elsewhere_nor_when_it_is_to_be_quiet(slow: Path, tmp_path: Path) -> None:
    page = tmp_path / "summary.md"
    for words, job in (([], {}), (["--quiet"], {"GITHUB_ACTIONS": "true"}), ([], {"GITHUB_ACTIONS": "false"})):
        done = run("analyze", slow, *words, GITHUB_STEP_SUMMARY=str(page), **job)
        assert (done.returncode, done.stderr) == (0, "")
    assert not page.exists()


def test_a_summary_that_cannot_be_written_is_said_and_changes_no_exit_code(slow: Path, tmp_path: Path) -> None:
    job = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path)}
    done = run("analyze", slow, **job)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "The job's page gets no report: Is a directory."


def test_a_recording_in_which_nothing_can_be_measured_is_no_pass(tmp_path: Path) -> None:
    path = Drawing().span("unheard_of", "x", 0, 5).write(tmp_path / "trace.json")
    done = run("analyze", path, "--sarif", tmp_path / "a.sarif", "--junit", tmp_path / "a.xml", "--fail-over", "5%")
    assert done.returncode == 3
    (found,) = json.loads((tmp_path / "a.sarif").read_text())["runs"]
    assert found["invocations"][0]["executionSuccessful"] is False
    assert ET.parse(tmp_path / "a.xml").getroot().get("errors") == "1"
