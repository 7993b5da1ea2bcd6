"""`diagnose baseline`."""

from pathlib import Path

import click

from diagnose.cli.results import STDOUT, output, refuse_unwritable, write


@click.command(name="baseline")
@click.argument("run", metavar="RUN")
@click.option(
    "--out", "-o", "name", default=STDOUT, metavar="FILE", help="Output file.  [default: - (standard output)]"
)
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Number of processes for many ranks.  [default: cores]"
)
@click.option("--quiet", "-q", is_flag=True, help="Print no progress and no notes.")
def command(run: str, name: str, jobs: int | None, quiet: bool) -> None:
    """Write a small JSON of a recording, for later comparisons.

    The file has times, op names, source lines and settings, but no command and no data: commit or cache it. RUN is as
    for `diagnose compare`; give several recordings as a quoted pattern of folders.

    Example: diagnose baseline 'runs/main-*' -o baseline.json
    """
    from diagnose.cli.compare import read_side

    name = output(name)
    refuse_unwritable([name], [Path(run)])
    write(name, read_side(run, jobs, quiet).baseline.to_json() + "\n")
