"""`diagnose record`."""

import time
from pathlib import Path

import click

POLL_S = 0.5


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

    try:
        folder = folder_of(int(run)) if run.isdecimal() and not Path(run).exists() else Path(run)
        target = ask(folder)
    except CannotRecord as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"diagnose: recording the next steps of {folder} into {target}", err=True)
    while not no_wait:
        time.sleep(POLL_S)
        if is_made(target):
            click.echo(f"Recorded. See it with: diagnose analyze {target}")
            return
        if not goes_on(folder) and not target.exists():
            raise click.ClickException(f"The run ended before it recorded anything into {target}.")
