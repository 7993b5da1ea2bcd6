"""The log of a process that trains: its steps put together, and written every few seconds by a thread of its own.

A record is JSON, compressed, behind its length and checksum. Whatever ends the process or fills the disk, all records
that were appended whole can be read. The run's current window is in a file of its own, which takes the place of its
predecessor by a rename.
"""

import json
import os
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..about_devices import Nvml
from ..alone import alone, in_time, uses_gpu
from ..board import Board
from .step_times import Interval
from .windows import COLUMNS, Windows

MAGIC = b"\xd1\xa9"  # A record begins with these bytes, so that a reader finds the next one behind a damaged one.
HEADER = struct.Struct("<2sII")  # MAGIC, length of what follows in bytes, and its CRC-32.
ENDING, OPEN_ENDING = ".watch", ".watch.open"  # How the names of both files end.


def rename_earlier_log(shared: Path, folder: Path, rank: int) -> None:
    """Rename the log of an earlier process of this rank, which has ended and which this one replaces, if there is one.
    `shared`: the folder of a Board. Raises FileExistsError if that process may still be there."""
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
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def framed(record: list[object]) -> bytes:
    """A record as bytes in a file: HEADER, then JSON compressed by zlib."""
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
        content, whole = framed(record), False
        try:
            with open(self._path, "r+b", buffering=0) as file:  # noqa: PTH123 (Path.open is no faster and buffers)
                with suppress(OSError):
                    file.seek(self.bytes)
                    whole = file.write(content) == len(content)
                if not whole:
                    file.truncate(self.bytes)
        except OSError:
            return False
        self.bytes += len(content) * whole
        return whole

    def replace_open(self, record: list[object]) -> bool:
        """Write what the current window holds so far; whether it could be written."""
        content, beside = framed(record), self._open_path.with_name(f"{self._open_path.name}.{os.getpid()}")
        with suppress(OSError):
            with open(beside, "wb", buffering=0) as file:  # noqa: PTH123
                whole = file.write(content) == len(content)
            if whole:
                beside.replace(self._open_path)
                return True
        with suppress(OSError):
            beside.unlink()
        return False

    def close(self) -> None:
        """Remove the file of the current window, all of which has been appended to the log."""
        with suppress(OSError):
            self._open_path.unlink()


class Figures:
    """Looks at this process, at processes that multiprocessing has started from it, and at its CUDA device."""

    def __init__(self, batches_ready: Callable[[], int | None] = lambda: None) -> None:
        """`batches_ready()`: how many the loader that was asked last has ready; None without workers."""
        self._batches_ready = batches_ready
        self._nvml: Nvml | None = None
        self._handle: Any = None

    def now(self) -> dict[str, float]:
        """Figures by name, without unknown ones. Faults, CPU time and bytes of storage count from a process's start."""
        found = dict[str, float]()
        for read in (self._process, self._children, self._loader, self._allocator, self._device):
            with suppress(Exception):
                found.update(read())
        return found

    def _process(self) -> Iterator[tuple[str, float]]:
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        yield "minor_faults", used.ru_minflt
        yield "major_faults", used.ru_majflt
        yield "cpu_s", round(used.ru_utime + used.ru_stime, 2)
        yield "resident_bytes", _resident(os.getpid())
        read, written = _storage(os.getpid())
        yield "read_bytes", read
        yield "written_bytes", written

    def _children(self) -> Iterator[tuple[str, float]]:
        """Sums over processes of multiprocessing; its list is read as it is, as asking for it reaps ended ones."""
        processes = sys.modules.get("multiprocessing.process")
        started = [one.pid for one in list(getattr(processes, "_children", ()))]
        resident, read, written = 0, 0, 0
        for pid in started:
            with suppress(OSError, ValueError, IndexError):
                resident += _resident(pid)
                more_read, more_written = _storage(pid)
                read, written = read + more_read, written + more_written
        if started:
            yield "children_resident_bytes", resident
            yield "children_read_bytes", read
            yield "children_written_bytes", written

    def _loader(self) -> Iterator[tuple[str, float]]:
        if (ready := self._batches_ready()) is not None:
            yield "batches_ready", ready

    def _allocator(self) -> Iterator[tuple[str, float]]:
        if uses_gpu():
            known = sys.modules["torch"].cuda.memory_stats()
            yield "allocated_bytes", known.get("allocated_bytes.all.current", 0)
            yield "most_allocated_bytes", known.get("allocated_bytes.all.peak", 0)
            yield "reserved_bytes", known.get("reserved_bytes.all.current", 0)
            yield "allocator_retries", known.get("num_alloc_retries", 0)

    def _device(self) -> Iterator[tuple[str, float]]:
        if not uses_gpu():
            return
        torch = sys.modules["torch"]
        if self._nvml is None:
            self._nvml = Nvml().__enter__()
            self._handle = self._nvml.handle(torch, torch.cuda.current_device())
        for name, value in self._nvml.now(self._handle).items():
            if value is not None:
                yield name, value


def _resident(pid: int | None) -> int:
    """Resident bytes of a process (proc(5): the second field of statm, in pages)."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _storage(pid: int | None) -> tuple[int, int]:
    """Bytes that a process has read from storage and written to it (proc(5): io)."""
    lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    known = dict(line.split(": ") for line in lines)
    return int(known["read_bytes"]), int(known["write_bytes"])


VERSION = 1  # Of the format, which docs/watching.md and `source/run_log.py` tell.
LOOK_S = 1.0  # Between two looks at the process.
WRITE_S = 5.0  # Between two writes of the current window: what a killed process loses at most, plus LOOK_S.
LOADING_S = 30.0  # Between two looks at how batches are made: each reads files of up to 128 workers.
MOST_WAITING = 2_048  # Steps from which on the thread that trains puts them into the window itself.
MOST_BYTES, PER_STEPS = 1_000_000, 100_000  # Of a file for each so many steps; beyond it no window is closed.


class Log:
    """Takes intervals from the thread that trains, and writes them in a thread of its own. Its methods never raise."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        world_size: int,
        began_ns: int,
        so_far: Callable[[], Interval],
        figures: Figures,
        look: Callable[[], None] = lambda: None,
        loading: Callable[[], list[object]] = list,
    ) -> None:
        """`so_far()`: the interval that has not ended. A thread calls `look()` about every LOOK_S, and `loading()`, for
        what is known of making batches, each LOADING_S. Raises OSError if the rank has a log already.
        """
        self._file = LogFile(folder, rank)
        self._rank, self._world_size = rank, world_size
        self._began_ns, self._so_far, self._look_too = began_ns, so_far, look
        self._windows = Windows(began_ns)
        self._waiting: list[Interval] = []  # Intervals that are not in the current window yet.
        self._device: list[int] = []  # Device times likewise, in ns.
        self._records: list[list[object]] = []  # To be appended, in order. While there are any no window is closed.
        self._figures = figures
        self._lock, self._writing, self._over = threading.Lock(), threading.Lock(), threading.Event()
        self._written_s = self._loading_s = 0.0
        self._ask_loading, self._loading = loading, list[object]()
        self.steps_by: str | None = None  # What steps are found by.

    def begin(self, first: Interval) -> None:
        """The first step has ended, whose interval is the start of the run. Starts the thread."""
        started_unix_ns = time.time_ns() - (time.perf_counter_ns() - self._began_ns)
        who = [self._rank, self._world_size, os.getpid(), started_unix_ns]
        self._records.append(["begin", VERSION, *who, [*COLUMNS], _row(first)])
        self._windows.started(first)
        threading.Thread(target=self._run, name="diagnose-watch", daemon=True).start()

    def add(self, interval: Interval, device_ns: list[int]) -> None:
        """A step has ended. `device_ns`: device times of steps, of this or earlier ones, that have become known."""
        self._waiting.append(interval)
        if device_ns:
            self._device += device_ns
        if len(self._waiting) >= MOST_WAITING:
            with self._lock:
                self._take_waiting()

    def end(self, how: str, files: list[str]) -> None:
        """The process ends: write all that is left. `how`: as `RankManifest.ended`; `files`: those that it wrote."""
        self._over.set()
        with suppress(Exception):
            figures = in_time("the last figures", self._figures.now, default={})
            self._loading = in_time("the DataLoader", self._ask_loading) or self._loading
            with self._lock:
                self._take_waiting()
                self._windows.looked(figures)
                self._records.append(self._windows.record(last=True))
                self._records.append(["end", how, *self._last(), self.steps_by, files, self._loading or None])
            with self._writing:
                self._append_records()
                if not self._records:
                    self._file.close()

    def _run(self) -> None:
        """What the thread does until the process ends. A child that is forked has no such thread."""
        while not self._over.wait(LOOK_S):
            for look in (self._look, self._look_too):
                with suppress(Exception):
                    look()

    def _look(self) -> None:
        """Look at the process, and write if it is time to. The thread that trains never waits for a disk."""
        if time.monotonic() - self._loading_s >= LOADING_S:
            self._loading_s = time.monotonic()
            self._loading = alone("the DataLoader", self._ask_loading) or self._loading
        figures, now_ns = self._figures.now(), time.perf_counter_ns()
        with self._lock:
            self._take_waiting()
            self._windows.looked(figures)
            has_room = self._file.bytes < MOST_BYTES * (1 + self._windows.steps // PER_STEPS)
            closes = not self._records and self._windows.long_enough(now_ns) and has_room
            if closes:
                self._records.append(self._windows.record())
                self._windows.next()
            current = ["open", *self._last(), self.steps_by, self._windows.record(last=True), self._loading or None]
        with self._writing:
            if self._over.is_set():
                return
            self._append_records()
            if closes or time.monotonic() - self._written_s >= WRITE_S:
                self._written_s = time.monotonic()
                self._file.replace_open(current)

    def _last(self) -> list[object]:
        """The time since the run began in ns, and the row of the interval that has not ended."""
        so_far = self._so_far()
        return [so_far.ended - self._began_ns, _row(so_far)]

    def _take_waiting(self) -> None:
        """Move what waits into the window; call it with `_lock`. Steps may be added meanwhile, at the lists' ends."""
        some, device = self._waiting[:], self._device[:]
        del self._waiting[: len(some)], self._device[: len(device)]
        self._windows.take(some)
        self._windows.device(device)
        if rows := self._windows.detailed:
            self._windows.detailed = []
            self._records.append(["steps", rows])

    def _append_records(self) -> None:
        while self._records and self._file.append(self._records[0]):
            del self._records[0]


def _row(one: Interval) -> list[int]:
    """The times of an interval in ns, by COLUMNS. `outside` is 0: Windows takes that time out of `step` later."""
    known = one._asdict()
    return [int(known.get(name, 0)) for name in COLUMNS]
