"""The logs of a watched run: found in its folder, and shown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose.cli.results import width_and_color

if TYPE_CHECKING:
    from diagnose.contracts.watched_run import WatchedRun

FORMS = ("terminal", "json", "markdown", "html")
"""In which a run without recorded steps is shown."""


def watched(paths: Sequence[str]) -> WatchedRun | None:
    """What the logs in a run's folder tell; None if the paths are anything else.

    Raises a ClickException if there are logs and none can be read. Of several those that can be are used.
    """
    from diagnose.source.base import InputError
    from diagnose.source.run_log import logs_in, read
    from diagnose.watched.assembly import watched_run

    files = logs_in(Path(paths[0])) if len(paths) == 1 and "://" not in paths[0] else []
    logs, problems = [], list[str]()
    for file in files:
        try:
            logs.append(read(file))
        except InputError as error:
            problems.append(str(error))
    for problem in problems if logs else []:
        click.echo(f"diagnose: {problem}", err=True)
    if problems and not logs:
        raise click.ClickException(problems[0])
    return watched_run(logs) if logs else None


def stands_alone(folder: str) -> bool:
    """Whether a run's folder has logs and no recorded steps."""
    from diagnose.source import recording
    from diagnose.source.base import InputError

    try:
        recording.find([folder])
    except InputError:
        return True
    return False


def refuse_other_forms(forms: Collection[str]) -> None:
    """Raise a ClickException for a form that a run without recorded steps is not shown in."""
    for form in forms:
        if form not in FORMS:
            raise click.ClickException(
                f"This folder has a log and no recorded steps, so there is no --{form}."
                " Use --html, --json or --markdown."
            )


def rendered(found: WatchedRun, form: str) -> str:
    """The run as text of one of FORMS, ending in a newline."""
    if form == "json":
        return found.to_json() + "\n"
    if form == "html":
        from diagnose.reports.html import whole_run_page

        return whole_run_page.render(found)
    from diagnose.reports import markdown, terminal

    return markdown.watched(found) if form == "markdown" else terminal.watched(found, *width_and_color())
