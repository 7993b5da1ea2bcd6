"""`diagnose compare`, and `diagnose baseline`, which keeps one of its sides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose.cli.analyze import INCONCLUSIVE, TOO_SLOW, Share
from diagnose.cli.reading import jobs_option, opened
from diagnose.cli.results import STDOUT, output, refuse_unwritable, sentences, width_and_color, write

if TYPE_CHECKING:
    from diagnose.comparing.compare import Side
    from diagnose.contracts.comparison import Comparison
    from diagnose.contracts.diagnosis import Diagnosis


def read_side(given: str, jobs: int | None, quiet: bool) -> Side:
    """Read one side. Raises a ClickException if it cannot be read, and Exit if nothing in it can be measured."""
    from diagnose.comparing.compare import Inconclusive, side
    from diagnose.source.base import InputError

    def analysed(paths: Sequence[str]) -> Diagnosis:
        with opened(paths, jobs=jobs, quiet=quiet, title=f"Reading {given}") as recordings:
            return recordings.diagnosed()

    try:
        with sentences(InputError):
            return side(given, analysed)
    except Inconclusive as error:
        click.echo(f"Error: {error}", err=True)
        raise click.exceptions.Exit(INCONCLUSIVE) from error


def rendered(
    found: Comparison, form: str, details: bool = False, before: Diagnosis | None = None, after: Diagnosis | None = None
) -> str:
    """The comparison as text, ending in a newline: html, json, markdown, sarif or terminal."""
    if form == "json":
        return found.to_json() + "\n"
    if form == "html":
        from diagnose.reports.html import comparison_page

        return comparison_page.render(found, before, after)
    if form == "sarif" and after is not None:
        from diagnose.comparing.changes import ranked
        from diagnose.reports import sarif

        return sarif.render(after, ranked(after, found.findings))
    from diagnose.reports import markdown, terminal

    if form == "markdown":
        return markdown.compared(found, details)
    return terminal.compared(found, *width_and_color(), details)


@click.command(name="compare")
@click.argument("sides", nargs=-1, required=True, metavar="[BEFORE] AFTER")
@click.option("--baseline", metavar="FILE", help="Compare with this file of `diagnose baseline` instead of BEFORE.")
@click.option("--details", is_flag=True, help="Also print the tables, findings with savings, and settings.")
@click.option("--html", "html_file", metavar="FILE", help="Write an interactive page with both timelines.")
@click.option("--json", "json_file", metavar="FILE", help="Write the comparison as JSON; - is standard output.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write it as Markdown; - is standard output.")
@click.option("--sarif", "sarif_file", metavar="FILE", help="Write new and grown findings as SARIF 2.1.0.")
@click.option(
    "--fail-over",
    type=Share(),
    help="Exit 1 if the slowdown exceeds SHARE even at the low end of its interval, 3 if only its likely value does.",
)
@jobs_option
@click.option("--quiet", "-q", is_flag=True, help="Print no progress and no notes.")
def command(
    sides: tuple[str, ...],
    baseline: str | None,
    details: bool,
    html_file: str | None,
    json_file: str | None,
    markdown_file: str | None,
    sarif_file: str | None,
    fail_over: float | None,
    jobs: int | None,
    quiet: bool,
) -> None:
    """Compare two recordings: is the training slower, by how much, and why?

    BEFORE and AFTER are recordings (as for `diagnose analyze`), its JSON reports, or baselines. Give several recordings
    of a side as a quoted pattern of folders: their spread shows what is noise.

    Example: diagnose compare runs/main runs/my-branch --fail-over 3%
    """
    from diagnose.comparing.compare import compare

    asked = {"html": html_file, "json": json_file, "markdown": markdown_file, "sarif": sarif_file}
    files = {form: output(name) for form, name in asked.items() if name}
    given = [*([baseline] if baseline else []), *sides]
    if len(given) < 2:
        raise click.UsageError("Name two recordings, or one recording and --baseline FILE.")
    if len(given) > 2:
        how, where = (
            ("With --baseline, name one recording", "") if baseline else ("Name two recordings", " on one side")
        )
        raise click.UsageError(f"{how}. Quote a pattern of several{where}: 'runs/new-*'.")
    refuse_unwritable(list(files.values()), [Path(one) for one in given])
    before, after = (read_side(one, jobs, quiet) for one in given)
    found = compare(before.baseline, after.baseline)
    if sarif_file and after.shown is None:
        raise click.ClickException("A baseline has no findings at lines, as --sarif needs. Name a recording as AFTER.")
    for form, name in files.items():
        write(name, rendered(found, form, details, before.shown, after.shown))
    if STDOUT not in files.values():
        click.echo(rendered(found, "terminal", details), nl=False)
    _end(found, fail_over, quiet)


def _end(found: Comparison, fail_over: float | None, quiet: bool) -> None:
    """Exit with TOO_SLOW if the whole interval is over `fail_over`, INCONCLUSIVE if that or the verdict is open."""
    low, code = found.difference_share.low, INCONCLUSIVE if found.verdict == "cannot_tell" else 0
    if fail_over is not None and found.verdict == "slower" and low is not None:
        limit = f"slower by at least {low:.1%}; the limit is {fail_over:.1%}."
        if low > fail_over:
            limit, code = f"Failed --fail-over: {limit}", TOO_SLOW
        elif found.difference_share.likely > fail_over:
            limit, code = f"Cannot decide --fail-over: {limit} Record more runs of each side.", INCONCLUSIVE
        if code and not quiet:
            click.echo(limit, err=True)
    if code:
        raise click.exceptions.Exit(code)


@click.command(name="baseline")
@click.argument("run", metavar="RUN")
@click.option(
    "--out", "-o", "name", default=STDOUT, metavar="FILE", help="Output file.  [default: - (standard output)]"
)
@jobs_option
@click.option("--quiet", "-q", is_flag=True, help="Print no progress and no notes.")
def baseline(run: str, name: str, jobs: int | None, quiet: bool) -> None:
    """Write a small JSON of a recording, for later comparisons.

    The file has times, op names, source lines and settings, but no command and no data: commit or cache it. RUN is as
    for `diagnose compare`; give several recordings as a quoted pattern of folders.

    Example: diagnose baseline 'runs/main-*' -o baseline.json
    """
    name = output(name)
    refuse_unwritable([name], [Path(run)])
    write(name, read_side(run, jobs, quiet).baseline.to_json() + "\n")
