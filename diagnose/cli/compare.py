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
@click.option("--baseline", metavar="FILE", help="Compare with this instead of BEFORE: what `diagnose baseline` wrote.")
@click.option("--html", "html_file", metavar="FILE", help="Write an interactive page with both timelines.")
@click.option("--json", "json_file", metavar="FILE", help="Write the comparison as JSON; - is standard output.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write it as Markdown; - is standard output.")
@click.option("--sarif", "sarif_file", metavar="FILE", help="Write findings that are new or have grown as SARIF 2.1.0.")
@click.option(
    "--fail-over", type=Share(), help="Exit with 1 if the whole interval says slower by more than SHARE of the step."
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes for many ranks.  [default: cores]")
@click.option("--quiet", "-q", is_flag=True, help="No progress, no notes on standard error.")
def command(
    sides: tuple[str, ...],
    baseline: str | None,
    html_file: str | None,
    json_file: str | None,
    markdown_file: str | None,
    sarif_file: str | None,
    fail_over: float | None,
    jobs: int | None,
    quiet: bool,
) -> None:
    """Say whether a training got slower, why, and whether it is noise.

    BEFORE and AFTER are what `diagnose analyze` takes, its reports as JSON, or baselines. A quoted pattern of folders
    stands for several recordings of one side: how these differ tells noise from a difference.

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
        write(name, rendered(found, form, before.shown, after.shown))
    if STDOUT not in files.values():
        click.echo(rendered(found, "terminal"), nl=False)
    _end(found, fail_over, quiet)


def _how_many(count: int, baseline: str | None) -> str:
    if count < 2:
        return "Name two recordings, or one and --baseline FILE."
    if baseline:
        return "With --baseline name one recording. Quote a pattern that stands for several: 'runs/new-*'."
    return "Name two. Quote a pattern that stands for several recordings of one side: 'runs/new-*'."


def _end(found: Comparison, fail_over: float | None, quiet: bool) -> None:
    """Exit with a code of its own where nothing can be told, or the step has become slower than it may."""
    if found.verdict == "cannot_tell":
        raise click.exceptions.Exit(INCONCLUSIVE)
    low = found.difference_share.low
    if fail_over is not None and low is not None and low > fail_over:
        if not quiet:
            click.echo(f"Over --fail-over: slower by at least {low:.1%}, and {fail_over:.1%} is allowed.", err=True)
        raise click.exceptions.Exit(TOO_SLOW)
