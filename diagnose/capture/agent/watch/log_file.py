"""The files of a log: records that are appended, and one that is replaced as a whole.

A record is JSON, compressed, behind its length and checksum. Whatever ends the process or fills the disk, all records
that were appended whole can be read. The run's current window is in a file of its own, which takes the place of its
predecessor by a rename.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import zlib
from contextlib import suppress
from pathlib import Path

from ..board import Board

MAGIC = b"\xd1\xa9"  # A record begins with these bytes, so that a reader finds the next one behind a damaged one.
HEADER = struct.Struct("<2sII")  # MAGIC, length of what follows in bytes, and its CRC-32.
ENDING, OPEN_ENDING = ".watch", ".watch.open"  # How the names of both files end.


def make_room(shared: Path, folder: Path, rank: int) -> None:
    """Give the log of an earlier process of this rank another name: it has ended, and this one goes on in its place.

    `shared` is a folder for what processes tell each other. Raises FileExistsError if the process may still be there.
    """
    board, attempt = Board(shared), 1
    while not board.claim(f"log-{rank}-{attempt}", f"{socket.gethostname()} {os.getpid()}"):
        host, _, pid = board.claimed(f"log-{rank}-{attempt}").partition(" ")
        if host != socket.gethostname() or _is_alive(int(pid)):
            raise FileExistsError(folder / f"rank{rank}{ENDING}")
        attempt += 1
    for ending in (ENDING, OPEN_ENDING) if attempt > 1 else ():
        with suppress(FileNotFoundError):
            (folder / f"rank{rank}{ending}").rename(folder / f"rank{rank}.attempt-{attempt - 1}{ending}")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def framed(record: list[object]) -> bytes:
    """A record as it stands in a file."""
    content = zlib.compress(json.dumps(record, separators=(",", ":")).encode())
    return HEADER.pack(MAGIC, len(content), zlib.crc32(content)) + content


class LogFile:
    """The log of one rank. A write that fails leaves both files as they were, and may be tried again."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Raises OSError if there is a log of this rank, or none can be made."""
        self._open_path = folder / f"rank{rank}{OPEN_ENDING}"
        self._path = folder / f"rank{rank}{ENDING}"
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        self.bytes = 0  # Appended so far.

    def append(self, record: list[object]) -> bool:
        """Add a record; whether it could be written."""
        content = framed(record)
        try:
            with open(self._path, "r+b", buffering=0) as file:  # noqa: PTH123 (Path.open is no faster and buffers)
                try:
                    file.seek(self.bytes)
                    whole = file.write(content) == len(content)
                except OSError:
                    whole = False
                if not whole:
                    file.truncate(self.bytes)
        except OSError:
            return False
        self.bytes += len(content) * whole
        return whole

    def replace_open(self, record: list[object]) -> bool:
        """Write what the current window holds so far; whether it could be written."""
        content, beside = framed(record), self._open_path.with_name(f"{self._open_path.name}.{os.getpid()}")
        try:
            with open(beside, "wb", buffering=0) as file:  # noqa: PTH123
                whole = file.write(content) == len(content)
            if whole:
                beside.replace(self._open_path)
                return True
        except OSError:
            pass
        with suppress(OSError):
            beside.unlink()
        return False

    def close(self) -> None:
        """All that was in the current window has been appended."""
        with suppress(OSError):
            self._open_path.unlink()
