"""The log of a process that trains: its steps put together, and written every few seconds by a thread of its own.

A record is JSON, compressed, behind its length and checksum. Whatever ends the process or fills the disk, all records
that were appended whole can be read. The run's current window is in a file of its own, which takes the place of its
predecessor by a rename.
"""

import json
import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..alone import in_time
from ..board import Board
from .figures import Figures
from .step_times import Interval
from .windows import COLUMNS, Windows

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


VERSION = 1  # Of the format, which docs/watching.md and `source/run_log.py` tell.
LOOK_S = 1.0  # Between two looks at the process.

WRITE_S = 5.0
"""Between two writes of the current window: what a killed process loses at most, with LOOK_S and the write."""

MOST_WAITING = 2_048  # Steps that are put together at the latest.

MOST_BYTES, PER_STEPS = 1_000_000, 100_000
"""That a file may have for each so many steps; windows stay open for longer then."""


class Log:
    """Told of each interval by the thread that trains. Never raises; with a full disk it goes on within bounds."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        world_size: int,
        began_ns: int,
        so_far: Callable[[], Interval],
        figures: Figures,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """`so_far` tells the interval that has not ended; `look` is called about every LOOK_S, by a thread.

        Raises OSError if the rank has a log already.
        """
        self._file = LogFile(folder, rank)
        self._rank, self._world_size = rank, world_size
        self._began_ns, self._so_far, self._look_too = began_ns, so_far, look
        self._windows = Windows(began_ns)
        self._waiting: list[Interval] = []
        self._device: list[int] = []
        self._records: list[list[object]] = []  # To be appended, in order. While there are any no window is closed.
        self._figures = figures
        self._lock, self._writing, self._over = threading.Lock(), threading.Lock(), threading.Event()
        self._written_s = 0.0
        self.steps_by: str | None = None  # What steps are found by.

    def begin(self, first: Interval) -> None:
        """The first step has ended."""
        started_unix_ns = time.time_ns() - (time.perf_counter_ns() - self._began_ns)
        who = [self._rank, self._world_size, os.getpid(), started_unix_ns]
        self._records.append(["begin", VERSION, *who, [*COLUMNS], _row(first)])
        self._windows.started(first)
        threading.Thread(target=self._run, name="diagnose-watch", daemon=True).start()

    def add(self, interval: Interval, device_ns: list[int]) -> None:
        """A step has ended; `device_ns` are times on the device that are known by now."""
        self._waiting.append(interval)
        if device_ns:
            self._device += device_ns
        if len(self._waiting) >= MOST_WAITING:
            with self._lock:
                self._put_together()

    def end(self, how: str, files: list[str]) -> None:
        """The process ends. `files`: what it wrote."""
        self._over.set()
        with suppress(Exception):
            figures = in_time("the last figures", self._figures.now, default={})
            with self._lock:
                self._put_together()
                self._windows.looked(figures)
                self._records.append(self._windows.record(last=True))
                self._records.append(["end", how, *self._last(), self.steps_by, files])
            with self._writing:
                self._append_records()
                if not self._records:
                    self._file.close()

    def _run(self) -> None:
        """Until the process ends. A child that is forked has no such thread."""
        while not self._over.wait(LOOK_S):
            for look in (self._look, self._look_too):
                with suppress(Exception):
                    look()

    def _look(self) -> None:
        """Look at the process, and write if it is time to. The thread that trains never waits for a disk."""
        figures, now_ns = self._figures.now(), time.perf_counter_ns()
        with self._lock:
            self._put_together()
            self._windows.looked(figures)
            closes = not self._records and self._windows.long_enough(now_ns) and self._has_room()
            if closes:
                self._records.append(self._windows.record())
                self._windows.next()
            current = ["open", *self._last(), self.steps_by, self._windows.record(last=True)]
        with self._writing:
            if self._over.is_set():
                return
            self._append_records()
            if closes or time.monotonic() - self._written_s >= WRITE_S:
                self._written_s = time.monotonic()
                self._file.replace_open(current)

    def _last(self) -> list[object]:
        """Now, since the run began, and what the time after the last step goes to."""
        so_far = self._so_far()
        return [so_far.ended - self._began_ns, _row(so_far)]

    def _put_together(self) -> None:
        """Steps may be added meanwhile, at the ends of the lists."""
        some, device = self._waiting[:], self._device[:]
        del self._waiting[: len(some)], self._device[: len(device)]
        self._windows.take(some)
        self._windows.device(device)
        if rows := self._windows.detailed:
            self._windows.detailed = []
            self._records.append(["steps", rows])

    def _has_room(self) -> bool:
        return self._file.bytes < MOST_BYTES * (1 + self._windows.steps // PER_STEPS)

    def _append_records(self) -> None:
        while self._records and self._file.append(self._records[0]):
            del self._records[0]


def _row(one: Interval) -> list[int]:
    """By COLUMNS; what is outside of steps is not told apart yet."""
    known = one._asdict()
    return [int(known.get(name, 0)) for name in COLUMNS]
