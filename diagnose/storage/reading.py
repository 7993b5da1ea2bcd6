"""A file at a URL as a stream of bytes that survives what networks do, and is all of one version."""

from __future__ import annotations

import io
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from diagnose.storage import failures, urls
from diagnose.storage.failures import StorageError
from diagnose.storage.filesystem import attempt, filesystem, fresh
from diagnose.storage.versions import Version, version_of

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
BLOCK_BYTES = 8 << 20
"""Asked for at a time: some hundred times what a storage sends while it begins to answer."""

FIRST_BYTES = 64 << 10
"""Asked for at first: what a file is shows in its first bytes, and often nothing else is read."""


class RemoteFile(io.RawIOBase):
    """Reads in ranges, each tried again from where it ended; from the beginning if the server knows no ranges.

    Closing it, and reading to its end, raise StorageError if the file became another since it was listed or opened.
    """

    def __init__(self, url: str, listed: Version) -> None:
        """Raises StorageError if it is not there, may not be read, or is not the one that was listed."""
        super().__init__()
        self._url = url
        self._storage, self._path = filesystem(url)
        self._version = listed
        self._file: Any = None
        self._at = 0
        self._in_ranges = True
        self._verified_at = 0
        attempt(self._open)

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always, though it may mean to read again from the beginning."""
        return True

    def tell(self) -> int:
        """Bytes from the beginning."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on reading elsewhere, counted from the beginning or from here."""
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("A storage need not know where a file ends.")
        target = offset + (self._at if whence == io.SEEK_CUR else 0)
        if target != self._at:
            self._drop()
            self._at = target
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        """The next bytes, fewer than asked for where that is enough. Raises StorageError."""
        into = memoryview(buffer)
        try:
            found = attempt(partial(self._read, min(len(into), BLOCK_BYTES if self._at else FIRST_BYTES)))
        except StorageError:
            self._verified_at = self._at  # One failure is enough to tell.
            raise
        into[: len(found)] = found
        self._at += len(found)
        return len(found)

    def readall(self) -> bytes:
        """What is left. Raises StorageError."""
        return b"".join(iter(lambda: self.read(BLOCK_BYTES) or b"", b""))

    def close(self) -> None:
        """Raises StorageError if more than the first block was read, and the file is another now."""
        if self.closed:
            return
        self._drop()
        super().close()
        if self._at > FIRST_BYTES:
            self._verify()

    def _read(self, count: int) -> bytes:
        if self._file is None:
            self._open()
        try:
            found: bytes = self._file.read(count)
        except Exception as error:
            self._drop()
            if isinstance(error, ValueError) and self._in_ranges and urls.is_web(self._url):
                self._in_ranges = False
                raise failures.passing("the server sends no ranges") from None
            raise
        if not found:
            if self._at < (self._version.bytes or 0):
                self._drop()
                raise failures.passing("the connection ends early")
            self._verify()
        return found

    def _verify(self) -> None:
        """Once more, if more was read since. Raises StorageError if what was read is not all of one file."""
        if self._verified_at != self._at:
            self._verified_at = self._at
            fresh(self._storage, lambda: self._require(version_of(self._storage.info(self._path))))

    def _require(self, found: Version) -> None:
        """Raises StorageError if this is the version of another file."""
        if self._version.differs(found):
            raise failures.changed()
        self._version = self._version.completed(found)

    def _open(self) -> None:
        """Opens the file where it is to be read on."""
        self._storage.invalidate_cache()
        how = {} if self._in_ranges else {"block_size": 0}
        self._file = self._storage.open(self._path, "rb", cache_type="none", **how)
        try:
            opened = version_of(getattr(self._file, "details", {}))
            self._require(opened if opened.tag else version_of(self._storage.info(self._path)))
        except BaseException:
            self._drop()
            raise
        try:
            self._file.seek(self._at)
        except ValueError:
            self._skip()

    def _skip(self) -> None:
        """Passes over what was read before."""
        left = self._at
        while left:
            passed = len(self._file.read(min(left, 1 << 20)))
            if not passed:
                self._drop()
                raise failures.passing("the connection ends early")
            left -= passed

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(Exception):
                file.close()
