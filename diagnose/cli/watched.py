"""The logs of a watched run: found in its folder, and shown."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diagnose import failures
from diagnose.cli.reading import opened
from diagnose.cli.results import width_and_color

if TYPE_CHECKING:
    from diagnose.contracts.watched_run import WatchedRun
    from diagnose.trace.run_log import RunLog

FORMS = ("terminal", "json", "markdown", "html")  # In which a run without recorded steps of its own is shown.
_RECORDING = re.compile(r"recording-\d+\Z")  # Folders of steps that were recorded while the run was watched.


def watched(paths: Sequence[str], **asked: Sequence[str]) -> WatchedRun | None:
    """The analysed logs of a run's folder; None if the paths are anything else. `asked` is passed on to `rule_set`.
    Raises a ClickException if there are logs and none can be read, or if rules or settings are not sound."""
    from diagnose.rulekit.settings import SettingsError, rule_set
    from diagnose.rulekit.vocabulary import RuleError
    from diagnose.source.base import InputError
    from diagnose.source.run_log import earlier_attempts, logs_in, read
    from diagnose.watched.assembly import watched_run

    problems = list[str]()

    def readable(files: Sequence[Path]) -> list[RunLog]:
        """The logs that can be read; `problems` gets a sentence on each of the others."""
        found = []
        for file in files:
            try:
                found.append(read(file))
            except InputError as error:
                problems.append(str(error))
        return found

    files = logs_in(Path(paths[0])) if len(paths) == 1 and "://" not in paths[0] else []
    logs = readable(files)
    earlier = readable(earlier_attempts(files[0])) if files else []
    for problem in problems if logs else []:
        click.echo(f"diagnose: {problem}", err=True)
    if problems and not logs:
        raise click.ClickException(problems[0])
    if not logs:
        return None
    try:
        with failures.collected() as lost:
            found = watched_run(logs, earlier, rule_set(files[0], **asked))
    except (RuleError, SettingsError) as error:
        raise click.ClickException(str(error)) from error
    for failure in lost:
        click.echo(f"diagnose: {failure}", err=True)
    return found


def with_recordings(found: WatchedRun, folder: str, **asked: Any) -> WatchedRun:
    """The run with the findings of its recordings, which are in `recording-N` of its folder: one that cannot be read is
    named on standard error. `asked` is passed on to `opened`."""
    from diagnose.watched.findings import with_recorded

    diagnoses = {}
    names = [one.name for one in Path(folder).iterdir() if one.is_dir() and _RECORDING.match(one.name)]
    for name in sorted(names, key=lambda name: (len(name), name)):
        try:
            with opened([str(Path(folder) / name)], **asked) as recordings:
                diagnoses[name] = recordings.diagnosed()
        except click.ClickException as error:
            click.echo(f"diagnose: skipped {name}: {error.message}", err=True)
    return with_recorded(found, diagnoses) if diagnoses else found


def stands_alone(folder: str) -> bool:
    """Whether a run's folder has no recorded steps, or none but those in its folders `recording-N`."""
    from diagnose.source import recording
    from diagnose.source.base import InputError

    try:
        found = recording.find([folder])
    except InputError:
        return True
    return all(_RECORDING.match(Path(str(rank.trace.path)).parent.name) for rank in found.ranks)


def refuse_other_forms(forms: Collection[str]) -> None:
    """Raise a ClickException for a form that a run without recorded steps is not shown in."""
    for form in forms:
        if form not in FORMS:
            raise click.ClickException(f"A run's log has no --{form}. Use --html, --json or --markdown.")


def rendered(found: WatchedRun, form: str, details: bool = False) -> str:
    """The run as text of one of FORMS, ending in a newline."""
    if form == "json":
        return found.to_json() + "\n"
    if form == "html":
        from diagnose.reports.html import whole_run_page

        return whole_run_page.render(found)
    from diagnose.reports import markdown, terminal

    if form == "markdown":
        return markdown.watched(found, details)
    return terminal.watched(found, *width_and_color(), details)
