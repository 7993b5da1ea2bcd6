"""`diagnose baseline`."""

from __future__ import annotations

from pathlib import Path

import click

from diagnose.cli.files import STDOUT, output, refuse_unwritable, write


@click.command(name="baseline")
@click.argument("run", metavar="RUN")
@click.option(
    "--out", "-o", "name", default=STDOUT, metavar="FILE", help="Where it goes.  [default: - (standard output)]"
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes for many ranks.  [default: cores]")
@click.option("--quiet", "-q", is_flag=True, help="No progress, no notes on standard error.")
def command(run: str, name: str, jobs: int | None, quiet: bool) -> None:
    """Write a small JSON of a recording, to compare later ones with.

    It is there to be committed or cached: times, names of ops, source lines and settings; no command, and no data.
    RUN is what `diagnose compare` takes: a quoted pattern of folders stands for several recordings.

    Example: diagnose baseline 'runs/main-*' -o baseline.json
    """
    from diagnose.cli.comparisons import read_side

    name = output(name)
    refuse_unwritable([name], [Path(run)])
    write(name, read_side(run, jobs, quiet).baseline.to_json() + "\n")
