"""Standard error while a command works: notes, and a progress bar on a terminal for work of over a second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

import click

PATIENCE_S = 1.0


def notes(quiet: bool) -> Callable[[str], None]:
    """What tells a note, unless a command is to be quiet."""
    return lambda what: None if quiet else click.echo(f"diagnose: {what}", err=True)


@contextmanager
def shown(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yields a function that takes (done, total). Nothing is shown if quiet, in a pipe, or under PATIENCE_S."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    timer = Timer(PATIENCE_S, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, total: bar.update(task, completed=done, total=total)
    finally:
        timer.cancel()
        bar.stop()
