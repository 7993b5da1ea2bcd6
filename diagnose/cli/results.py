"""What becomes of a diagnosis: text of some form, and a page in the browser."""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose.cli.files import write

if TYPE_CHECKING:
    from diagnose.findings.diagnosis import Diagnosis
    from diagnose.findings.finding import RankedFinding


_MODULES = {
    "brief": "brief",
    "html": "html.page",
    "junit": "junit",
    "markdown": "markdown",
    "metrics": "openmetrics",
    "perfetto": "perfetto",
    "sarif": "sarif",
}
"""Form -> the module of reports that renders it, which is loaded when it is asked for."""

_OF_GATES = ("junit", "sarif")
"""They say for which findings the command fails."""


def rendered(diagnosis: Diagnosis, form: str, over: Collection[RankedFinding] = ()) -> str:
    """The diagnosis as text, ending in a newline: json, terminal, or one of _MODULES.

    `over`: findings that the command fails for.
    """
    if form == "json":
        return diagnosis.to_json() + "\n"
    if form == "terminal":
        from diagnose.reports import terminal

        return terminal.render(diagnosis, *width_and_color())
    module = import_module(f"diagnose.reports.{_MODULES[form]}")
    text: str = module.render(diagnosis, over=over) if form in _OF_GATES else module.render(diagnosis)
    return text if text.endswith("\n") else text + "\n"


def width_and_color() -> tuple[int, bool]:
    """How wide standard output is, and whether it shows colours: a pipe has 80 columns and none."""
    from rich.console import Console

    console = Console()
    color = console.is_terminal and not console.no_color and sys.stdout.isatty()
    return console.width if sys.stdout.isatty() else 80, color


def open_page(diagnosis: Diagnosis, written: str | None) -> None:
    """Open the page in a browser: the file it was written to, else one in the folder for temporary files."""
    if written is None:
        try:
            written = str(Path(tempfile.mkdtemp(prefix="diagnose-")) / "report.html")
        except OSError as error:
            raise click.ClickException(f"No file can be made for the page: {error.strerror}. Use --html.") from error
        write(written, rendered(diagnosis, "html"))
    if not webbrowser.open(Path(written).resolve().as_uri()):
        click.echo(f"No browser could be started. The page is {written}", err=True)
