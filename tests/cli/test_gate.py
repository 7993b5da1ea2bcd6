"""`diagnose analyze` and programs that show its results: Perfetto and a browser."""

import json
import stat
from pathlib import Path

import pytest

from tests.cli.invoking import run, run_alone
from tests.cli.test_analyze import trace

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
    assert f"No browser could be started. Open {tmp_path / 'out.html'}" in done.stderr
