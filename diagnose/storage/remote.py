"""A file at a URL as a value: it goes to other processes and machines, and offers what readers ask of a Path.

To be read it is copied: copies are of bounded size, and gone afterwards. The only place that imports fsspec.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, TypeAlias, TypeVar

from msgspec import Struct

from diagnose.storage import urls
from diagnose.storage.urls import StorageError, in_words

T = TypeVar("T")

SILENCE_S = 60.0  # A web server that sends nothing for so long has lost us. fsspec's own limit is for a whole file.

PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "adlfs"),
    **dict.fromkeys(("http", "https"), "aiohttp"),
    "hdfs": "pyarrow",
}
"""Scheme -> what to install beside fsspec."""

_TALKATIVE = ("asyncio", "fsspec", "s3fs", "gcsfs", "adlfs", "aiohttp", "aiobotocore", "botocore", "azure", "google")


def filesystem(url: str) -> tuple[Any, str]:
    """The filesystem that a URL leads to, and the path in it. Credentials are found by fsspec's own rules.

    Raises StorageError with what to install, or what is wrong with the URL.
    """
    kind = urls.scheme(url)
    try:
        known = _known(kind)
        import fsspec

        options = {**known._get_kwargs_from_urls(url), **(_web_options(fsspec.config.conf) if urls.is_web(url) else {})}
        return fsspec.filesystem(kind, **options), known._strip_protocol(url)
    except ImportError:
        raise _not_installed(kind) from None
    except Exception as error:
        raise in_words(error) from None


def asked(storage: Any, call: Callable[[], T]) -> T:
    """The result of `call`, before which the filesystem forgets its cached listings. Its errors become StorageError."""
    try:
        storage.invalidate_cache()
        return call()
    except Exception as error:
        raise in_words(error) from None


def _known(kind: str) -> Any:
    """fsspec's class for a scheme. Raises StorageError if there is none, ImportError if its package is missing."""
    import fsspec

    # Keeps Python from printing what libraries log, which may hold signed URLs, where no logging was set up.
    for logger in map(logging.getLogger, _TALKATIVE):
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
    try:
        return fsspec.get_filesystem_class(kind)
    except ValueError:
        if kind in PACKAGES:
            raise _not_installed(kind) from None
        raise StorageError(
            errno.EINVAL,
            f"fsspec does not support {kind}://. Use, for example, s3://, gs://, az://, hdfs:// or https://",
        ) from None


def _not_installed(kind: str) -> StorageError:
    """The error of a scheme whose packages are missing, with what to install."""
    package = PACKAGES.get(kind, "and what it needs for that")
    return StorageError(
        errno.ENOSYS, f"{kind}:// needs packages that are not installed. Run: pip install fsspec {package}"
    )


def _web_options(configured: Mapping[str, Any]) -> dict[str, Any]:
    """fsspec's options for web servers: content not compressed, limits on silence. Other options of the user stay."""
    import aiohttp

    wanted = {**configured.get("http", {}), **configured.get("https", {})}
    client = {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)}
    return {
        "headers": {**wanted.get("headers", {}), "Accept-Encoding": "identity"},
        "client_kwargs": {**client, **wanted.get("client_kwargs", {})},
    }


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
        """The place of another name in the same folder, which need not exist: its storage is not asked."""
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
        """An open copy: in memory if it is known to be small, else on disk. Raises StorageError."""
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


def named(url: str) -> list[Remote]:
    """What a URL stands for: a file, a folder, or all that fit a pattern; [] if nothing. Raises StorageError."""
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


def inside(folder: Remote) -> dict[str, Remote]:
    """All files in a folder and in those inside it, by their path from there, by one listing. Raises StorageError."""
    storage, root = filesystem(folder.url)
    options = {"on_error": "raise"} if urls.is_web(folder.url) else {}
    found = asked(storage, lambda: storage.find(root, detail=True, **options))
    infos = {_relative(name, root): info for name, info in found.items() if info.get("type") == "file"}
    return {name: _remote(urls.inside(folder.url, name), info) for name, info in infos.items()}


_kept: dict[Remote, tempfile.TemporaryDirectory[str]] = {}
"""The copy that was used last, until there is another one or the process ends: it is read again, for its next rank."""


def local(place: Place) -> Path:
    """A file of this machine with that content; a copy lasts until another place is copied. Raises StorageError."""
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
    """Copy a file from its storage. Raises StorageError, and OSError where there is no room."""
    storage, path = filesystem(remote.url)
    options = {"block_size": 0} if urls.is_web(remote.url) else {}  # Not every web server knows ranges.
    with asked(storage, lambda: storage.open(path, "rb", **options)) as source:
        while piece := _piece(source):
            _refuse_large(into.tell() + len(piece), copied=into.tell())
            into.write(piece)
    if remote.bytes not in (None, into.tell()):
        raise StorageError(errno.EBUSY, "it changed while diagnose read it. Analyse it when it is complete")


def _piece(source: Any) -> bytes:
    """The next 4 MiB of a file, less at its end, then nothing. Raises StorageError."""
    try:
        found: bytes = source.read(4 << 20)
    except Exception as error:
        raise in_words(error) from None
    return found


def _refuse_large(size: int, copied: int = 0) -> None:
    """Raise StorageError if `size` bytes, `copied` of them already here, exceed our limit or the free disk."""
    if size > MOST_BYTES:
        raise StorageError(
            errno.EFBIG, f"it is larger than the limit of {MOST_BYTES / _GB:.0f} GB. Download it, and analyse the file"
        )
    if size - copied + SPARED_BYTES > shutil.disk_usage(tempfile.gettempdir()).free:
        raise _no_room(size)


def _no_room(size: int) -> StorageError:
    """The error of a full disk; names the size of the copy unless that is 0."""
    takes = f"a copy of it takes {size / _GB:.1f} GB, and " if size else ""
    return StorageError(
        errno.ENOSPC, f"{takes}{tempfile.gettempdir()} has too little space. Set TMPDIR to a larger folder"
    )


def _remote(url: str, info: Mapping[str, Any]) -> Remote:
    size = info.get("size")
    return Remote(url, size if isinstance(size, int) else None, folder=info.get("type") == "directory")


def _relative(name: str, root: str) -> str:
    return name.removeprefix(root.rstrip("/")).lstrip("/")
