"""What `diagnose watch` shows while the training runs: options, and where it is shown.

The script writes to the terminal directly. The terminal's scrolling margins (DECSTBM of the VT100, as apt uses them)
keep its output in the lines above the panel. The panel is drawn by one write, so that no output comes in between.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.panel import Panel as Box
from rich.table import Table
from rich.text import Text

from diagnose.cli.results import sentences

if TYPE_CHECKING:
    from diagnose.live.follow import Show
    from diagnose.live.now import RankNow

MOST_WIDTH = 110
BETWEEN_S = 60.0  # Between two lines, where there is no panel.
SAVE, RESTORE, BELOW = "\x1b7", "\x1b8", "\x1b[J"  # The cursor with its colours; clear from the cursor to the end.


def possible() -> bool:
    """Whether a panel can be drawn: standard error is this process's controlling terminal, and not a dumb one."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "") in ("", "dumb"):
        return False
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) > 0
    except (OSError, AttributeError):
        return False


class Panel:
    """A panel in the last lines of the terminal, drawn while this process is in the terminal's foreground."""

    name = "the panel"

    def __init__(self) -> None:
        self._fd = sys.stderr.fileno()
        self._size: os.terminal_size | None = None
        self._rows = 0  # Lines at the bottom that are reserved.

    def show(self, ranks: Sequence[RankNow]) -> None:
        """Draw the panel, if this process is in the foreground and the terminal has room for it."""
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
        """Escape codes that scroll what is there up, and keep the script's output above the last `rows` lines, ours."""
        given_back = self._given_back() if self._rows and size != self._size else ""
        self._size, more = size, max(rows - self._rows, 0)
        self._rows += more
        up = "\x1bD" * more + f"\x1b[{more}A" if more else ""
        return f"{given_back}{up}{SAVE}\x1b[1;{size.lines - self._rows}r{RESTORE}"

    def _drawn(self, lines: Sequence[str], size: os.terminal_size) -> str:
        """Escape codes that write the lines into those reserved, and empty the others."""
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
    from diagnose.live import now

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for name, told in now.rows(ranks):
        table.add_row(Text(name), Text(told))
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, highlight=False)
    console.print(Box(table, title="diagnose watch", title_align="left", border_style="cyan"))
    return out.getvalue().splitlines()


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options --live, --metrics and --tensorboard, in this order in the help."""
    for option in (
        click.option(
            "--tensorboard",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="Write TensorBoard scalars to DIR/RUN during the run.",
        ),
        click.option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve Prometheus metrics during the run; without HOST, on this machine only.",
        ),
        click.option("--live", is_flag=True, help="Show progress during the run: a panel, or one line per minute."),
    ):
        command = option(command)
    return command


def shows(
    live: bool, metrics: str | None, tensorboard: Path | None, run: str, say: Callable[[str], None]
) -> list[Show]:
    """The ways to show the run named `run` that were asked for. Raises a ClickException where one is not possible."""
    found: list[Show] = []
    if metrics is not None:
        _require("--metrics", "prometheus_client")
        from diagnose.live.metrics import CannotServe, MetricsServer

        with sentences(CannotServe):
            found.append(server := MetricsServer(metrics))
        say(f"serving metrics at {server.url}")
    if tensorboard is not None:
        _require("--tensorboard", "torch", "tensorboard")
        from diagnose.live.tensorboard import TensorBoard

        try:
            found.append(TensorBoard(tensorboard / run))
        except OSError as error:
            raise click.ClickException(
                f"Cannot write to {tensorboard}: {error.strerror}. Name another folder with --tensorboard."
            ) from error
    if live:
        found.append(Panel() if possible() else Lines())
    return found


def _require(option: str, *packages: str) -> None:
    if missing := [one for one in packages if find_spec(one) is None]:
        raise click.ClickException(
            f"{option} needs {' and '.join(missing)}. Run: pip install 'torch-diagnose[torch,live]'."
        )


def following(folder: Path, shown: Sequence[Show]) -> AbstractContextManager[None]:
    """Within `with`, the logs in a folder are read as they grow, and shown. Raises a ClickException for settings that
    are not sound, before the training starts."""
    if not shown:
        return nullcontext()
    from diagnose.live.follow import Following
    from diagnose.rulekit.settings import SettingsError, rule_set

    try:
        rules = rule_set(folder)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    return Following(folder, shown, lambda sentence: click.echo(f"diagnose: {sentence}", err=True), rules)


class Lines:
    """A line a minute on standard error, and each finding when it is seen first."""

    name = "a line a minute"

    def __init__(self) -> None:
        self._printed_s: float | None = None
        self._found: set[str] = set()

    def show(self, ranks: Sequence[RankNow]) -> None:
        """Print a line and the new findings, if BETWEEN_S have passed since the last line."""
        if self._printed_s is not None and time.monotonic() - self._printed_s < BETWEEN_S:
            return
        from diagnose.live import now

        self._printed_s = time.monotonic()
        click.echo(f"diagnose: {now.line(ranks)}", err=True)
        for one in ranks[0].findings:
            if one.kind not in self._found:
                self._found.add(one.kind)
                click.echo(f"diagnose: {now.finding(one)}", err=True)

    def close(self) -> None:
        """The report follows."""
