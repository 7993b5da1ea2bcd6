"""The gate of `diagnose analyze`: exit codes and SARIF."""

import json
import stat
from pathlib import Path

import pytest

from tests.cli.invoking import run, run_alone
from tests.cli.test_analyze import trace
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
    assert "  10.0 ms/step · data-loader-bound: " in done.stdout
    (found,) = json.loads((tmp_path / "a.sarif").read_text())["runs"]
    levels = {one["ruleId"]: one["level"] for one in found["results"]}
    assert levels["DL02"] == "error"


__all__ = ["trace"]


@pytest.fixture
def browser(tmp_path: Path) -> Path:
    """A browser that writes down what it is asked to open."""
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/asked"\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return program


def test_a_timeline_for_perfetto(trace: Path, tmp_path: Path) -> None:
    assert run("analyze", trace, "--perfetto", tmp_path / "out.json").returncode == 0
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    kernels = [(lanes[event["tid"]], event["dur"]) for event in events if event["name"] == "k"]
    assert [dur for lane, dur in kernels if not lane.startswith("critical path")] == [50, 50, 50]


def test_open_opens_the_page_that_was_written(trace: Path, tmp_path: Path, browser: Path) -> None:
    done = run("analyze", trace, "--html", tmp_path / "out.html", "--open", BROWSER=str(browser))
    assert done.returncode == 0
    assert (tmp_path / "asked").read_text().strip() == (tmp_path / "out.html").as_uri()


@pytest.mark.slow
def test_open_alone_writes_a_page_to_open(trace: Path, tmp_path: Path, browser: Path) -> None:
    done = run_alone("analyze", trace, "--open", BROWSER=str(browser), TMPDIR=str(tmp_path))
    assert done.returncode == 0
    page = Path((tmp_path / "asked").read_text().strip().removeprefix("file://"))
    assert page.is_relative_to(tmp_path)
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_without_a_browser_it_says_where_the_page_is(trace: Path, tmp_path: Path) -> None:
    done = run_alone(
        "analyze", trace, "--html", tmp_path / "out.html", "--open", BROWSER="false", PATH="/nowhere", DISPLAY=""
    )
    assert done.returncode == 0
    assert f"No browser could be started. The page is {tmp_path / 'out.html'}" in done.stderr
