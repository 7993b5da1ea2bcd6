"""`diagnose export`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from diagnose.cli.reading import jobs_option, opened
from diagnose.cli.results import OutFolder, checked, sentences


@click.command(name="export")
@click.argument("paths", nargs=-1, required=True, metavar="RUN...")
@click.option("--parquet", "folder", type=OutFolder(), required=True, help="Folder or URL for the tables.")
@click.option(
    "--table", "names", multiple=True, metavar="NAME", help="Write only these tables. Repeatable.  [default: all]"
)
@jobs_option
@click.option("--quiet", "-q", is_flag=True, help="Print no progress and no notes.")
def command(paths: tuple[str, ...], folder: Path | str, names: tuple[str, ...], jobs: int | None, quiet: bool) -> None:
    """Write a run's tables as Parquet files, for DuckDB, Polars and pandas.

    RUN is as for `diagnose analyze`. DIR gets one folder per table and one file per rank: DIR/kernels/rank0.parquet.
    A complete new export replaces an earlier one in DIR. diagnose refuses a DIR with other files.

    Example: diagnose export runs/a --parquet tables --table kernels,steps
    """
    from diagnose.exporting.run import CannotExport, export
    from diagnose.exporting.tables import named
    from diagnose.rulekit import settings
    from diagnose.trace import units

    with sentences(ValueError):
        tables = named(settings.names(names))
    with sentences(CannotExport):
        checked(folder)
        with opened(paths, jobs=jobs, quiet=quiet) as them, _local(folder) as here:
            written = export(them.given, here, tables, them.diagnosed, them.jobs, them.progress)
    for note in () if quiet else written.notes:
        click.echo(note, err=True)
    wide = max(map(len, written.rows), default=0)
    click.echo(f"{len(written.rows)} tables of {units.ranks(written.ranks)}:")
    for name, rows in written.rows.items():
        click.echo(f"  {name:<{wide}}  {rows:,} row{'s' * (rows != 1)}")
    if written.absent:
        click.echo("\n  ".join(["\nNot recorded:", *written.absent]))


@contextmanager
def _local(folder: Path | str) -> Iterator[Path]:
    """The folder to write to; for a URL a temporary one, whose files are uploaded on leaving without an error."""
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
