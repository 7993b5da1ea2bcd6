"""The gate of `diagnose analyze`: exit codes and SARIF."""

import json
from pathlib import Path

import pytest

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


def test_sarif_beside_the_report(slow: Path, tmp_path: Path) -> None:
    done = run("analyze", slow.name, "--sarif", "a.sarif", "--fail-over", "5%", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("One step takes")
    (found,) = json.loads((tmp_path / "a.sarif").read_text())["runs"]
    levels = {one["ruleId"]: one["level"] for one in found["results"]}
    assert levels["DL02"] == "error"


def test_a_result_on_standard_output_is_all_there_is(slow: Path) -> None:
    done = run("analyze", slow, "--sarif", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["version"] == "2.1.0"


def test_a_trace_is_never_overwritten(slow: Path) -> None:
    before = slow.read_bytes()
    refused(run("analyze", slow, "--sarif", slow), "is a trace to be read")
    assert slow.read_bytes() == before


def test_a_recording_in_which_nothing_can_be_measured_is_no_pass(tmp_path: Path) -> None:
    path = Drawing().span("unheard_of", "x", 0, 5).write(tmp_path / "trace.json")
    done = run("analyze", path, "--sarif", tmp_path / "a.sarif", "--fail-over", "5%")
    assert done.returncode == 3
    (found,) = json.loads((tmp_path / "a.sarif").read_text())["runs"]
    assert found["invocations"][0]["executionSuccessful"] is False
