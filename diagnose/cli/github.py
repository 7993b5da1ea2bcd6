"""What a command tells a job on GitHub that runs it; nothing anywhere else."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from diagnose.contracts.diagnosis import Diagnosis
    from diagnose.contracts.finding import RankedFinding


def tell(
    report: Callable[[], str],
    diagnosis: Diagnosis | None,
    findings: Sequence[RankedFinding] | None = None,
    over: Collection[RankedFinding] = (),
) -> None:
    """Annotate source lines with the findings, or those of a Diagnosis, and add the report to the job's page.

    Annotations go to standard error, which GitHub reads as well: standard output has the result only.
    """
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    from diagnose.reports import github

    for line in github.annotated(diagnosis, findings, over) if diagnosis else ():
        click.echo(line, err=True)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        _add(Path(page), report())


def _add(page: Path, report: str) -> None:
    from diagnose.reports import github

    try:
        there = page.stat().st_size if page.exists() else 0
        with page.open("ab") as file:
            file.write(github.summary(report, github.MOST_SUMMARY_BYTES - there))
    except OSError as error:
        click.echo(f"The job's page gets no report: {error.strerror or error}.", err=True)
