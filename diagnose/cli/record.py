"""`diagnose record`, and `diagnose doctor`, which says what can be recorded."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from diagnose.cli.results import sentences

if TYPE_CHECKING:
    from diagnose.capture.doctor import Check

POLL_S = 0.5
COLORS = {"ok": "green", "limited": "yellow", "missing": "red"}
CANNOT_RECORD = 2


@click.command(name="record")
@click.argument("run", metavar="RUN|PID")
@click.option("--no-wait", is_flag=True, help="Return without waiting for the recording.")
def command(run: str, no_wait: bool) -> None:
    """Record the next steps of a run under `diagnose watch`.

    RUN is the folder of a running `diagnose watch`, and PID one of its processes. The recording is like that of
    `diagnose profile`, and the training continues. `kill -USR2 PID` does the same.

    Example: diagnose record diagnose-runs/train-20260101-120000
    """
    from diagnose.capture.asked_recordings import ask, folder_of, goes_on, is_made
    from diagnose.capture.doctor import CannotRecord

    with sentences(CannotRecord):
        folder = folder_of(int(run)) if run.isdecimal() and not Path(run).exists() else Path(run)
        target = ask(folder)
    click.echo(f"diagnose: recording the next steps of {folder} into {target}", err=True)
    while not no_wait:
        time.sleep(POLL_S)
        if is_made(target):
            click.echo(f"Recorded. See it with: diagnose analyze {target}")
            return
        if not goes_on(folder) and not target.exists():
            raise click.ClickException(f"The run ended before it recorded anything into {target}.")


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def doctor(as_json: bool) -> None:
    """Check what this machine can record, and how to fix what it cannot.

    Exits with 2 if this machine cannot record a training.

    Example: diagnose doctor
    """
    from diagnose.capture.doctor import can_record, checks

    found = checks()
    recordable = can_record(found)
    if as_json:
        told = msgspec.json.encode({"can_record": recordable, "checks": found})
        click.echo(msgspec.json.format(told, indent=2).decode())
    else:
        click.echo(report(found, recordable), nl=False, color=False if "NO_COLOR" in os.environ else None)
    if not recordable:
        raise click.exceptions.Exit(CANNOT_RECORD)


def report(found: Sequence[Check], recordable: bool) -> str:
    """A line for each check, then how to fix those that are not ok; colored."""
    width = max(len(check.name) for check in found)
    lines = [
        f"{click.style(f'{check.state:<7}', fg=COLORS[check.state])}  {check.name:<{width}}  {check.what}"
        for check in found
    ]
    fixes = [f"{check.name:<{width}}  {check.fix}" for check in found if check.state != "ok"]
    if fixes:
        lines += ["", "How to fix:", *fixes]
    can = "This machine can record trainings." if recordable else "This machine cannot record trainings yet."
    return "\n".join([*lines, "", can, ""])
