"""`diagnose profile`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose import failures
from diagnose.capture.agent.clocks import needed
from diagnose.capture.agent.place import MOST, named
from diagnose.capture.agent.plan import Plan
from diagnose.capture.folders import of as job_of
from diagnose.cli import results
from diagnose.cli.measure import DEFAULT, Duration, by_profile
from diagnose.cli.reading import notes, opened
from diagnose.cli.results import open_page, put, rendered

if TYPE_CHECKING:
    from diagnose.capture.run import Recorded
    from diagnose.contracts.diagnosis import Diagnosis

INTERRUPTED = 130
KILLED = 128  # Added to the number of the signal that ended a command, as in a shell.
SHORT = Plan(warmup=1, steps=2)  # For scripts that make few steps.
COMMAND = "diagnose.command"  # Of a context's `meta`: words that belong to the run.


def _ranks(ctx: click.Context, option: click.Parameter, asked: str) -> str:
    """The option's value, checked: raises click.BadParameter if it does not name ranks."""
    try:
        named(asked, 1)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return asked


class Launching(click.Command):
    """Its own options come first; from the script, `-m` or `--` on all words belong to the run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Sets the command to run aside, and parses the rest."""
        at = self.end_of_options(args)
        ctx.meta[COMMAND] = args[at:]
        own = {name for param in self.params for name in param.opts}
        late = [word for word in args[at + 1 :] if word.partition("=")[0] in own]
        if late and args[at] != "--" and ctx.parent is not None and not {"-q", "--quiet"} & set(args[:at]):
            click.echo(f"diagnose: {late[0]} goes to the script. Put options of diagnose before the script.", err=True)
        return super().parse_args(ctx, args[:at])

    def end_of_options(self, args: list[str]) -> int:
        """The index in `args` at which the words of the run begin."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        valued = {name for option in options if not option.is_flag for name in option.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("--", "-m", "-"):
            at += 2 if args[at] in valued else 1
        return min(at, len(args))


@click.command(
    name="profile", cls=Launching, options_metavar="[OPTIONS] SCRIPT [ARGS]... | -m MODULE [ARGS]... | -- COMMAND..."
)
@click.option(
    "--out",
    "-o",
    type=results.OutFolder(),
    metavar="DIR",
    help="Folder or URL for the recording.  [default: diagnose-runs/SCRIPT-DATE-TIME]",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Minimum number of steps to skip first.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    metavar="N",
    help="Number of steps to record.",
)
@click.option(
    "--tracer",
    type=click.Choice(["torch", "nsys"]),
    default="torch",
    show_default=True,
    help="Profiler to record with.",
)
@click.option(
    "--ranks",
    default="auto",
    show_default=True,
    metavar="RANKS",
    callback=_ranks,
    help=f"Ranks to record: all, numbers (0,1,8-15), or auto (all up to {MOST} ranks, else some of each group).",
)
@click.option("--memory", is_flag=True, help="Also record memory allocations.")
@click.option("--keep-running", is_flag=True, help="Let the run continue after recording.")
@click.option(
    "--measure",
    type=Duration(),
    default=DEFAULT,
    show_default=True,
    metavar="DURATION",
    help="Time limit for benchmarking the affected ops after the run (0 = skip).",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing recording in DIR.")
@click.option("--no-analyze", is_flag=True, help="Record only, without a report.")
@click.option("--open", "open_it", is_flag=True, help="Open the report in a browser.")
@click.option("--quiet", "-q", is_flag=True, help="Print no notes.")
@click.pass_context
def command(
    ctx: click.Context,
    out: Path | str | None,
    warmup: int,
    steps: int,
    tracer: str,
    ranks: str,
    memory: bool,
    keep_running: bool,
    measure: float,
    overwrite: bool,
    no_analyze: bool,
    open_it: bool,
    quiet: bool,
) -> None:
    """Record a few steps of a training and report what to fix.

    SCRIPT runs like `python SCRIPT ARGS`. Once step times are steady, diagnose times some steps without a profiler.
    It then records some steps for times, and some with call stacks, and ends the run like sys.exit(). Options of
    diagnose come before SCRIPT. Launchers (torchrun, accelerate, deepspeed, mpirun) come after `--`.

    Example: diagnose profile train.py --epochs 3
    """
    from diagnose.capture.run import CannotRecord, prepare, run

    say = notes(quiet)
    name, words = command_of(ctx.meta[COMMAND])
    job, url = job_of(words, os.environ), results.checked(out)
    folder = out if isinstance(out, Path) else new_folder(name, job)
    plan = Plan(warmup=warmup, steps=steps, memory=memory, tracer=tracer, keep_running=keep_running, ranks=ranks)
    with results.sentences(CannotRecord):
        recorded = run(words, prepare(folder, plan, words, overwrite, job), plan, say)
    if not recorded.completed:
        say(f"the command of rank 0 will complete the recording in {folder}")
    if not recorded.completed or _failed_by_itself(recorded):
        raise click.exceptions.Exit(recorded.exit_code)
    manifest = recorded.manifest
    for note in (*manifest.notes, *(note for rank in manifest.ranks for note in rank.notes)):
        say(note)
    if recorded.interrupted:
        kept = any(rank.trace or rank.device or rank.detail for rank in manifest.ranks)
        see = f"See the recording so far with: diagnose analyze {recorded.folder}"
        click.echo(f"Interrupted. {see if kept else 'Nothing was recorded.'}", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if not any(rank.trace for rank in manifest.ranks):  # Details of steps that were not timed are none.
        click.echo(f"Error: {_why_nothing(recorded, plan)}", err=True)
        raise click.exceptions.Exit(recorded.exit_code or 2)
    say(f"the recording is in {folder}")
    with results.put_at_the_end(folder, url, say):
        if measure and not (no_analyze or keep_running):
            by_profile(folder, measure, quiet, say)
        if not no_analyze:
            _analyze(folder, open_it, quiet, say)
    raise click.exceptions.Exit(recorded.exit_code)


def new_folder(name: str, job: str | None) -> Path:
    """A path for a recording that begins now. Raises click.UsageError if several commands record the job."""
    if job is not None:
        raise click.UsageError("Several commands record this job. Name one shared folder with --out.")
    return Path("diagnose-runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def command_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """(a name for the run, the command line to execute) of the words after the options. Raises click.UsageError."""
    if words and words[0] == "--":
        if not words[1:]:
            raise click.UsageError("Name the command to run after --.")
        return _name(words[1]), list(words[1:])
    if words and words[0] == "-m":
        if not words[1:]:
            raise click.UsageError("Name the module to run after -m.")
        return words[1].rpartition(".")[2], [sys.executable, *words]
    if not words:
        told = click.get_current_context().info_name
        raise click.UsageError(f"Name the script to run, for example: diagnose {told} train.py")
    script = Path(words[0])
    if not script.exists():
        asked = f"diagnose {click.get_current_context().info_name} -- {' '.join(words)}"
        raise click.UsageError(f"{script} does not exist. Check the path, or run a command with: {asked}")
    return _name(words[0]), [sys.executable, *words]


def _name(path: str) -> str:
    return Path(path).stem or "run"


def _failed_by_itself(recorded: Recorded) -> bool:
    """Whether the script ended with an error of its own before anything was recorded."""
    ranks, code = recorded.manifest.ranks, recorded.exit_code
    nothing = not any(rank.trace or rank.ended == "recorded" for rank in ranks)
    return nothing and 0 < code <= KILLED and not recorded.interrupted


def _why_nothing(recorded: Recorded, plan: Plan) -> str:
    """Why no step was recorded, and what to do, in a sentence or two."""
    ranks, code = recorded.manifest.ranks, recorded.exit_code
    ended = f"the run was killed by signal {code - KILLED}" if code > KILLED else "the run ended"
    if not ranks:
        return (
            f"diagnose found no training step before {ended}. It detects steps by torch.optim optimizers, backward"
            " passes and DataLoaders; mark other steps with diagnose.record."
        )
    if any(rank.ended == "recorded" for rank in ranks):
        return "Nothing could be recorded; see the reasons above."
    made = max(rank.steps_made or 0 for rank in ranks)
    if not made:
        return f"diagnose found training steps, but {ended} before it recorded any. Let the run make more steps."
    enough = needed(SHORT.warmup, SHORT.steps)
    return (
        f"The run made {made} steps, but recording {plan.steps} takes at least {needed(plan.warmup, plan.steps)}."
        f" Let it make more steps, or use --warmup {SHORT.warmup} --steps {SHORT.steps} (at least {enough} steps)."
    )


def _analyze(folder: Path, open_it: bool, quiet: bool, say: Callable[[str], None]) -> None:
    """Print the report of a recording, write it as report.json and report.html, and open that if asked."""
    with opened([str(folder)], quiet=quiet) as recordings:
        diagnosis = recordings.diagnosed()
    page = folder / "report.html"
    click.echo(rendered(diagnosis, "terminal") or "", nl=False)
    put(diagnosis, "json", str(folder / "report.json"))
    if put(diagnosis, "html", str(page)):
        say(f"the interactive report is {page}")
    with failures.collected() as lost:
        if failures.attempt("which fixes can be tried", False, _can_be_tried, diagnosis):
            say(f"measure fixes in your unmodified script with: diagnose try {folder}")
    for one in lost:
        say(str(one))
    if open_it:
        open_page(lambda: rendered(diagnosis, "html") or "", str(page))


def _can_be_tried(diagnosis: Diagnosis) -> bool:
    from diagnose.fixes.setting import Safety
    from diagnose.trials.selection import select

    return bool(select(diagnosis.findings, diagnosis.step_ns, (), Safety.ROUNDING)[0])
