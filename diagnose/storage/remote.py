"""A file at a URL as a value: it goes to other processes and machines, and offers what readers ask of a Path.

To be read it is copied: copies are of bounded size, and gone afterwards.
"""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, TypeAlias

from msgspec import Struct

from diagnose.storage import urls
from diagnose.storage.filesystem import asked, filesystem
from diagnose.storage.urls import StorageError, in_words

MOST_BYTES = 16 << 30  # A longer recording than anybody reads at once.
SPARED_BYTES = 1 << 30  # Of the disk, for others.
SMALL_BYTES = 1 << 20  # Of a file that is held in memory, such as a manifest.

_GB = 1e9
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True, repr=False)
class Remote:
    """A file or folder at a URL. As text it is the URL without what may be a secret."""

    url: str  # As it was given, with its secrets: for fsspec only.
    bytes: int | None = None  # None where its storage does not say.
    folder: bool = False

    def __str__(self) -> str:
        return urls.shown(self.url)

    def __repr__(self) -> str:
        return f"Remote({self})"

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(str(self).partition("://")[2]).name

    @property
    def suffix(self) -> str:
        """The end of its name, from the last dot."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Remote:
        """The folder that it is in."""
        return Remote(urls.without_parameters(self.url).rstrip("/").rpartition("/")[0], folder=True)

    def with_name(self, name: str) -> Remote:
        """What would have another name in the same folder. Nobody is asked whether it is there."""
        return Remote(urls.inside(self.parent.url, name))

    def absolute(self) -> Remote:
        """The same: it is so from every folder."""
        return self

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.folder

    def stat(self) -> Status:
        """Its size as far as it is known, without asking."""
        return Status(self.bytes or 0)

    def looked_up(self) -> Remote:
        """With the size that its storage tells, if that was not known. Raises StorageError."""
        if self.bytes is not None:
            return self
        storage, path = filesystem(self.url)
        return _remote(self.url, asked(storage, lambda: storage.info(path)))

    def open(self, mode: Literal["rb"] = "rb") -> BinaryIO:
        """A copy of it. Raises StorageError."""
        if self.bytes is None or self.bytes > SMALL_BYTES:
            return local(self).open("rb")
        copy = BytesIO()
        _fetch(self, copy)
        copy.seek(0)
        return copy


class Status(Struct, frozen=True):
    """What is known of a file."""

    st_size: int  # In bytes; 0 where its storage does not say.


Place: TypeAlias = Path | Remote  # Where a file is: on this machine, or elsewhere.


class Listings:
    """The folders that were listed so far: each once, and the list is all that is asked of it."""

    def __init__(self) -> None:
        self._files: dict[str, Remote] = {}

    def named(self, url: str) -> list[Remote]:
        """What a URL stands for: a file, a folder, or those that fit a pattern; nothing if nothing lies there.

        Raises StorageError.
        """
        storage, path = filesystem(url)
        bare = urls.without_parameters(url)
        if bare.endswith("/"):
            return [Remote(url, folder=True)]
        try:
            return [_remote(url, asked(storage, lambda: storage.info(path)))]
        except StorageError as error:
            if not error.is_missing:
                raise
        first = _PATTERN.search(bare)
        folder = "" if first is None else bare[: first.start()].rpartition("/")[0]
        if not urls.is_url(f"{folder}/"):  # No pattern, or one of buckets.
            return []
        _, root = filesystem(f"{folder}/")
        found = asked(storage, lambda: storage.glob(path, detail=True))
        return [_remote(urls.inside(folder, _relative(name, root)), info) for name, info in sorted(found.items())]

    def inside(self, folder: Remote) -> dict[str, Remote]:
        """All files in a folder and in those inside it, by their path from there. Raises StorageError."""
        storage, root = filesystem(folder.url)
        how = {"on_error": "raise"} if urls.is_web(folder.url) else {}
        found = asked(storage, lambda: storage.find(root, detail=True, **how))
        files = {
            _relative(name, root): _remote(urls.inside(folder.url, _relative(name, root)), info)
            for name, info in found.items()
            if info.get("type") == "file"
        }
        self._files |= {file.url: file for file in files.values()}
        return files

    def there(self, place: Place) -> Place | None:
        """The file at a place, with its size; None if there is none. Of a URL, as its folder was listed."""
        if isinstance(place, Remote):
            return self._files.get(place.url)
        return place if place.is_file() else None


_kept: dict[Remote, tempfile.TemporaryDirectory[str]] = {}
"""The copy that was used last, until there is another one or the process ends: it is read again, for its next rank."""


def local(place: Place) -> Path:
    """The file at a place as one of this machine. Raises StorageError if it cannot be fetched."""
    if isinstance(place, Path):
        return place
    if place not in _kept:
        _refuse_large(place.stat().st_size)
        with ExitStack() as undo:
            try:
                folder = tempfile.TemporaryDirectory(prefix="diagnose-copy-", ignore_cleanup_errors=True)
                undo.callback(folder.cleanup)
                with (Path(folder.name) / "copy").open("wb") as copy:
                    _fetch(place, copy)
            except StorageError:
                raise
            except OSError:
                raise _no_room(0) from None
            undo.pop_all()
        for before in _kept.values():
            before.cleanup()
        _kept.clear()
        _kept[place] = folder
    return Path(_kept[place].name) / "copy"


def _fetch(remote: Remote, into: BinaryIO) -> None:
    """Raises StorageError, and OSError where there is no room."""
    storage, path = filesystem(remote.url)
    how = {"block_size": 0} if urls.is_web(remote.url) else {}  # Not every web server knows ranges.
    with asked(storage, lambda: storage.open(path, "rb", **how)) as source:
        while piece := _piece(source):
            _refuse_large(into.tell() + len(piece), copied=into.tell())
            into.write(piece)
    if remote.bytes not in (None, into.tell()):
        raise StorageError(errno.EBUSY, "it changed while diagnose read it. Analyse it when it is complete")


def _piece(source: Any) -> bytes:
    try:
        found: bytes = source.read(4 << 20)
    except Exception as error:
        raise in_words(error) from None
    return found


def _refuse_large(size: int, copied: int = 0) -> None:
    if size > MOST_BYTES:
        raise StorageError(
            errno.EFBIG, f"it is larger than the limit of {MOST_BYTES / _GB:.0f} GB. Download it, and analyse the file"
        )
    if size - copied + SPARED_BYTES > shutil.disk_usage(tempfile.gettempdir()).free:
        raise _no_room(size)


def _no_room(size: int) -> StorageError:
    takes = f"a copy of it takes {size / _GB:.1f} GB, and " if size else ""
    return StorageError(
        errno.ENOSPC, f"{takes}{tempfile.gettempdir()} has too little space. Set TMPDIR to a larger folder"
    )


def _remote(url: str, info: Mapping[str, Any]) -> Remote:
    size = info.get("size")
    return Remote(url, size if isinstance(size, int) else None, folder=info.get("type") == "directory")


def _relative(name: str, root: str) -> str:
    return name.removeprefix(root.rstrip("/")).lstrip("/")
