"""`diagnose analyze`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from diagnose.cli.files import refuse_unwritable, write
from diagnose.cli.progress import shown

if TYPE_CHECKING:
    from diagnose.diagnosis import Diagnosis

INCONCLUSIVE = 3


class StepRange(click.ParamType[tuple[int, int]]):
    """`A-B`, or a single number."""

    name = "A-B"

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """(first, last) step number."""
        if isinstance(value, tuple):
            return value
        first, _, last = value.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or value.endswith("-"):
            self.fail(f"{value!r} is not a range of step numbers such as 3-7.", param, ctx)
        return int(first), int(last or first)


@click.command(name="analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "json_file", metavar="FILE", help="Write the diagnosis as JSON; - is standard output.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write it as Markdown; - is standard output.")
@click.option(
    "--format", "shape", type=click.Choice(["terminal", "json", "markdown"]), default="terminal", show_default=True,
    help="What goes to standard output.",
)  # fmt: skip
@click.option("--steps", type=StepRange(), help="Use only these recorded steps.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes for many ranks.  [default: cores]")
@click.option("--quiet", "-q", is_flag=True, help="No progress, no notes on standard error.")
def command(
    paths: tuple[str, ...], json_file: str | None, markdown_file: str | None, shape: str,
    steps: tuple[int, int] | None, jobs: int | None, quiet: bool,
) -> None:  # fmt: skip
    """Say where the time of recorded training steps goes.

    PATH is a trace that torch.profiler wrote (plain or .gz), a folder of one file per rank, or a glob pattern.

    Example: diagnose analyze runs/rank0.trace.json.gz --steps 3-7
    """
    from diagnose.pipeline import diagnose
    from diagnose.source import ranks
    from diagnose.source.base import InputError

    files = {"json": json_file, "markdown": markdown_file}
    try:
        read = [file.path for file in ranks.find(paths)]
        refuse_unwritable([name for name in files.values() if name], read)
        with shown("Reading traces", quiet) as progress:
            diagnosis = diagnose(paths, steps, jobs or os.cpu_count() or 1, progress)
    except InputError as error:
        raise click.ClickException(str(error)) from error
    for form, name in files.items():
        if name:
            write(name, rendered(diagnosis, form))
    if "-" not in files.values():
        click.echo(rendered(diagnosis, shape), nl=False)
    if not diagnosis.conclusive:
        raise click.exceptions.Exit(INCONCLUSIVE)


def rendered(diagnosis: Diagnosis, form: str) -> str:
    """The diagnosis as text, ending in a newline."""
    if form == "json":
        return diagnosis.to_json() + "\n"
    if form == "markdown":
        from diagnose.reports import markdown

        return markdown.render(diagnosis)
    from rich.console import Console

    from diagnose.reports import terminal

    console = Console()
    color = console.is_terminal and not console.no_color and sys.stdout.isatty()
    return terminal.render(diagnosis, console.width if sys.stdout.isatty() else 80, color)
