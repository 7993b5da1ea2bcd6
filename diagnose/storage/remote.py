"""A file at a URL as a value: it goes to other processes and machines, and offers what readers ask of a Path."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from diagnose.storage import urls
from diagnose.storage.filesystem import filesystem, fresh
from diagnose.storage.reading import BLOCK_BYTES, RemoteFile
from diagnose.storage.versions import UNKNOWN, Version, version_of


@dataclass(frozen=True, repr=False)
class Remote:
    """A file or folder at a URL. As text it is the URL without what may be a secret."""

    url: str
    """As it was given, with its secrets: for fsspec only."""
    version: Version = UNKNOWN
    """As it was listed, or empty if it was not: what it is then is what is read."""
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
        return Status(self.version.bytes or 0)

    def looked_up(self) -> Remote:
        """With the version that its storage tells, if that was not known. Raises StorageError."""
        if self.version.bytes is not None:
            return self
        storage, path = filesystem(self.url)
        return Remote(self.url, version_of(fresh(storage, lambda: storage.info(path))))

    def open(self, mode: Literal["rb"] = "rb") -> io.BufferedReader:
        """Its bytes as a stream: see `reading.RemoteFile`. Raises StorageError, also while it is read and closed."""
        return io.BufferedReader(RemoteFile(self.url, self.version), BLOCK_BYTES)


@dataclass(frozen=True)
class Status:
    """What is known of a file."""

    st_size: int
    """In bytes; 0 where its storage does not say."""


Place: TypeAlias = Path | Remote
"""Where a file is: on this machine, or elsewhere."""
