"""`diagnose rules`."""

from __future__ import annotations

from pathlib import Path

import click

from diagnose.rulekit import page
from diagnose.rulekit.page import Page


@click.group(name="rules")
def command() -> None:
    """List the rules, show one's page, or test a folder of them.

    Example: diagnose rules show dataloader_starvation
    """


_more = click.option("--rules", "folders", multiple=True, metavar="DIR", help="Also the rules in DIR. Repeatable.")


def _pages(folders: tuple[str, ...]) -> list[Page]:
    """Of the built-in rules and those in folders, in order of codes."""
    found = []
    try:
        known = (page.built_in_rules(), *page.installed_rules().values())
    except ValueError as error:
        raise click.ClickException(str(error)) from error
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
@_more
def show_rule(name: str, folders: tuple[str, ...]) -> None:
    """Show a rule's page: why it costs, how to fix it, thresholds, examples. RULE is a name or a code.

    Example: diagnose rules show DL02
    """
    found = [one for one in _pages(folders) if name in (one.id, one.code)]
    if not found:
        raise click.ClickException(f"There is no rule {name!r}. `diagnose rules list` shows all.")
    click.echo(page.section(found[0]), nl=False)


@command.command(name="test")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def test_rules(folder: Path) -> None:
    """Run the examples of the rules in DIR.

    Example: diagnose rules test my-rules
    """
    from diagnose.pipeline import present
    from diagnose.rulekit import testing
    from diagnose.rulekit.vocabulary import RuleError
    from diagnose.synthetic.reading import facts_of

    if not folder.is_dir():
        raise click.ClickException(f"{folder} is not a folder.")
    failed = passed = 0
    try:
        for example in testing.examples(folder):
            why = testing.failure(example, facts_of, present)
            click.echo(f"{'FAILED' if why else 'ok':<6} {example.name}{f': {why}' if why else ''}")
            failed, passed = failed + bool(why), passed + (not why)
    except RuleError as error:
        raise click.ClickException(str(error)) from error
    if not failed + passed:
        raise click.ClickException(f"{folder} holds no rules. A rule is a file such as those of `diagnose rules list`.")
    click.echo(f"{passed} ok, {failed} failed")
    if failed:
        raise click.exceptions.Exit(1)
