"""`diagnose patch`, which writes fixes, and `diagnose ledger`, which compares predictions with trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from diagnose.cli.results import STDOUT, sentences, write

if TYPE_CHECKING:
    from diagnose.contracts.ledger import LedgerReport


@click.command(name="patch")
@click.argument("run", metavar="RUN")
@click.option("--fix", "fixes", multiple=True, metavar="N|RULE", help="Include only this finding's fix. Repeatable.")
@click.option("--options", is_flag=True, help="Include options as well as faults.")
@click.option("--kept", is_flag=True, help="Include all fixes that `diagnose try` kept, and no others.")
@click.option(
    "--write", "write_it", is_flag=True, help="Also change the files, unless they changed since the recording."
)
@click.option("--output", metavar="FILE", default=STDOUT, help="Output file of the diff.  [default: standard output]")
@click.option("--quiet", "-q", is_flag=True, help="Print no notes.")
def command(
    run: str, fixes: tuple[str, ...], options: bool, kept: bool, write_it: bool, output: str, quiet: bool
) -> None:
    """Write fixes as a unified diff of your files.

    RUN is a folder of `diagnose profile`. The diff goes to standard output, and an explanation of each fix to standard
    error. Fixes that need your judgement or save less than 1 % are not included, unless you name them with --fix.

    Example: diagnose patch diagnose-runs/train-20261121-101500 > fixes.diff
    """
    from diagnose.cli.analyze import INCONCLUSIVE
    from diagnose.cli.reading import opened
    from diagnose.patches import files, making
    from diagnose.patches.files import CannotPatch
    from diagnose.patches.making import Which
    from diagnose.reports import trials

    if kept and fixes:
        raise click.ClickException("--kept and --fix exclude each other. Use only one.")
    if output.endswith(".py"):
        raise click.ClickException(f"{output} is a Python file. Name a file such as fixes.diff.")
    with opened([run], [output], quiet=quiet) as recordings:
        diagnosis = recordings.diagnosed()
    with sentences(CannotPatch):
        manifest = diagnosis.provenance.manifest
        patch = making.make(
            *(diagnosis.findings, manifest, diagnosis.rank, fixes, Path.cwd(), diagnosis.trials),
            None if diagnosis.program is None else diagnosis.program.loop,
            Which.KEPT if kept else Which.WITH_OPTIONS if options else Which.FAULTS,
        )
        if not quiet:
            click.echo(trials.patched(patch, diagnosis), nl=False, err=True)
            if patch.files and patch.root != Path.cwd().resolve():
                click.echo("Apply the diff in the top folder of the git checkout.", err=True)
        if write_it:
            files.write(patch)
        write(output, making.unified(patch.files))
    if write_it and patch.files and not quiet:
        click.echo(f"Written: {', '.join(file.name for file in patch.files)}.", err=True)
    if not diagnosis.conclusive:
        click.echo(f"{run} has too little data. Run diagnose analyze {run} to see why.", err=True)
        raise click.exceptions.Exit(INCONCLUSIVE)


@click.command(name="ledger")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--rule", metavar="RULE", help="Show only this rule (name or code).")
def ledger(as_json: bool, rule: str | None) -> None:
    """Show how predictions compared with trials on this machine, by rule.

    `diagnose try` adds a line per fix to a file in your home folder. It names no script, path or host.

    Example: diagnose ledger --rule dataloader_starvation
    """
    from diagnose.ledger import file, read
    from diagnose.reports.trials import ledger_text

    try:
        report = read().report
    except OSError as error:
        why = f"Cannot read the ledger {file()}: {error.strerror}. Make it readable or delete it."
        raise click.ClickException(why) from error
    if rule is not None:
        report = _only(report, rule)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        click.echo(ledger_text(report), nl=False)


def _only(report: LedgerReport, rule: str) -> LedgerReport:
    """The report with the trials of one rule, by id or code. Raises ClickException if it has none."""
    from diagnose.rulekit import page

    names = {rule, *(one.id for one in page.pages(page.built_in_rules()) if one.code == rule.upper())}
    found = tuple(one for one in report.rules if one.rule in names)
    if not found:
        there = ", ".join(dict.fromkeys(one.rule for one in report.rules)) or "none"
        raise click.ClickException(f"The ledger has no trial of {rule}. It has: {there}.")
    return msgspec.structs.replace(report, rules=found)
