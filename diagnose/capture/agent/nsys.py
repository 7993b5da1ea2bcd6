"""One recording by Nsight Systems, which started this process and records while a range of ours is open."""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from .alone import alone, tried
from .board import Board
from .foreign import turns
from .interruptions import MARKS, Collections
from .place import Place

CAPTURE = "diagnose.capture"  # The range: of the leader, for all processes of the run.

# On the board, before the kind of recording: its number, that the range is open, and who has come to its end.
POSTED, OPENED, ENDED = "nsys.begun.", "nsys.open.", "nsys.ended."
SESSION = "NSYS_PROFILING_SESSION_ID"  # Which nsys sets for what it starts.
PATIENCE_S = 10.0  # How long ranks of one machine wait for each other to begin and end a recording together (chosen).
SETTLE_S = 0.2  # Until nsys records in other processes too: without a pause their first step is lost (nsys 2023.4).
POLL_S = 0.001
OPS = "ranges of ops"  # Their name for `alone`.
_numbers = count(1)  # Of this process' recordings, as nsys numbers its reports.


class CannotRecord(Exception):
    """Nothing can be recorded, for a reason that the user can change: the message, a clause."""


class NsysRecording:
    """From `begin` to `end`, like `recordings.Recording`; the files are written by nsys, not here."""

    def __init__(self, board: Board, here: Place, kind: str, ops: bool = True) -> None:
        """`kind`: of plan.FILES, by which its report is found. `ops`: with a range for each op. Raises CannotRecord."""
        self._kind, self._with_ops = kind, ops
        self._board, self._leads = board, here.rank == here.first
        self._others = max(here.peers - 1, 0)  # Ranks on this machine but this one.
        self._nvtx = _Nvtx()
        self._range: int | None = None
        self._ops: Any = None
        self._collections = Collections()
        self._in_step = False
        self.marks_collections = False  # Whether collections of garbage are ranges of it.

    def begin(self, number: int | None) -> None:
        """Have nsys record: its range is opened by the first rank here, others wait. `number`: of the step to mark."""
        if self._leads:
            self._board.post(f"{POSTED}{self._kind}", number=next(_numbers))
            self._range = self._nvtx.start(CAPTURE)
            self._board.post(f"{OPENED}{self._kind}")
        else:
            _wait(lambda: self._board.read(f"{OPENED}{self._kind}") is not None)
        time.sleep(SETTLE_S if self._others else 0)
        turns.taken()
        self._ops = alone(OPS, _ops_as_ranges) if self._with_ops else None
        self.marks_collections = self._ops is not None and self._collections.on()
        self.mark(number)

    def mark(self, number: int | None) -> None:
        """A step has ended, and the one of this number begins."""
        tried(MARKS, self._close)
        alone(MARKS, self._open, number)

    def end(self, target: Path | None, work: Path) -> None:
        """Stop. The command that started nsys puts its report at the target later; both arguments are unused here."""
        self._collections.off()
        tried(MARKS, self._close)
        if self._ops is not None:
            tried(OPS, self._ops.__exit__, None, None, None)
        ended = f"{ENDED}{self._kind}."
        self._board.post(f"{ended}{os.getpid()}")
        if self._range is not None:
            _wait(lambda: self._board.posted(ended) > self._others)
            tried("the end of what nsys records", self._nvtx.end, self._range)  # Waits until nsys has what it needs.
        turns.leave()

    def _open(self, number: int | None) -> None:
        if number is not None:
            self._nvtx.push(f"ProfilerStep#{number}")
            self._in_step = True

    def _close(self) -> None:
        if self._in_step:
            self._nvtx.pop()
            self._in_step = False


def _wait(until: Callable[[], bool]) -> None:
    """Return once `until()` is true, or after PATIENCE_S."""
    begun = time.monotonic()
    while not until() and time.monotonic() < begun + PATIENCE_S:
        time.sleep(POLL_S)


NO_OPS = "Nsight Systems gets no ops from a CPU build of torch. Record without --tracer nsys to see ops."


def tells_ops() -> bool:
    """Whether this torch can have a range for each op: not one that is built for the CPU, or sees no GPU."""
    import torch

    return hasattr(torch._C, "_nvtx") and bool(alone("whether there is a GPU", torch.cuda.is_available, default=True))


def _ops_as_ranges() -> Any:
    """Have torch open a range for each op; None where it cannot. Raises RuntimeError if it does so already."""
    import torch

    return torch.autograd.profiler.emit_nvtx().__enter__() if tells_ops() else None


class _Nvtx:
    """NVTX as torch has it, else of the library that nvidia's package brings: a torch for the CPU has none."""

    def __init__(self) -> None:
        """Raises CannotRecord if there is neither, or nsys does not trace this process."""
        import torch

        if not os.environ.get(SESSION):
            raise CannotRecord("Nsight Systems does not trace this process. It may run on another machine.")
        if hasattr(torch._C, "_nvtx"):
            from torch.cuda import nvtx

            self.push: Callable[[str], object] = nvtx.range_push
            self.pop: Callable[[], object] = nvtx.range_pop
            self.start: Callable[[str], int] = nvtx.range_start
            self.end: Callable[[int], object] = nvtx.range_end
            return
        library = _library()
        self.push = lambda text: library.nvtxRangePushA(text.encode())
        self.pop = library.nvtxRangePop
        self.start = lambda text: library.nvtxRangeStartA(text.encode())
        self.end = library.nvtxRangeEnd


def _library() -> Any:
    """The NVTX library in an installed package of nvidia's. Raises CannotRecord if there is none."""
    places = (Path(folder) / "nvidia/nvtx/lib/libnvToolsExt.so.1" for folder in sys.path)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise CannotRecord("this CPU build of torch has no NVTX: record without --tracer nsys")
    library = ctypes.CDLL(str(found))
    library.nvtxRangePushA.argtypes = library.nvtxRangeStartA.argtypes = (ctypes.c_char_p,)
    library.nvtxRangeStartA.restype = ctypes.c_uint64
    library.nvtxRangeEnd.argtypes = (ctypes.c_uint64,)
    return library
