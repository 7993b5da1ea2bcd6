"""`diagnose watch`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose.capture.agent.plan import Plan
from diagnose.capture.folders import of as job_of
from diagnose.cli.live import following, options, shows
from diagnose.cli.profile import COMMAND, INTERRUPTED, Launching, command_of, new_folder
from diagnose.cli.reading import notes
from diagnose.cli.results import write
from diagnose.cli.watched import rendered, watched, with_recordings

if TYPE_CHECKING:
    from diagnose.capture.asked_recordings import Wish

NO_STEPS = (
    "Error: diagnose found no training step, so there is no log. It detects steps by torch.optim optimizers, backward"
    " passes and DataLoaders."
)

LOOK_S, READING = 5.0, 0.01
"""Seconds between two looks into the log, which is written about as often, and the share of the time that reading it
may take (our choice)."""


@click.command(
    name="watch", cls=Launching, options_metavar="[OPTIONS] SCRIPT [ARGS]... | -m MODULE [ARGS]... | -- COMMAND..."
)
@click.option(
    "--out",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for the log.  [default: diagnose-runs/SCRIPT-DATE-TIME]",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing log or recording in DIR.")
@click.option(
    "--recordings",
    type=click.IntRange(0, 99),
    metavar="N",
    default=3,
    show_default=True,
    help="Maximum number of automatic recordings.",
)
@click.option("--details", is_flag=True, help="Print all findings and tables.")
@click.option("--no-analyze", is_flag=True, help="Write the log only, without a report.")
@click.option("--quiet", "-q", is_flag=True, help="Print no notes.")
@options
@click.pass_context
def command(
    ctx: click.Context,
    out: Path | None,
    overwrite: bool,
    recordings: int,
    details: bool,
    no_analyze: bool,
    quiet: bool,
    live: bool,
    metrics: str | None,
    tensorboard: Path | None,
) -> None:
    """Run a training to its end and report where the time went.

    SCRIPT runs like `python SCRIPT ARGS`. Each rank writes a log of a few kilobytes with the times of steps,
    evaluations and checkpoints, without synchronising the GPU. If steps get slower, wait for data, spike or need more
    memory, diagnose records a few of them into DIR/recording-1 and so on. Options of diagnose come before SCRIPT.
    Launchers (torchrun, accelerate, deepspeed, mpirun) come after `--`.

    Example: diagnose watch train.py --epochs 3
    """
    from diagnose.capture.asked_recordings import Recordings
    from diagnose.capture.run import CannotRecord, prepare, run

    say = notes(quiet)
    name, words = command_of(ctx.meta[COMMAND])
    job = job_of(words, os.environ)
    folder = new_folder(name, job) if out is None else out
    plan = Plan(watch=True, keep_running=True)
    shown = shows(live, metrics, tensorboard, folder.resolve().name, say)
    try:
        part = prepare(folder, plan, words, overwrite, job)
        asked = Recordings(part, words, recordings, _wishes(folder), say)
        with following(part.recording, shown):
            recorded = run(words, part, plan, say, look=asked.look)
        asked.end()
    except CannotRecord as error:
        raise click.ClickException(str(error)) from error
    for note in recorded.manifest.notes:
        say(note)
    code = INTERRUPTED if recorded.interrupted else recorded.exit_code
    has_log = any(folder.glob("rank*.watch"))
    if not recorded.completed:
        say(f"the command of rank 0 will complete the log in {folder}")
    elif has_log:
        say(f"the log is in {folder}")
    else:
        click.echo(NO_STEPS, err=True)
    if recorded.completed and has_log and not no_analyze:
        say(f"the interactive report is {_show(folder, quiet, details)}")
    raise click.exceptions.Exit(code if has_log or not recorded.completed else code or 2)


def _wishes(folder: Path) -> Callable[[], Wish | None]:
    """A function that gives the recording that rank 0's log asks for next; None if none, or if it was just read."""
    from diagnose.capture.asked_recordings import Wish
    from diagnose.source.base import InputError
    from diagnose.source.run_log import read
    from diagnose.watched.triggers import TriggerKind, triggered

    triggers, next_s = set[TriggerKind](), 0.0

    def wish() -> Wish | None:
        nonlocal next_s
        began_s, found = time.monotonic(), None
        if began_s < next_s:
            return None
        with suppress(InputError):
            found = triggered(read(folder / "rank0.watch"), triggers)
        now_s = time.monotonic()
        next_s = now_s + max(LOOK_S, (now_s - began_s) / READING)
        if found is None:
            return None
        triggers.add(found.kind)
        return Wish(found.why, found.period_steps, found.outlier, memory=found.kind is TriggerKind.MEMORY)

    return wish


def _show(folder: Path, quiet: bool, details: bool) -> Path:
    """Print the report of the whole run, write it as report.json and report.html, and return the page's path."""
    found = watched([str(folder)])
    assert found is not None
    found = with_recordings(found, str(folder), quiet=quiet)
    page = folder / "report.html"
    click.echo(rendered(found, "terminal", details), nl=False)
    write(str(folder / "report.json"), rendered(found, "json"))
    write(str(page), rendered(found, "html"))
    return page
