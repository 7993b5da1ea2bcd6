"""What becomes of a diagnosis: text of some form, and a page in the browser."""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose.cli.files import write

if TYPE_CHECKING:
    from diagnose.findings.diagnosis import Diagnosis
    from diagnose.findings.finding import RankedFinding


def rendered(diagnosis: Diagnosis, form: str, over: Collection[RankedFinding] = ()) -> str:
    """The diagnosis as text, ending in a newline: html, json, markdown, perfetto, sarif, junit or terminal.

    `over`: findings that the command fails for.
    """
    if form == "json":
        return diagnosis.to_json() + "\n"
    if form == "html":
        from diagnose.reports.html import page

        return page.render(diagnosis)
    if form == "markdown":
        from diagnose.reports import markdown

        return markdown.render(diagnosis)
    if form == "perfetto":
        from diagnose.reports import perfetto

        return perfetto.render(diagnosis) + "\n"
    if form in ("sarif", "junit"):
        from diagnose.reports import junit, sarif

        render = sarif.render if form == "sarif" else junit.render
        return render(diagnosis, over=over)
    return _on_terminal(diagnosis)


def _on_terminal(diagnosis: Diagnosis) -> str:
    from rich.console import Console

    from diagnose.reports import terminal

    console = Console()
    color = console.is_terminal and not console.no_color and sys.stdout.isatty()
    return terminal.render(diagnosis, console.width if sys.stdout.isatty() else 80, color)


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
