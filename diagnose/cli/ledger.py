"""`diagnose ledger`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from diagnose.contracts.ledger import LedgerReport


@click.command(name="ledger")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--rule", metavar="RULE", help="Show only this rule (name or code).")
def command(as_json: bool, rule: str | None) -> None:
    """Show how predictions compared with trials on this machine, by rule.

    `diagnose try` adds a line per fix to a file in your home folder. It names no script, path or host.

    Example: diagnose ledger --rule dataloader_starvation
    """
    from diagnose import ledger
    from diagnose.reports import trials as text

    try:
        report = ledger.read().report
    except OSError as error:
        why = f"Cannot read the ledger {ledger.file()}: {error.strerror}. Make it readable or delete it."
        raise click.ClickException(why) from error
    if rule is not None:
        report = _only(report, rule)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        click.echo(text.ledger_text(report), nl=False)


def _only(report: LedgerReport, rule: str) -> LedgerReport:
    """Of one rule. Raises ClickException if it has no trial."""
    from diagnose.rulekit import page

    names = {rule, *(one.id for one in page.pages(page.built_in_rules()) if one.code == rule.upper())}
    found = tuple(one for one in report.rules if one.rule in names)
    if not found:
        there = ", ".join(dict.fromkeys(one.rule for one in report.rules)) or "none"
        raise click.ClickException(f"The ledger has no trial of {rule}. It has: {there}.")
    return msgspec.structs.replace(report, rules=found)
