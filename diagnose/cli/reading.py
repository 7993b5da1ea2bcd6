"""How every command reads recordings: by which rules, behind a progress bar, errors as sentences."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Timer
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from diagnose import failures
from diagnose.cli.results import refuse_unwritable, sentences

if TYPE_CHECKING:
    from diagnose.contracts.diagnosis import Diagnosis
    from diagnose.source.recording import Recordings


PATIENCE_S = 1.0

jobs_option = click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Number of processes for many ranks.  [default: cores]"
)


def notes(quiet: bool) -> Callable[[str], None]:
    """A function that prints a note to standard error; if `quiet`, one that does nothing."""
    return lambda what: None if quiet else click.echo(f"diagnose: {what}", err=True)


@contextmanager
def shown(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar: yields a function of (done, total). Not shown if quiet, in a pipe, or before PATIENCE_S."""
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


class Opened(Struct, frozen=True):
    """Recordings that were found, and what is needed to read them."""

    given: Recordings
    jobs: int
    progress: Callable[[int, int], None]
    diagnosed: Callable[[], Diagnosis]


@contextmanager
def opened(
    paths: Sequence[str],
    outputs: Sequence[str] = (),
    *,
    folders: Sequence[str] = (),
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    steps: tuple[int, int] | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    quiet: bool = False,
    title: str = "Reading traces",
) -> Iterator[Opened]:
    """Open the recordings in `paths`; `outputs` may not be among their files. `folders` of rules, and rules to select
    and to ignore, are as a command line has them.

    Raises a ClickException if recordings, rules or settings are not sound. Parts of the analysis that fail by a fault
    of diagnose are named on standard error."""
    from diagnose.pipeline import diagnose
    from diagnose.rulekit.settings import SettingsError, rule_set
    from diagnose.rulekit.vocabulary import RuleError
    from diagnose.source import recording
    from diagnose.source.base import InputError

    with sentences(InputError, RuleError, SettingsError):
        given = recording.find(paths)
        refuse_unwritable(outputs, [rank.trace.path for rank in given.ranks])
        chosen = rule_set(given.ranks[0].trace.path, folders, select, ignore)
        count = jobs or os.cpu_count() or 1
        with failures.collected() as lost, shown(title, quiet) as progress:
            diagnosed = partial(diagnose, given, steps, count, progress, chosen, cluster)
            yield Opened(given, count, progress, diagnosed)
        for failure in lost:
            click.echo(f"diagnose: {failure}", err=True)
