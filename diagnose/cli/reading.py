"""How every command reads recordings: by which rules, behind a progress bar, errors as sentences."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from diagnose import failures
from diagnose.cli.files import refuse_unwritable
from diagnose.cli.progress import shown

if TYPE_CHECKING:
    from diagnose.contracts.diagnosis import Diagnosis
    from diagnose.source.recording import Recordings


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
    """Open the recordings in `paths`; `outputs` may not be among their files. `folders` of rules, and those to select
    and to ignore, are as a command line has them.

    What keeps them from being read, and rules and settings that are not sound, end as a ClickException. What fails
    inside by a fault of ours is told on standard error.
    """
    from diagnose.pipeline import diagnose
    from diagnose.rulekit.settings import SettingsError, rule_set
    from diagnose.rulekit.vocabulary import RuleError
    from diagnose.source import recording
    from diagnose.source.base import InputError

    try:
        given = recording.find(paths)
        refuse_unwritable(outputs, [rank.trace.path for rank in given.ranks])
        chosen = rule_set(given.ranks[0].trace.path, folders, select, ignore)
        count = jobs or os.cpu_count() or 1
        with failures.collected() as lost, shown(title, quiet) as progress:
            diagnosed = partial(diagnose, given, steps, count, progress, chosen, cluster)
            yield Opened(given, count, progress, diagnosed)
        for failure in lost:
            click.echo(f"diagnose: {failure}", err=True)
    except (InputError, RuleError, SettingsError) as error:
        raise click.ClickException(str(error)) from error
