"""The folder of an export: new, empty, or an earlier export, which is replaced once the new one is whole."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from diagnose.contracts import export
from diagnose.exporting.errors import CannotExport
from diagnose.tables.schema import TABLES

_UNFINISHED = ".unfinished-"
"""Beginning of the folder, inside of it, that files are written in until all are there."""

_TABLE_FILE = re.compile(r"rank\d+\.parquet")


@contextmanager
def prepared(folder: Path) -> Iterator[Path]:
    """Make the folder if it is new, and yield a place inside of it to write in. What is left there at the end goes.

    So does the folder if it was new and nothing was put into it. Raises CannotExport if it holds files that are no
    export's, or cannot be written.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise CannotExport(f"{folder} is a file. Name a folder.")
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_others(folder)
        for left in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        yield unfinished
    finally:
        _remove(unfinished)
        if new:
            with suppress(OSError):  # It is not empty.
                folder.rmdir()


def _remove(unfinished: Path) -> None:
    """Remove a place under another name: where work is interrupted, processes may still be writing to this one."""
    gone = unfinished.with_name(f"{unfinished.name}-gone")
    with suppress(OSError):
        unfinished.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def cannot_write(folder: Path | str, error: OSError) -> CannotExport:
    """The error in a sentence; pyarrow's own text names files that are gone by then."""
    why = os.strerror(error.errno) if error.errno else str(error)
    return CannotExport(f"Cannot write to {folder}: {why}. Choose another folder.")


def _refuse_others(folder: Path) -> None:
    """Raise CannotExport unless all that lies there is an export's."""
    inside = [path for path in folder.iterdir() if not path.name.startswith(_UNFINISHED)]
    if not inside:
        return
    if not (folder / export.FILE).is_file() or not all(map(_is_ours, inside)):
        raise CannotExport(f"{folder} holds other files. Name a new folder, or one that holds an export only.")


def _is_ours(path: Path) -> bool:
    if path.name == export.FILE:
        return path.is_file()
    is_table = path.name in {table.name for table in TABLES} and path.is_dir() and not path.is_symlink()
    return is_table and all(_TABLE_FILE.fullmatch(one.name) and one.is_file() for one in path.iterdir())


def place(unfinished: Path, folder: Path) -> None:
    """Put the tables and the record of an export in place of an earlier one's. Raises OSError.

    The record comes first: whatever is interrupted then, the folder is an export's, and the next one replaces it.
    """
    (unfinished / export.FILE).replace(folder / export.FILE)
    for table in TABLES:
        old, new = folder / table.name, unfinished / table.name
        if old.exists():
            shutil.rmtree(old)
        if new.exists():
            new.replace(old)
