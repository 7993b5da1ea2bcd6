"""What tells a file from an earlier or later one at the same place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TAGS = ("ETag", "etag", "generation", "updated", "last_modified", "Last-Modified", "LastModified", "mtime", "modified")
"""What storages call a file's version, the best first."""


@dataclass(frozen=True)
class Version:
    """A file's size and its storage's name for its version, as far as that is told."""

    bytes: int | None = None
    tag: tuple[str, str] | None = None
    """What it is and its value: (ETag, 5d41402abc4b2a76b9719d911017c592)."""

    def differs(self, other: Version) -> bool:
        """Whether both cannot be of the same file."""
        sizes = None not in (self.bytes, other.bytes) and self.bytes != other.bytes
        return sizes or bool(self.tag and other.tag and self.tag[0] == other.tag[0] and self.tag != other.tag)

    def completed(self, other: Version) -> Version:
        """With what only the other knows."""
        return Version(other.bytes if self.bytes is None else self.bytes, self.tag or other.tag)


UNKNOWN = Version()


def version_of(info: Mapping[str, Any]) -> Version:
    """The version of a file, of what fsspec says about it."""
    size = info.get("size")
    tag = next((name for name in _TAGS if info.get(name)), None)
    if tag is None:
        return Version(size if isinstance(size, int) else None)
    value = str(info[tag]).removeprefix("W/").strip('"')  # Listings and answers quote it differently.
    return Version(size if isinstance(size, int) else None, (tag.lower(), value))
