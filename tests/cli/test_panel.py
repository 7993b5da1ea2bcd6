"""The panel below a script's output, on a terminal that a small emulator draws."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from diagnose import pipeline
from diagnose.cli import group
from diagnose.contracts.watched_run import RunBasis, RunFinding, WatchedRun
from diagnose.facts.watched import series
from diagnose.watched.assembly import watched_run
from diagnose.watched.findings import with_recorded
from tests.cli.terminals import LINES, Screen, on_a_terminal
from tests.test_failures import GPU, RULES
from tests.watched.logs import MS, S, interval, recorded

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
from diagnose.cli.live import Panel, possible
from diagnose.live.now import rank_now
from tests.live.drawn import log, window

def said(text):
    os.write(1, text.encode())

assert possible()
panel = Panel()
said("before\\n")
ranks = [rank_now(log(window(0)))]
panel.show(ranks)
said("[mark]")
for number in range({lines}):
    said(f"line {{number}}\\n")
    if number % 7 == 0:
        panel.show([rank_now(log(*(window(at, resident_bytes=8e8) for at in range(1 + number))))])
said("10 %")
panel.show(ranks)
said("\\r20 %")
said("\\x1b]done\\x07")
panel.close()
said(" over\\nafter\\n")
"""
DONE = "\x1b]done\x07"


def shown_by(program: str, **more: Any) -> str:
    code, text = on_a_terminal([sys.executable, "-c", program], ROOT, **more)
    assert code == 0, text
    return text


@pytest.mark.parametrize("lines", [3, 60])
def test_the_script_has_the_lines_above_and_all_lines_in_the_end(lines: int) -> None:
    during, _, after = shown_by(PROGRAM.format(lines=lines)).partition(DONE)
    screen = Screen()
    screen.feed(during)
    shown = screen.text()
    top = next(at for at, line in enumerate(shown) if line.startswith("╭─ diagnose watch"))
    assert "41 steps in 3.00 s, 40.0 steps/s now" in shown[top + 1]
    assert shown[-1] == "" or shown[-1].startswith("╰")
    told = [line for line in shown[:top] if line]
    everything = ["before", "[mark]line 0", *(f"line {number}" for number in range(1, lines)), "20 %"]
    assert told == everything[-len(told) :]
    assert len(told) == min(len(everything), top)
    screen.feed(after)
    ended = screen.text()
    assert not any(mark in line for line in ended for mark in "╭│╰")
    assert [line for line in ended if line][-2:] == ["20 % over", "after"]
    assert screen.bottom == LINES - 1


def test_a_low_terminal_keeps_half_of_its_lines() -> None:
    during, _, _ = shown_by(PROGRAM.format(lines=20), lines=8).partition(DONE)
    assert set(re.findall(r"\x1b\[1;(\d+)r", during)) == {"4"}


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": ""}])
def test_there_is_none_on_a_terminal_that_cannot(variables: dict[str, str]) -> None:
    program = "from diagnose.cli.live import possible\nprint(possible())"
    assert shown_by(program, **variables) == "False\r\n"


def test_there_is_none_in_a_pipe() -> None:
    program = "from diagnose.cli.live import possible\nprint(possible())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


OPTIONS = ("--quiet", "--select", "RU", "--select", "AT", "--select", "KE", "--select", "LB01")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Of 2,000 steps of 20 ms, 8 of which wait."""
    recorded(tmp_path, [interval(20 * MS, loader=8 * MS)] * 2000)
    return tmp_path


def analyze(folder: Path, *more: str) -> tuple[str, str]:
    done = CliRunner().invoke(group, ["analyze", str(folder), *OPTIONS, *more])
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_findings_of_recorded_steps_are_scaled_to_the_run(tmp_path: Path) -> None:
    diagnosis = pipeline.diagnose([GPU], rules=RULES)
    step_ns, (first, *_) = diagnosis.step_ns, [one for one in diagnosis.findings if not one.minor]

    def told(step_of_run_ns: int) -> RunFinding:
        log = watched_run([recorded(tmp_path, [interval(step_of_run_ns)] * 2000)])
        found = with_recorded(log, {"recording-1": diagnosis}).findings
        return next(one for one in found if one.title == f"{first.title} ({first.code})")

    # Longer steps of the run save as much each; of shorter ones it is the share of the recorded step.
    longer, shorter = told(2 * step_ns), told(step_ns // 2)
    assert longer.kind == "recorded"
    assert longer.saving.likely_ns == pytest.approx(2000 * first.saving.likely_ns)
    assert shorter.saving.likely_ns == pytest.approx(1000 * first.saving.likely_ns, rel=1e-3)
    assert longer.change == first.fixes[0].do
    assert "In recording-1, a fix would save" in longer.evidence[1].text


def test_recordings_in_the_folder_stand_among_the_findings_of_the_log(run: Path) -> None:
    alone = json.loads(analyze(run, "--json", "-")[0])
    assert [one["kind"] for one in alone["findings"]] == ["data_wait"]
    shutil.copytree(GPU, run / "recording-1")
    (run / "recording-2").mkdir()
    text, problems = analyze(run, "--json", "-")
    found = json.loads(text)["findings"]
    assert {one["kind"] for one in found} == {"data_wait", "recorded"}
    savings = [one["saving"]["likely_ns"] for one in found]
    assert savings == sorted(savings, reverse=True)
    assert "diagnose: skipped recording-2: " in problems
    page = run / "page.html"
    assert "In recording-1, a fix" in analyze(run, "--html", str(page), "--details")[0]
    assert "In recording-1, a fix" in page.read_text()


def test_a_recording_beside_the_log_is_ranked_with_it_as_well(run: Path) -> None:
    shutil.copytree(GPU, run, dirs_exist_ok=True)
    found = json.loads(analyze(run, "--json", "-")[0])["watched"]["findings"]
    assert {one["kind"] for one in found} == {"data_wait", "recorded"}


def test_a_look_that_fails_leaves_all_others(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIAGNOSE_DEBUG", raising=False)
    monkeypatch.setattr(series, "_stretches", lambda *_: 1 / 0)
    text, problems = analyze(run, "--details")
    assert "Steps wait 8.00 ms on average for their batch" in text
    text = " ".join(text.split())
    assert "slower steps (diagnose itself failed (ZeroDivisionError" in text.partition("Not checked: ")[2]
    assert "Left out: stretches, as diagnose itself failed (ZeroDivisionError" in problems


def test_the_json_is_that_of_the_contract(run: Path) -> None:
    found = msgspec.json.decode(analyze(run, "--json", "-")[0], type=WatchedRun)
    assert found.findings[0].saving.basis is RunBasis.AT_MOST
    assert found.findings[0].saving.high_ns == int(0.9 * 16 * S)
