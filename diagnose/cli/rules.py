"""`diagnose rules`."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose.cli.results import sentences, width_and_color
from diagnose.rulekit import page
from diagnose.rulekit.page import Page

if TYPE_CHECKING:
    from diagnose.rulekit.engine import LoadedRule
    from diagnose.rulekit.testing import Said

WIDTH = 100
MOST_LINES = {"Why it costs": 3, "How to fix": 5, "Ignore when": 3}  # Of the parts of a rule's page that `show` has.


@click.group(name="rules")
def command() -> None:
    """List all rules, show one, or test your own.

    Example: diagnose rules show dataloader_starvation
    """


_more = click.option(
    "--rules", "folders", multiple=True, metavar="DIR", help="Also include the rules in DIR. Repeatable."
)


def _pages(folders: tuple[str, ...]) -> list[Page]:
    """Pages of all built-in and installed rules and those in `folders`, by code. Raises ClickException."""
    found = []
    with sentences(ValueError):
        known = (page.built_in_rules(), *page.installed_rules().values())
    for folder in (*known, *map(Path, folders)):
        if not folder.is_dir():
            raise click.ClickException(f"{folder} is not a folder.")
        try:
            found += page.pages(folder)
        except (SyntaxError, ValueError, OSError) as error:
            raise click.ClickException(f"{folder} cannot be read: {error}.") from error
    return sorted(found, key=lambda one: (one.code, one.id))


@command.command(name="list")
@_more
def list_rules(folders: tuple[str, ...]) -> None:
    """List all rules with their codes and titles.

    Example: diagnose rules list
    """
    listed = _pages(folders)
    width = max((len(rule.id) for rule in listed), default=0)
    for rule in listed:
        click.echo(f"{rule.code:<5} {rule.id:<{width}}  {rule.title}")


@command.command(name="show")
@click.argument("name", metavar="RULE")
@click.option("--details", is_flag=True, help="Show the whole page as Markdown, with thresholds and examples.")
@_more
def show_rule(name: str, details: bool, folders: tuple[str, ...]) -> None:
    """Show a rule: why the problem costs time, how to fix it, and when to ignore it. RULE is a name or a code.

    Example: diagnose rules show DL02
    """
    found = [one for one in _pages(folders) if name in (one.id, one.code)]
    if not found:
        raise click.ClickException(f"There is no rule {name!r}. Run `diagnose rules list` for all rules.")
    if details:
        click.echo(page.section(found[0]), nl=False)
        return
    click.echo("\n".join(_shown(found[0], min(width_and_color()[0], WIDTH))))


def _shown(one: Page, width: int) -> list[str]:
    """A rule's page as lines for a terminal: a few of each section."""
    lines = [f"{one.title} ({one.code}, {one.id})", *textwrap.wrap(one.summary, width, max_lines=4)]
    for head, most in MOST_LINES.items():
        text = " ".join(one.sections.get(head, "").split())
        lines += textwrap.wrap(f"{head}: {text}" * bool(text), width, subsequent_indent="  ", max_lines=most)
    sources = [f"  {line}" for line in one.sections.get("Sources", "").splitlines()]
    return [*lines, *sources[: 17 - len(lines)], f"Next: diagnose rules show {one.code} --details"]


@command.command(name="test")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def test_rules(folder: Path) -> None:
    """Run the examples of the rules in DIR.

    Example: diagnose rules test my-rules
    """
    from diagnose.rulekit import testing
    from diagnose.rulekit.vocabulary import RuleError

    if not folder.is_dir():
        raise click.ClickException(f"{folder} is not a folder.")
    failed = passed = 0
    with sentences(RuleError):
        for example in testing.examples(folder):
            why = testing.failure(example, of_drawing)
            click.echo(f"{'FAILED' if why else 'ok':<6} {example.name}{f': {why}' if why else ''}")
            failed, passed = failed + bool(why), passed + (not why)
    if not failed + passed:
        raise click.ClickException(f"{folder} has no rules. Write one as docs/writing-rules.md shows.")
    click.echo(f"{passed} ok, {failed} failed")
    if failed:
        raise click.exceptions.Exit(1)


def of_drawing(rule: "LoadedRule", drawing: str) -> "Said":
    """A rule's outcome on a drawn trace or run, and its saving (low, high) in ms or None. Raises DrawingError."""
    from diagnose.pipeline import present
    from diagnose.synthetic.reading import facts_of
    from diagnose.synthetic.run_notation import run_of
    from diagnose.watched.findings import of_run

    if rule.check.of_run:
        return of_run(run_of(drawing), rule)
    said = present(facts_of(drawing), [rule])
    times_ns, replay = said.findings[0].saving.replayed_ns if said.findings else None, said.sections.replay
    if times_ns is None or replay is None:
        return said.outcomes[0], None
    low_ms, high_ms = ((replay.step_time_ns - ns) / 1e6 for ns in (max(times_ns), min(times_ns)))
    return said.outcomes[0], (low_ms, high_ms)
