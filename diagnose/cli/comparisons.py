"""What `compare` and `baseline` share: reading a side, and a comparison as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from diagnose.cli.analyze import INCONCLUSIVE
from diagnose.cli.reading import opened
from diagnose.cli.results import width_and_color

if TYPE_CHECKING:
    from diagnose.comparing.sides import Side
    from diagnose.contracts.comparison import Comparison
    from diagnose.contracts.diagnosis import Diagnosis


def read_side(given: str, jobs: int | None, quiet: bool) -> Side:
    """Read one side. Raises a ClickException if it cannot be read, and Exit if nothing in it can be measured."""
    from diagnose.comparing.sides import Inconclusive, side
    from diagnose.source.base import InputError

    def analysed(paths: Sequence[str]) -> Diagnosis:
        title = f"Reading {given}"
        with opened(paths, jobs=jobs, quiet=quiet, title=title) as recordings:
            return recordings.diagnosed()

    try:
        return side(given, analysed)
    except InputError as error:
        raise click.ClickException(str(error)) from error
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
