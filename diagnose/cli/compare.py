"""`diagnose compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose.cli.analyze import INCONCLUSIVE, TOO_SLOW, Share
from diagnose.cli.files import STDOUT, output, refuse_unwritable, write

if TYPE_CHECKING:
    from diagnose.contracts.comparison import Comparison


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
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Number of processes for many ranks.  [default: cores]"
)
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
    from diagnose.cli.comparisons import read_side, rendered
    from diagnose.comparing.compare import compare

    asked = {"html": html_file, "json": json_file, "markdown": markdown_file, "sarif": sarif_file}
    files = {form: output(name) for form, name in asked.items() if name}
    given = [*([baseline] if baseline else []), *sides]
    if len(given) != 2:
        raise click.UsageError(_how_many(len(given), baseline))
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


def _how_many(count: int, baseline: str | None) -> str:
    if count < 2:
        return "Name two recordings, or one recording and --baseline FILE."
    if baseline:
        return "With --baseline, name one recording. Quote a pattern of several: 'runs/new-*'."
    return "Name two recordings. Quote a pattern of several on one side: 'runs/new-*'."


def _end(found: Comparison, fail_over: float | None, quiet: bool) -> None:
    """Exit with a code of its own where nothing can be told, or the step has become slower than it may."""
    low, code = found.difference_share.low, INCONCLUSIVE if found.verdict == "cannot_tell" else 0
    if fail_over is not None and found.verdict == "slower" and low is not None:
        told = f"slower by at least {low:.1%}; the limit is {fail_over:.1%}."
        if low > fail_over:
            told, code = f"Failed --fail-over: {told}", TOO_SLOW
        elif found.difference_share.likely > fail_over:
            told, code = f"Cannot decide --fail-over: {told} Record more runs of each side.", INCONCLUSIVE
        if code and not quiet:
            click.echo(told, err=True)
    if code:
        raise click.exceptions.Exit(code)
