"""A panel in the last lines of a terminal, below what the script prints there.

The script keeps the terminal as its own: nothing is put between. Its output scrolls in the lines above the panel, as
the terminal's margins tell (DECSTBM, ECMA-48 and VT100: apt shows its progress so). The panel is drawn by one write,
so that nothing of the script's comes between.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel as Box
from rich.table import Table
from rich.text import Text

from diagnose.live import words
from diagnose.live.now import RankNow

MOST_WIDTH = 110
SAVE, RESTORE, BELOW = "\x1b7", "\x1b8", "\x1b[J"  # The cursor with its colours; clear from the cursor to the end.


def possible() -> bool:
    """Whether standard error is such a terminal, and the one that this process is in the foreground of, or not."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "") in ("", "dumb"):
        return False
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) > 0
    except (OSError, AttributeError):
        return False


class Panel:
    """On the terminal of standard error, while this process is in its foreground."""

    name = "the panel"

    def __init__(self) -> None:
        self._fd = sys.stderr.fileno()
        self._size: os.terminal_size | None = None
        self._rows = 0  # That are ours by now.

    def show(self, ranks: Sequence[RankNow]) -> None:
        """Draw it, or draw it anew."""
        if os.tcgetpgrp(self._fd) != os.getpgrp():
            return
        size = os.get_terminal_size(self._fd)
        lines, most = drawn(ranks, min(size.columns - 1, MOST_WIDTH)), size.lines // 2
        if len(lines) > most:
            lines = [*lines[: most - 1], lines[-1]]
        if most > 1:
            self._write(self._room_for(len(lines), size) + self._drawn(lines, size))

    def close(self) -> None:
        """Give the lines back, empty."""
        if self._rows:
            self._write(self._given_back())

    def _room_for(self, rows: int, size: os.terminal_size) -> str:
        """Scroll what is there up, and keep the script's cursor above the last lines."""
        given_back = self._given_back() if self._rows and size != self._size else ""
        self._size, more = size, max(rows - self._rows, 0)
        self._rows += more
        up = "\x1bD" * more + f"\x1b[{more}A" if more else ""
        return f"{given_back}{up}{SAVE}\x1b[1;{size.lines - self._rows}r{RESTORE}"

    def _drawn(self, lines: Sequence[str], size: os.terminal_size) -> str:
        padded = [*lines, *[""] * (self._rows - len(lines))]
        top = size.lines - self._rows + 1
        return SAVE + "".join(f"\x1b[{top + at};1H\x1b[0m\x1b[2K{one}" for at, one in enumerate(padded)) + RESTORE

    def _given_back(self) -> str:
        self._rows = 0
        return f"{SAVE}\x1b[r{RESTORE}{BELOW}"

    def _write(self, text: str) -> None:
        content = text.encode()
        while content:
            content = content[os.write(self._fd, content) :]


def drawn(ranks: Sequence[RankNow], width: int) -> list[str]:
    """The lines of the panel, with their colours. Names from the run are shown as text, never as markup."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for name, told in words.rows(ranks):
        table.add_row(Text(name), Text(told))
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, highlight=False)
    console.print(Box(table, title="diagnose watch", title_align="left", border_style="cyan"))
    return out.getvalue().splitlines()
