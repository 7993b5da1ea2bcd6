"""Local copies of files that cannot be read as a stream: of bounded size, and gone afterwards."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from diagnose.storage.failures import StorageError
from diagnose.storage.remote import Place, Remote

MOST_BYTES = 16 << 30
"""A longer recording than anybody reads at once."""

SPARED_BYTES = 1 << 30
"""Of the disk, for others."""

_GB = 1e9


class _Copies:
    """The copy that was used last is kept until there is another one, or the process ends: its other ranks follow."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: tuple[Remote, tempfile.TemporaryDirectory[str]] | None = None

    def take(self, remote: Remote) -> tempfile.TemporaryDirectory[str] | None:
        """The copy of a file, from here on the caller's own."""
        with self._lock:
            if self._last is None or self._last[0] != remote:
                return None
            folder, self._last = self._last[1], None
            return folder

    def give(self, remote: Remote, folder: tempfile.TemporaryDirectory[str]) -> None:
        """Keep a copy, instead of what was kept before."""
        with self._lock:
            before, self._last = self._last, (remote, folder)
        if before is not None:
            before[1].cleanup()


_copies = _Copies()


@contextmanager
def local(place: Place) -> Iterator[Path]:
    """The file at a place as one of this machine, while it is used. Raises StorageError if it cannot be fetched."""
    if isinstance(place, Path):
        yield place
        return
    folder = _copies.take(place) or _fetched(place)
    try:
        yield Path(folder.name) / "copy"
    except BaseException:
        folder.cleanup()
        raise
    _copies.give(place, folder)


def _fetched(remote: Remote) -> tempfile.TemporaryDirectory[str]:
    """A folder with a copy of the file in it, gone once it is forgotten. Raises StorageError."""
    _refuse_large(remote.stat().st_size)
    try:
        folder = tempfile.TemporaryDirectory(prefix="diagnose-copy-")
    except OSError:
        raise _no_room(0) from None
    try:
        with remote.open("rb") as source, (Path(folder.name) / "copy").open("wb") as copy:
            while piece := source.read(4 << 20):
                _refuse_large(copy.tell() + len(piece), copied=copy.tell())
                copy.write(piece)
    except BaseException as error:
        folder.cleanup()
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise _no_room(0) from None
        raise
    return folder


def _refuse_large(size: int, copied: int = 0) -> None:
    if size > MOST_BYTES:
        raise StorageError(
            errno.EFBIG,
            f"it is larger than the {MOST_BYTES / _GB:.0f} GB that are copied. Download it, and analyse the file",
        )
    if size - copied + SPARED_BYTES > shutil.disk_usage(tempfile.gettempdir()).free:
        raise _no_room(size)


def _no_room(size: int) -> StorageError:
    takes = f"a copy of it takes {size / _GB:.1f} GB, and " if size else ""
    return StorageError(
        errno.ENOSPC, f"{takes}there is too little room in {tempfile.gettempdir()}. Set TMPDIR to a larger folder"
    )
