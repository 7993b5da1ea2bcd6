"""`diagnose doctor`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnose.capture.doctor import Check

COLORS = {"ok": "green", "limited": "yellow", "missing": "red"}
CANNOT_RECORD = 2


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def command(as_json: bool) -> None:
    """Check what this machine can record, and how to fix what it cannot.

    Exits with 2 if this machine cannot record a training.

    Example: diagnose doctor
    """
    from diagnose.capture.doctor import can_record, checks

    found = checks()
    if as_json:
        click.echo(
            json.dumps({"can_record": can_record(found), "checks": [asdict(check) for check in found]}, indent=2)
        )
    else:
        click.echo(report(found, can_record(found)), nl=False, color=False if "NO_COLOR" in os.environ else None)
    if not can_record(found):
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
