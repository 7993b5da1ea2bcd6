"""`diagnose record`."""

from __future__ import annotations

import time
from pathlib import Path

import click

POLL_S = 0.5


@click.command(name="record")
@click.argument("run", metavar="RUN|PID")
@click.option("--no-wait", is_flag=True, help="Only ask.")
def command(run: str, no_wait: bool) -> None:
    """Have a run that is watched record its next steps.

    RUN is the folder of a run that `diagnose watch` has started and that goes on, PID a process of it. Its next steps
    are recorded as `diagnose profile` does, and the training goes on. `kill -USR2 PID` does the same.

    Example: diagnose record diagnose-runs/train-20260101-120000
    """
    from diagnose.capture.asked_recordings import ask, folder_of, goes_on, is_made
    from diagnose.capture.limits import CannotRecord

    try:
        folder = folder_of(int(run)) if run.isdecimal() and not Path(run).exists() else Path(run)
        target = ask(folder)
    except CannotRecord as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"diagnose: the next steps of {folder} are recorded into {target}", err=True)
    while not no_wait:
        time.sleep(POLL_S)
        if is_made(target):
            click.echo(f"Recorded. See it with: diagnose analyze {target}")
            return
        if not goes_on(folder) and not target.exists():
            raise click.ClickException(f"The run ended before it recorded anything into {target}.")
