"""What becomes of a diagnosis: text of some form, and a page in the browser."""

from __future__ import annotations

import html
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diagnose import failures
from diagnose.cli.files import write

if TYPE_CHECKING:
    from diagnose.contracts.diagnosis import Diagnosis
    from diagnose.contracts.finding import RankedFinding


_MODULES = {"html": "html.page", "markdown": "markdown", "perfetto": "perfetto", "sarif": "sarif"}
"""Form -> the module of reports that renders it, which is loaded when it is asked for."""

_INSTEAD = {"html": "terminal", "terminal": "markdown", "markdown": "terminal"}
"""Form for people -> another that is shown in its place where it cannot be made."""

_PLAIN_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>diagnose</title><p>{}</p><pre>{}</pre></html>\n'
)


def rendered(
    diagnosis: Diagnosis, form: str, over: Collection[RankedFinding] = (), details: bool = False, minor: bool = False
) -> str | None:
    """The diagnosis as text, ending in a newline: json, terminal, or one of _MODULES.

    None if it cannot be made by a fault of ours: standard error says so. `over`: findings that the command fails for.
    `details`: all evidence and tables, in forms that are brief without. `minor`: what saves little as well.
    """
    with failures.collected() as lost:
        made = partial(_rendered, diagnosis, over=over, details=details, minor=minor)
        text = failures.attempt(f"the report as {form}", None, made, form)
        if text is not None:
            return text
        click.echo(f"diagnose: {lost[0]}", err=True)
        other = _INSTEAD.get(form)
        text = other and failures.attempt("a text in its place", None, made, other)
    return _PLAIN_PAGE.format(html.escape(str(lost[0])), html.escape(text)) if text and form == "html" else text


def _rendered(diagnosis: Diagnosis, form: str, over: Collection[RankedFinding], details: bool, minor: bool) -> str:
    if form == "json":
        return diagnosis.to_json() + "\n"
    if form == "terminal":
        from diagnose.reports import terminal

        return terminal.render(diagnosis, *width_and_color(), details, minor)
    module = import_module(f"diagnose.reports.{_MODULES[form]}")
    how: dict[str, Any] = {"over": over} if form == "sarif" else {}
    how |= {"details": details, "minor": minor} if form == "markdown" else {}
    text: str = module.render(diagnosis, **how)
    return text if text.endswith("\n") else text + "\n"


def put(diagnosis: Diagnosis, form: str, name: str, over: Collection[RankedFinding] = ()) -> bool:
    """Write the diagnosis to a file. False: it cannot be made by a fault of ours, as standard error says."""
    text = rendered(diagnosis, form, over)
    if text is not None:
        write(name, text)
    return text is not None


def width_and_color() -> tuple[int, bool]:
    """How wide standard output is, and whether it shows colours: a pipe has 80 columns and none."""
    from rich.console import Console

    console = Console()
    color = console.is_terminal and not console.no_color and sys.stdout.isatty()
    return console.width if sys.stdout.isatty() else 80, color


def open_page(diagnosis: Diagnosis, written: str | None) -> None:
    """Open the page in a browser: the file it was written to, else one in the folder for temporary files."""
    open_text(lambda: rendered(diagnosis, "html") or "", written)


def open_text(page: Callable[[], str], written: str | None) -> None:
    """As `open_page`, of a page of any kind."""
    if written is None:
        try:
            written = str(Path(tempfile.mkdtemp(prefix="diagnose-")) / "report.html")
        except OSError as error:
            raise click.ClickException(
                f"Cannot create a file for the page: {error.strerror}. Use --html FILE."
            ) from error
        write(written, page())
    if not webbrowser.open(Path(written).resolve().as_uri()):
        click.echo(f"No browser could be started. Open {written} yourself.", err=True)
