"""What a look at the process and its devices tells: a second apart, by a thread of our own."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..about_devices import Nvml
from ..alone import uses_gpu


class Figures:
    """Looks at this process, at processes that multiprocessing has started from it, and at its CUDA device."""

    def __init__(self, batches_ready: Callable[[], int | None] = lambda: None) -> None:
        """`batches_ready`: of the loader that was asked last; None without workers."""
        self._batches_ready = batches_ready
        self._nvml: Nvml | None = None
        self._handle: Any = None

    def now(self) -> dict[str, float]:
        """By name, with what cannot be known left out. Bytes and faults count from the process's start."""
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
        """Whose list is read as it is: asking for it would reap those that have ended."""
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
    """Bytes (proc(5): the second field of statm, in pages)."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _storage(pid: int | None) -> tuple[int, int]:
    """Bytes that were read from storage and written to it (proc(5): io)."""
    lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    known = dict(line.split(": ") for line in lines)
    return int(known["read_bytes"]), int(known["write_bytes"])
