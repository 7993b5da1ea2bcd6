"""What `compare` and `baseline` share: reading a side, and a comparison as text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from diagnose.cli.analyze import INCONCLUSIVE, asked_rules
from diagnose.cli.progress import shown
from diagnose.cli.results import width_and_color

if TYPE_CHECKING:
    from diagnose.comparing.sides import Side
    from diagnose.contracts.comparison import Comparison
    from diagnose.contracts.diagnosis import Diagnosis


def read_side(given: str, jobs: int | None, no_cache: bool, quiet: bool) -> Side:
    """Read one side. Raises a ClickException if it cannot be read, and Exit if nothing in it can be measured."""
    from diagnose.comparing.sides import Inconclusive, side
    from diagnose.pipeline import diagnose
    from diagnose.rulekit.settings import SettingsError
    from diagnose.rulekit.vocabulary import RuleError
    from diagnose.source import cache, recording
    from diagnose.source.base import InputError

    def analysed(paths: Sequence[str]) -> Diagnosis:
        found = recording.find(paths)
        with shown(f"Reading {given}", quiet) as progress, cache.unused(no_cache):
            rules = asked_rules(found.ranks[0].trace.path, (), (), ())
            return diagnose(found, None, jobs or os.cpu_count() or 1, progress, rules)

    try:
        return side(given, analysed)
    except (InputError, RuleError, SettingsError) as error:
        raise click.ClickException(str(error)) from error
    except Inconclusive as error:
        click.echo(f"Error: {error}", err=True)
        raise click.exceptions.Exit(INCONCLUSIVE) from error


def rendered(found: Comparison, form: str, before: Diagnosis | None = None, after: Diagnosis | None = None) -> str:
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

    return markdown.compared(found) if form == "markdown" else terminal.compared(found, *width_and_color())
