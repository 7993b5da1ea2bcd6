"""`diagnose try`."""

from __future__ import annotations

import math
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from diagnose.capture.folders import of as job_of
from diagnose.cli import profile
from diagnose.cli.measure import Duration
from diagnose.cli.reading import notes, opened
from diagnose.cli.results import STDOUT, output, put, refuse_unwritable, sentences, width_and_color, write

if TYPE_CHECKING:
    from diagnose.contracts.diagnosis import Diagnosis
    from diagnose.contracts.trials import NotTried, Range, Report, Trial
    from diagnose.trace.manifest import Manifest
    from diagnose.trace.measured import Screened
    from diagnose.trials.protocol import Bench
    from diagnose.trials.selection import Candidate

SAFETIES = {"same": "same_numbers", "rounding": "rounding", "precision": "precision"}  # Of options -> of findings.
TRACES = (".json", ".gz", ".sqlite", ".nsys-rep")  # Ends of names of files that are no scripts.


class Trying(profile.Launching):
    """Options of diagnose may also follow a recording, up to `--`; all words after a script belong to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Sets the recording, or the command to run, aside, and parses the rest."""
        at = self.end_of_options(args)
        if at == len(args) or not _names_a_recording(args[at]):
            return super().parse_args(ctx, args)
        rest = args[at + 1 :]
        end = rest.index("--") if "--" in rest else len(rest)
        ctx.meta[profile.COMMAND] = [args[at], *rest[end:]]
        return click.Command.parse_args(self, ctx, [*args[:at], *rest[:end]])


def _names_a_recording(word: str) -> bool:
    path = Path(word)
    return word not in ("--", "-m") and path.suffix != ".py" and (path.suffix in TRACES or not path.is_file())


@click.command(name="try", cls=Trying, options_metavar="[OPTIONS] RUN | SCRIPT [ARGS]...")
@click.option("--fix", "fixes", multiple=True, metavar="N|RULE", help="Try only this finding's fix. Repeatable.")
@click.option("--options", is_flag=True, help="Try options as well as faults.")
@click.option("--budget", type=Duration(), default="5m", show_default=True, help="Time limit for all trials together.")
@click.option(
    "--pairs",
    type=click.IntRange(2, 12),
    default=2,
    show_default=True,
    metavar="N",
    help="Minimum number of run pairs per fix.",
)
@click.option(
    "--safety",
    type=click.Choice(list(SAFETIES)),
    default="rounding",
    show_default=True,
    help="Largest numerical change to try automatically.",
)
@click.option("--together/--no-together", default=True, help="Also measure the kept fixes together.")
@click.option("--details", is_flag=True, help="Print all measurements of each fix.")
@click.option("--html", "html_file", metavar="FILE", help="Write the run's report with the measurements.")
@click.option("--json", "json_file", metavar="FILE", help="Write the results as JSON; - is standard output.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write them as Markdown; - is standard output.")
@click.option("--dry-run", is_flag=True, help="Print the plan without running anything.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before the script overwrites its files.")
@click.option("--quiet", "-q", is_flag=True, help="Print no notes.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    fixes: tuple[str, ...],
    options: bool,
    budget: float,
    pairs: int,
    safety: str,
    together: bool,
    details: bool,
    dry_run: bool,
    yes: bool,
    quiet: bool,
    **asked: str | None,
) -> None:
    """Try fixes in your unmodified script, measure them, and report which to keep.

    RUN is a folder of `diagnose profile`. One run toggles fixes between steps (A/B). Further runs measure fixes that
    only work from the start, and the kept fixes together. Each run ends after some timed steps. `RUN -- COMMAND` runs
    COMMAND instead of the recorded one. A SCRIPT (or -m MODULE, or -- COMMAND with a launcher) is profiled first.

    Example: diagnose try train.py --epochs 3
    """
    from diagnose import ledger
    from diagnose.fixes.setting import Safety
    from diagnose.trials import arms
    from diagnose.trials.protocol import Bench
    from diagnose.trials.selection import CannotTry, between_runs, in_order, select, step_of

    say = notes(quiet)
    files = {form.removesuffix("_file"): output(name) for form, name in asked.items() if name}
    refuse_unwritable(list(files.values()), [])
    run, given = _recording(ctx.meta[profile.COMMAND], STDOUT in files.values(), quiet)
    diagnosis, manifest = _diagnosed(run)
    with sentences(CannotTry):
        words = _command(run, manifest, given)
        level, size = Safety(SAFETIES[safety]), arms.first_size(manifest)
        candidates, others = select(diagnosis.findings, step_of(diagnosis), fixes, level, options)
        candidates = in_order(candidates)
        if dry_run:
            return click.echo("\n".join(_plan(words, candidates, others, pairs, size.expected_s)))
        if candidates:
            _ask(manifest, yes, say)
            _warn(candidates, pairs, size.expected_s, budget, say)
        with _work_folder(run) as folder:
            bench = Bench(words, Path(folder), size, pairs, budget, say)
            bench.written, bench.screens = _written(manifest), Screening(candidates, say)
            bench.between = between_runs(diagnosis)
            found = _measured(run, bench, candidates, others, together)
    ledger.remember(found, diagnosis, say)
    _report(run, diagnosis, found, files, details, say)
    if not found.complete:
        kept = "The measurements so far are above." if found.baseline else "Nothing was measured."
        click.echo(f"Interrupted. {kept}", err=True)
        raise click.exceptions.Exit(profile.INTERRUPTED)


def _recording(words: Sequence[str], to_stdout: bool, quiet: bool) -> tuple[Path, Sequence[str]]:
    """The folder to try fixes of, and the command that follows it; a script is recorded into a new folder first."""
    if not words:
        raise click.UsageError("Name a recording or a script, for example: diagnose try train.py")
    if _names_a_recording(words[0]):
        return Path(words[0]), words[2:]
    name, given = profile.command_of(words)
    if job_of(given, os.environ) is not None:
        raise click.ClickException(
            "diagnose try needs the command that starts all ranks. Run it with that launcher command."
        )
    if to_stdout:
        raise click.ClickException(
            "The script uses standard output while diagnose records it. Name a file for the results."
        )
    folder = profile.new_folder(name, None)
    options = ["--out", str(folder), "--no-analyze", *["--quiet"] * quiet]
    if code := profile.command.main([*options, *words], prog_name="diagnose profile", standalone_mode=False):
        raise click.exceptions.Exit(code)
    return folder, given


def _diagnosed(run: Path) -> tuple[Diagnosis, Manifest]:
    """The analysis of a recording's folder, and its manifest. Raises ClickException if it has none that is usable."""
    if run.is_file():
        raise click.ClickException(f"{run} is a single trace. Name a folder of diagnose profile.")
    if not run.is_dir():
        raise click.ClickException(f"The folder {run} does not exist. Name a folder of diagnose profile.")
    if not (run / "manifest.json").is_file():
        raise click.ClickException(f"{run} has no manifest.json. Name a folder of diagnose profile.")
    diagnosis = _analyzed(run)
    manifest = diagnosis.provenance.manifest
    if manifest is None:
        raise click.ClickException(f"The manifest.json of {run} is unusable. Record again with diagnose profile.")
    return diagnosis, manifest


def _analyzed(run: Path, rules: Sequence[str] = ()) -> Diagnosis:
    with opened([str(run)], select=rules, quiet=True) as recordings:
        return recordings.diagnosed()


def _command(run: Path, manifest: Manifest, given: Sequence[str]) -> list[str]:
    """What to run: as given, else as it was recorded. Raises CannotTry."""
    from diagnose.trials.selection import CannotTry

    words = list(given or manifest.command)
    if not words:
        raise CannotTry(f"{run} has no recorded command. Run: diagnose try {run} -- COMMAND...")
    if any("***" in word for word in words):
        raise CannotTry(f"The recorded command has masked secrets. Run: diagnose try {run} -- COMMAND...")
    if script := next((word for word in words[1:2] if word.endswith(".py") and not Path(word).exists()), None):
        raise CannotTry(f"{script} is not here. Run diagnose try in the folder of the recording's script.")
    return words


def _work_folder(run: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for files of the runs, inside the recording. Raises CannotTry if that is not writable."""
    from diagnose.trials.selection import CannotTry

    try:
        return tempfile.TemporaryDirectory(prefix=".trial-", dir=run, ignore_cleanup_errors=True)
    except OSError as error:
        raise CannotTry(f"Cannot write to {run}: {error.strerror}. Copy the recording to a writable folder.") from error


def _measured(
    run: Path, bench: Bench, candidates: Sequence[Candidate], others: Sequence[NotTried], together: bool
) -> Report:
    """The report of trying all candidates; of those done if interrupted. Raises CannotTry."""
    from diagnose.contracts.trials import NotTried
    from diagnose.reports import trials
    from diagnose.trials import course, selection

    def predicted(kept: Sequence[Candidate]) -> Range | None:
        rules = tuple(one.rule for one in kept)
        return selection.predicted(_analyzed(run, rules), rules)

    def ended(trial: Trial) -> None:
        bench.say(trials.brief(trial))

    complete = not candidates
    with suppress(KeyboardInterrupt):
        course.run(bench, candidates, predicted, ended, together)
        complete = True
    tried = {number for trial in (*bench.in_blocks, *bench.trials) for number in trial.numbers}
    left = [one for one in candidates if one.number not in tried]
    untried = [*others, *(NotTried(one.rule, one.number, one.fix.do, "interrupted") for one in left)]
    return course.report(bench, untried, complete)


def _report(
    run: Path, diagnosis: Diagnosis, found: Report, files: dict[str, str], details: bool, say: Callable[[str], None]
) -> None:
    """Print the result of the trials and write it to the files asked for and beside the recording."""
    from diagnose.reports import markdown, trials

    if STDOUT not in files.values():  # First of all: what was measured is not to be lost with a full disk.
        click.echo(trials.render(found, details, width_and_color()[0]), nl=False)
    diagnosis = msgspec.structs.replace(diagnosis, trials=found)
    kept = msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"
    if found.trials and os.access(run, os.W_OK):
        write(str(run / "trials.json"), kept)
        put(diagnosis, "json", str(run / "report.json"))
        if put(diagnosis, "html", str(run / "report.html")):
            say(f"the report with these measurements is {run / 'report.html'}")
    if "html" in files:
        put(diagnosis, "html", files["html"])
    if "json" in files:
        write(files["json"], kept)
    if "markdown" in files:
        write(files["markdown"], markdown.tried(found))


def _plan(
    words: Sequence[str], candidates: Sequence[Candidate], others: Sequence[NotTried], pairs: int, arm_s: float
) -> list[str]:
    """Lines on what would be run, with the s it is expected to take; `arm_s`: of one run."""
    from diagnose.trials.course import seconds_of

    switches = [fix for fix in candidates if fix.is_switch]
    whole_s, plan = arm_s if candidates else 0.0, [f"Command: {shlex.join(words)}"]
    if switches:
        plan.append(f"One run that toggles fixes: about {arm_s:.0f} s, plus the time of each fix below")
    elif candidates:
        plan.append(f"Baseline: a run of about {arm_s:.0f} s")
    for fix in candidates:
        took_s = seconds_of(fix, arm_s, pairs)
        how = "in blocks of steps, usually within" if fix.is_switch else f"at least {pairs} pairs of runs, about"
        plan.append(f"{fix.number}. {fix.rule}: {fix.trial}, {how} {took_s:.0f} s")
        whole_s += took_s
    if switches or len(candidates) > 1:
        plan.append(f"The kept fixes together: at least {pairs} pairs of runs, about {2 * pairs * arm_s:.0f} s")
        whole_s += 2 * pairs * arm_s
    plan.append(f"Total: about {whole_s:.0f} s, limited by --budget")
    return [*plan, *(f"Not tried: {other.number}. {other.rule}: {other.why}." for other in others)]


def _warn(
    candidates: Sequence[Candidate], pairs: int, arm_s: float, budget_s: float, say: Callable[[str], None]
) -> None:
    """Report the fixes that would end after `budget_s`, and the minutes that all need; nothing if all fit."""
    from diagnose.trials.course import seconds_of

    ends_s = [*accumulate((seconds_of(fix, arm_s, pairs) for fix in candidates), initial=arm_s)][1:]
    late = [f"{fix.number} ({fix.rule})" for fix, end_s in zip(candidates, ends_s, strict=True) if end_s > budget_s]
    if late:
        say(f"--budget is too short for {', '.join(late)}. All fixes need about {math.ceil(ends_s[-1] / 60)}m.")


def _ask(manifest: Manifest, yes: bool, say: Callable[[str], None]) -> None:
    """Ask whether the script may write its files again. Raises CannotTry if nobody can be asked, click.Abort on no."""
    from diagnose.trials.selection import CannotTry

    say("the runs get no standard input; W&B, MLflow, Comet, Neptune and ClearML stay offline")
    names, unknown = _written(manifest), all(rank.writes is None for rank in manifest.ranks)
    if names:
        what = f"The script writes {', '.join(names)}. Each run writes there again."
    elif unknown:
        what = "diagnose does not know which files the script writes. Each run writes them again."
    else:
        return
    if yes:
        say(what)
    elif not sys.stdin.isatty():
        raise CannotTry(f"{what} To allow this, add --yes.")
    elif not click.confirm(f"{what} Continue?", err=True):
        raise click.Abort


def _written(manifest: Manifest) -> list[str]:
    return list(dict.fromkeys(name for rank in manifest.ranks for name in rank.writes or ()))


class Screening:
    """Called with the state of all switches, reports each one once, when its blocks of steps have ended."""

    def __init__(self, candidates: Sequence[Candidate], say: Callable[[str], None]) -> None:
        self._rules = {one.trial: one.rule for one in candidates}
        self._say, self._reported = say, set[str]()

    def __call__(self, screened: Sequence[Screened]) -> None:
        """Report the switches that have ended since the last call."""
        for one in screened:
            if one.ended and one.name not in self._reported:
                self._reported.add(one.name)
                pairs = 0 if one.void else len(one.added or one.alone)
                measured = f"{pairs} pairs of blocks of {one.steps} steps" if pairs else "not measured"
                self._say(f"{self._rules.get(one.name, one.name)}: {measured}")
