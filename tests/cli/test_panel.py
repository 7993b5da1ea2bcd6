"""The panel below a script's output, on a terminal that a small emulator draws."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminals import LINES, Screen, on_a_terminal

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys
from diagnose.cli.panel import Panel, possible
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
    assert "41 steps in 3.00 s, 40.0 a second now" in shown[top + 1]
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
    program = "from diagnose.cli.panel import possible\nprint(possible())"
    assert shown_by(program, **variables) == "False\r\n"


def test_there_is_none_in_a_pipe() -> None:
    program = "from diagnose.cli.panel import possible\nprint(possible())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"
