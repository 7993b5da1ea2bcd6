"""A recording that goes to a URL: it is made on this machine, and put there when it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from diagnose.storage import writing
from diagnose.storage.failures import StorageError
from diagnose.storage.urls import is_url, shown

LAST = "manifest.json"  # Who sees it there sees the whole recording.


class OutFolder(click.ParamType[Path | str]):
    """A folder, or a URL of one."""

    name = "DIR"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """A Path, or the URL as it was given."""
        return str(value) if is_url(str(value)) else Path(value)


def checked(out: Path | str | None) -> str | None:
    """The URL if that is where a recording is to go. Raises a ClickException if it cannot: before anything runs."""
    if not isinstance(out, str):
        return None
    try:
        writing.refuse(out)
        taken = writing.is_taken(out)
    except StorageError as error:
        raise click.ClickException(f"Cannot write {shown(out)}: {error.strerror}.") from error
    if taken:
        raise click.ClickException(f"{shown(out)} is not empty. Choose a new URL.")
    return out


@contextmanager
def put_at_the_end(folder: Path, url: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """Put a folder to a URL on leaving, whatever happens before. Raises a ClickException that names what is here."""
    try:
        yield
    finally:
        if url is not None:
            _put(folder, url)
            say(f"the recording is also in {shown(url)}")


def _put(folder: Path, url: str) -> None:
    try:
        writing.upload(folder, url, LAST)
    except StorageError as error:
        raise click.ClickException(
            f"Cannot write {shown(url)}: {error.strerror}. The recording is still in {folder}."
        ) from error
