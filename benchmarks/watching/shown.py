"""The report of a watched run that the documentation shows: of `training.py 12`, on two cores."""

from __future__ import annotations

from pathlib import Path

from diagnose.reports import terminal
from diagnose.source.run_log import logs_in, read
from diagnose.watched.assembly import watched_run

SHOWN = Path(__file__).with_name("shown")


def report() -> str:
    """In a block of Markdown."""
    text = terminal.watched(watched_run([read(path) for path in logs_in(SHOWN)]))
    return f"```console\n$ diagnose watch train.py 12\n{text.rstrip()}\n```"
