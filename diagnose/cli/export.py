"""`diagnose export`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from diagnose.cli.reading import opened
from diagnose.cli.results import OutFolder, checked

if TYPE_CHECKING:
    from diagnose.exporting.run import Export


@click.command(name="export")
@click.argument("paths", nargs=-1, required=True, metavar="RUN...")
@click.option("--parquet", "folder", type=OutFolder(), required=True, help="Folder or URL for the tables.")
@click.option(
    "--table", "names", multiple=True, metavar="NAME", help="Write only these tables. Repeatable.  [default: all]"
)
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Number of processes for many ranks.  [default: cores]"
)
@click.option("--quiet", "-q", is_flag=True, help="Print no progress and no notes.")
def command(paths: tuple[str, ...], folder: Path | str, names: tuple[str, ...], jobs: int | None, quiet: bool) -> None:
    """Write a run's tables as Parquet files, for DuckDB, Polars and pandas.

    RUN is as for `diagnose analyze`. DIR gets one folder per table and one file per rank: DIR/kernels/rank0.parquet.
    A complete new export replaces an earlier one in DIR. diagnose refuses a DIR with other files.

    Example: diagnose export runs/a --parquet tables --table kernels,steps
    """
    from diagnose.exporting.run import CannotExport, export

    tables = _asked(names)
    try:
        checked(folder)
        reading = opened(paths, jobs=jobs, quiet=quiet)
        with reading as them, _local(folder) as here:
            written = export(them.given, here, tables, them.diagnosed, them.jobs, them.progress)
    except CannotExport as error:
        raise click.ClickException(str(error)) from error
    for note in () if quiet else written.notes:
        click.echo(note, err=True)
    for line in _said(written):
        click.echo(line)


def _asked(names: tuple[str, ...]) -> tuple[str, ...]:
    """The named tables, or all. Raises ClickException if there is no such table."""
    from diagnose.exporting.tables import named
    from diagnose.rulekit import settings

    try:
        return named(settings.names(names))
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _said(written: Export) -> Iterator[str]:
    from diagnose.trace import units

    wide = max(map(len, written.rows), default=0)
    yield f"{len(written.rows)} tables of {units.ranks(written.ranks)}:"
    yield from (f"  {name:<{wide}}  {rows:,} row{'s' * (rows != 1)}" for name, rows in written.rows.items())
    if written.absent:
        yield "\nNot recorded:"
        yield from (f"  {line}" for line in written.absent)


@contextmanager
def _local(folder: Path | str) -> Iterator[Path]:
    """The folder; of a URL one of this machine, which is put there once it is whole."""
    from diagnose.exporting.run import FILE
    from diagnose.storage import writing
    from diagnose.storage.urls import StorageError
    from diagnose.storage.urls import shown as told

    if isinstance(folder, Path):
        yield folder
        return
    with TemporaryDirectory(prefix="diagnose-") as here:
        yield Path(here)
        try:
            writing.upload(Path(here), folder, FILE)
        except StorageError as error:
            raise click.ClickException(f"Cannot write {told(folder)}: {error.strerror}.") from error
