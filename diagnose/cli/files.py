"""Writing results: whole or not at all, and never over an input."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

STDOUT = "-"


def refuse_unwritable(outputs: Sequence[str], inputs: Sequence[Path]) -> None:
    """Raise a ClickException if an output cannot be written, or is one of the inputs: before any work is done."""
    if outputs.count(STDOUT) > 1:
        raise click.ClickException("Only one result can go to standard output (-). Give the others a file name.")
    read = {os.path.realpath(path) for path in inputs}
    for name in outputs:
        path = Path(name)
        if name == STDOUT:
            continue
        if os.path.realpath(path) in read:
            raise click.ClickException(f"{name} is a trace to be read: writing there would destroy it. Choose another.")
        if path.is_dir():
            raise click.ClickException(f"{name} is a folder. Name a file.")
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise click.ClickException(f"The folder {folder} does not exist. Create it first.")
        if not os.access(folder, os.W_OK):
            raise click.ClickException(f"The folder {folder} is not writable. Choose another one.")


def write(name: str, text: str) -> None:
    """Write text to a file, all of it or none (an older file stays until then), or to standard output."""
    if name == STDOUT:
        click.echo(text, nl=False)
        return
    path = Path(name)
    scratch = None
    try:
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(scratch).chmod(0o666 & ~umask)
        Path(scratch).replace(path)
    except OSError as error:
        if scratch:
            with contextlib.suppress(OSError):
                Path(scratch).unlink()
        raise click.ClickException(f"Cannot write {name}: {error.strerror or error}.") from error
