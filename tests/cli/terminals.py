"""A terminal for a command, and a small emulator of one."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.capture.scripts import environment

COLUMNS, LINES = 80, 24

IN_FRONT = """
import fcntl, os, sys, termios
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes standard error the terminal of a session, and becomes the command."""


class Screen:
    """A terminal of which nothing is known but what a script and the panel use (ECMA-48, VT100)."""

    def __init__(self) -> None:
        self.lines = [[" "] * COLUMNS for _ in range(LINES)]
        self.row = self.column = 0
        self.bottom = LINES - 1
        self.saved = (0, 0)

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\x1b[78D]|[\s\S]", text):
            self._control(part) if part < " " else self._put(part)

    def text(self) -> list[str]:
        return ["".join(line).rstrip() for line in self.lines]

    def _put(self, character: str) -> None:
        assert self.column < COLUMNS
        self.lines[self.row][self.column] = character
        self.column += 1

    def _control(self, part: str) -> None:
        if part == "\r":
            self.column = 0
        elif part == "\x1b7":
            self.saved = (self.row, self.column)
        elif part == "\x1b8":
            self.row, self.column = self.saved
        elif part not in ("\n", "\x1bD"):
            self._sequence(part[-1], [int(one) for one in re.findall(r"\d+", part)])
        elif self.row < self.bottom:
            self.row += 1
        else:
            self.lines.insert(self.bottom + 1, [" "] * COLUMNS)
            del self.lines[0]

    def _sequence(self, kind: str, numbers: list[int]) -> None:
        if kind == "A":
            self.row -= numbers[0]
        elif kind == "r":
            self.bottom, self.row, self.column = (numbers[1] if numbers else LINES) - 1, 0, 0
        elif kind == "H":
            self.row, self.column = numbers[0] - 1, numbers[1] - 1
        elif kind == "K":
            self.lines[self.row] = [" "] * COLUMNS
        elif kind == "J":
            self.lines[self.row][self.column :] = [" "] * (COLUMNS - self.column)
            self.lines[self.row + 1 :] = [[" "] * COLUMNS for _ in self.lines[self.row + 1 :]]
        else:
            assert kind == "m", kind


def on_a_terminal(
    words: Sequence[object], folder: Path, lines: int = LINES, told: Callable[[bytes], object] = len, **variables: str
) -> tuple[int, str]:
    """How a command ends that has a terminal of its own, and all that is written there. `told`: of that, meanwhile."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", lines, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", IN_FRONT, *map(str, words)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**environment(), "TERM": "xterm", **variables},
        start_new_session=True,
    )
    os.close(theirs)
    content = b""
    while True:
        try:
            content += os.read(ours, 65536)
            told(content)
        except OSError:  # EIO: the command has ended.
            break
    os.close(ours)
    return process.wait(60), content.decode()
