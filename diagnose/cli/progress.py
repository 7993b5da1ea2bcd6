"""A progress bar on standard error, for work of over a second, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

PATIENCE_S = 1.0


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
