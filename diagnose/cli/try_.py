"""`diagnose try`."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from diagnose.cli.files import STDOUT, refuse_unwritable, write

if TYPE_CHECKING:
    from diagnose.findings.diagnosis import Diagnosis
    from diagnose.findings.trials import NotTried, Report
    from diagnose.trace.manifest import Manifest
    from diagnose.trials.protocol import Bench
    from diagnose.trials.selection import Candidate

INTERRUPTED = 130
SAFETIES = {"same": "same_numbers", "rounding": "rounding", "precision": "precision"}
"""Names of options -> those of findings."""

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600}


class Duration(click.ParamType[float]):
    """A time such as 90s, 10m or 1h, in seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Reads it, or fails."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if found is None:
            self.fail(f"{value!r} is no time such as 90s, 10m or 1h.", param, ctx)
        return float(found[1]) * _UNITS_S[found[2]]


@click.command(name="try", options_metavar="[OPTIONS]")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.argument("command_", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--fix", "fixes", multiple=True, metavar="N|RULE", help="Only this finding's fix (repeatable).")
@click.option("--budget", type=Duration(), default="10m", show_default=True, help="Time for all trials.")
@click.option(
    "--pairs", type=click.IntRange(2, 12), default=3, show_default=True, metavar="N", help="Pairs of runs, at least."
)
@click.option(
    "--safety",
    type=click.Choice(list(SAFETIES)),
    default="rounding",
    show_default=True,
    help="Up to which change of numbers fixes are tried by themselves.",
)
@click.option("--together/--no-together", default=True, help="Also try the fixes that paid, combined.")
@click.option("--json", "json_file", metavar="FILE", help="Write the results as JSON; - is standard output.")
@click.option("--dry-run", is_flag=True, help="Say what would be run, and end.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask about files that the script writes.")
@click.option("--quiet", "-q", is_flag=True, help="No notes on standard error.")
def command(
    run: Path,
    command_: tuple[str, ...],
    fixes: tuple[str, ...],
    budget: float,
    pairs: int,
    safety: str,
    together: bool,
    json_file: str | None,
    dry_run: bool,
    yes: bool,
    quiet: bool,
) -> None:
    """Inject fixes into the unmodified script, measure them, and say what to keep.

    RUN is a folder that `diagnose profile` made. Its command runs again, several times without and with each fix;
    each run ends after some timed steps.

    Example: diagnose try diagnose-runs/train-20261121-101500
    """
    from diagnose.findings.finding import Safety
    from diagnose.reports import trials
    from diagnose.trials import arms
    from diagnose.trials.protocol import Bench
    from diagnose.trials.selection import CannotTry, select, step_of

    def say(what: str) -> None:
        if not quiet:
            click.echo(f"diagnose: {what}", err=True)

    diagnosis, manifest = _diagnosed(run)
    refuse_unwritable([json_file] if json_file else [], [])
    try:
        words = _command(run, manifest, command_)
        candidates, others = select(diagnosis.findings, step_of(diagnosis), fixes, Safety(SAFETIES[safety]))
        size = arms.first_size(manifest)
        if dry_run:
            return click.echo("\n".join(_plan(words, candidates, others, pairs, size.expected_s)))
        if candidates:
            _ask(manifest, yes, say)
        with tempfile.TemporaryDirectory(prefix=".trial-", dir=run, ignore_cleanup_errors=True) as folder:
            bench = Bench(words, Path(folder), size, pairs, budget, say, written=_written(manifest))
            found = _measured(bench, candidates, others, together)
    except CannotTry as error:
        raise click.ClickException(str(error)) from error
    if json_file:
        write(json_file, msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    if json_file != STDOUT:
        click.echo(trials.render(found), nl=False)
    if not found.complete:
        click.echo("Interrupted. What had been measured stands above.", err=True)
        raise click.exceptions.Exit(INTERRUPTED)


def _diagnosed(run: Path) -> tuple[Diagnosis, Manifest]:
    """What analysis says of the recording, and its manifest. Raises ClickException."""
    if run.is_file():
        raise click.ClickException(f"{run} is no recording. Record it first: diagnose profile {run}")
    if not run.is_dir():
        raise click.ClickException(f"There is no folder {run}. Name a folder that diagnose profile made.")
    if not (run / "manifest.json").is_file():
        raise click.ClickException(f"{run} has no manifest.json. Name a folder that diagnose profile made.")
    from diagnose.cli.analyze import asked_rules
    from diagnose.pipeline import diagnose
    from diagnose.rulekit.settings import SettingsError
    from diagnose.rulekit.vocabulary import RuleError
    from diagnose.source.base import InputError

    try:
        diagnosis = diagnose([run], jobs=os.cpu_count() or 1, rules=asked_rules(run, (), (), ()))
    except (InputError, RuleError, SettingsError) as error:
        raise click.ClickException(str(error)) from error
    manifest = diagnosis.provenance.manifest
    if manifest is None:
        raise click.ClickException(f"The manifest.json of {run} cannot be used. Record again: diagnose profile.")
    return diagnosis, manifest


def _command(run: Path, manifest: Manifest, given: Sequence[str]) -> list[str]:
    """What to run: as given, else as it was recorded. Raises CannotTry."""
    from diagnose.trials.selection import CannotTry

    words = list(given or manifest.command)
    if not words:
        raise CannotTry(f"{run} does not know its command. Give it: diagnose try {run} -- COMMAND...")
    if any("***" in word for word in words):
        raise CannotTry(f"The command holds secrets, which are starred out. Give it: diagnose try {run} -- COMMAND...")
    scripts = [word for word in words[1:2] if word.endswith(".py") and not Path(word).exists()]
    if scripts:
        raise CannotTry(f"{scripts[0]} is not here. Run this in the folder in which it was recorded.")
    return words


def _plan(
    words: Sequence[str], candidates: Sequence[Candidate], others: Sequence[NotTried], pairs: int, arm_s: float
) -> list[str]:
    """What would be run, in lines."""
    lines = [f"Command: {shlex.join(words)}", f"As it is: 2 runs of about {arm_s:.0f} s"]
    for one in candidates:
        lines.append(f"{one.number}. {one.rule}: {one.trial}, from {pairs} pairs on, about {2 * pairs * arm_s:.0f} s")
    return [*lines, *_not_tried(others)]


def _not_tried(others: Sequence[NotTried]) -> list[str]:
    return [f"Not tried: {one.number}. {one.rule}: {one.why}." for one in others]


def _ask(manifest: Manifest, yes: bool, say: Callable[[str], None]) -> None:
    """Whether the script may write its files again, which only its user knows. Raises CannotTry if it may not."""
    from diagnose.trials.selection import CannotTry

    say("runs get no input, and W&B, MLflow, Comet, Neptune and ClearML stay offline in them")
    written = _written(manifest)
    unknown = all(rank.writes is None for rank in manifest.ranks)
    if written:
        what = f"The script writes {', '.join(written)}; each run writes there again."
    elif unknown:
        what = "What the script writes was not recorded; each run writes it again."
    else:
        return
    if yes:
        say(what)
    elif not sys.stdin.isatty():
        raise CannotTry(f"{what} If it may, add --yes.")
    elif not click.confirm(f"{what} Go on?", err=True):
        raise click.Abort


def _written(manifest: Manifest) -> list[str]:
    return list(dict.fromkeys(name for rank in manifest.ranks for name in rank.writes or ()))


def _measured(bench: Bench, candidates: Sequence[Candidate], others: Sequence[NotTried], together: bool) -> Report:
    """Try all, up to an interrupt. Raises CannotTry."""
    from diagnose.findings.trials import NotTried
    from diagnose.reports import trials
    from diagnose.trials import protocol

    combined, complete = None, not candidates
    with suppress(KeyboardInterrupt):
        if candidates:
            bench.begin()
        for one, rest in zip(candidates, reversed(range(len(candidates))), strict=True):
            bench.say(trials.brief(bench.measure([one], one.predicted, rest + together)))
        kept = [one for one, trial in zip(candidates, bench.trials, strict=True) if trial.verdict == "keep"]
        if together and len(kept) > 1:
            combined = bench.measure(kept, None)
        complete = True
    left = candidates[len(bench.trials) :]
    untried = [*others, *(NotTried(one.rule, one.number, one.fix.do, "interrupted before") for one in left)]
    return protocol.report(bench.without, bench.trials, combined, untried, complete)
