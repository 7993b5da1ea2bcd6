"""The script's own profiler, which must never run at the same time as ours: torch has one for the whole process.

Of two that overlap, in one thread or in two, the later one fails or the process crashes (torch 2.13).
"""

import gc
import signal
import threading
from collections.abc import Callable
from math import inf
from types import FrameType, ModuleType
from typing import Any

from .alone import alone, tried
from .script_files import when_imported

OLDER = "ranges of earlier recordings"  # Their name for `alone`.
PATIENCE_S = 60.0  # How long a profiler of another thread waits for ours to stop (chosen).
URGENT = getattr(signal, "SIGURG", None)  # Ignored by default; interrupts waiting of the main thread; None on Windows.


class Turns:
    """Whose turn it is to record: ours, or that of the script's profilers."""

    def __init__(self) -> None:
        self.begun = 0  # Recordings that have begun in this process so far, ours and the script's.
        self._ours = threading.local()
        self._lock = threading.Lock()
        self._rests = threading.Event()  # Set while we do not record.
        self._rests.set()
        self._thread = 0  # That records for us, or did last.
        self._make_way: Callable[[], None] = lambda: None
        self._foreign: list[tuple[int, Any]] = []  # Threads and objects of the script's that record, or are ready to.
        self.wanted = False  # A profiler of another thread waits for ours to stop.

    @property
    def starting(self) -> bool:
        """Whether it is our profiler that this thread starts now."""
        return getattr(self._ours, "starting", False)

    @property
    def foreign(self) -> bool:
        """Whether a profiler of the script records now, or is prepared to."""
        return bool(self._foreign)

    @property
    def foreign_elsewhere(self) -> bool:
        """Whether one of another thread does: if the process ended now, it would crash (torch 2.13)."""
        return any(thread != threading.get_ident() for thread, _ in list(self._foreign))

    def take(self) -> bool:
        """Take the turn to record in this thread; False if a profiler of the script has one. Later ones then wait."""
        with self._lock:
            if self._foreign:
                return False
            self._rests.clear()
            self._thread, self.wanted = threading.get_ident(), False
        self.begun += 1
        self._ours.starting = True
        return True

    def taken(self) -> None:
        """Our profiler, whose turn `take` has begun, has started."""
        self._ours.starting = False

    def leave(self) -> None:
        """Our recording is over, also if its profiler did not end: a process that ends while one records crashes."""
        tried("the end of a profiler", _end_kineto)
        self._ours.starting, self.wanted = False, False
        self._rests.set()

    def heed(self, make_way: Callable[[], None]) -> None:
        """Have `make_way()`, which is to stop our recording, called in the thread that records once the script asks."""
        self._make_way = make_way
        here = threading.current_thread() is threading.main_thread()
        if here and URGENT is not None and signal.getsignal(URGENT) in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(URGENT, self._urged)

    def give(self, profile: Any) -> None:
        """Give this thread's turn to a profiler of the script that starts, once our recording has stopped.
        Raises RuntimeError if that does not stop, as the thread that records waits for something else."""
        while True:
            if not self._rests.is_set():
                self._ask()
            with self._lock:
                if self._rests.is_set():
                    self._foreign.append((threading.get_ident(), profile))
                    break
        self.begun += 1

    def has(self, profile: Any) -> bool:
        """Whether this profiler of the script's has a turn already."""
        return any(one is profile for _, one in list(self._foreign))

    def given_back(self, profile: Any) -> None:
        """A profiler of the script has ended, and its turn."""
        with self._lock:
            self._foreign = [one for one in self._foreign if one[1] is not profile]

    def end_foreign(self) -> None:
        """End what the script has started in this thread and does not end: else the process crashes (torch 2.13)."""
        for thread, profile in list(self._foreign):
            if thread == threading.get_ident():
                profile.__exit__(None, None, None)

    def _ask(self) -> None:
        """Have our recording stop and wait until it has. Raises RuntimeError if that takes too long."""
        if threading.get_ident() == self._thread:
            self._make_way()
            return
        self.wanted = True
        main = threading.main_thread().ident
        if self._thread == main and URGENT is not None and signal.getsignal(URGENT) == self._urged:
            signal.pthread_kill(self._thread, URGENT)
        if not self._rests.wait(PATIENCE_S):
            raise RuntimeError("diagnose is recording, and this profiler would disturb it. Start it later")

    def _urged(self, number: int, frame: FrameType | None) -> None:
        if self.wanted and not self.starting:
            self._make_way()


turns = Turns()


def watch_foreign(make_way: Callable[[], None]) -> None:
    """Have `make_way()` called before a profiler of the script starts, so that ours stops in time."""
    turns.heed(make_way)
    when_imported("torch.autograd.profiler", _watch)


def _watch(module: ModuleType) -> None:
    """Wrap the start and the end of the script's own profilers, so that ours is stopped while one runs."""
    kind = module.profile
    if not hasattr(kind, "_diagnose_watched"):
        kind._diagnose_watched = True
        for name in ("_prepare_trace", "__enter__"):
            setattr(kind, name, _before(getattr(kind, name)))
        kind.__exit__ = _after(kind.__exit__)


def _before(start: Callable[..., Any]) -> Callable[..., Any]:
    """A profiler's start which first waits until ours has stopped; it gives the turn back if it fails."""

    def started(self: Any, *args: Any, **kwargs: Any) -> Any:
        if turns.starting or not getattr(self, "enabled", True) or turns.has(self):
            return start(self, *args, **kwargs)
        turns.give(self)
        try:
            alone(OLDER, close_older_ranges, most_s=inf)
            return start(self, *args, **kwargs)
        except BaseException:
            turns.given_back(self)
            raise

    return started


def _after(leave: Callable[..., Any]) -> Callable[..., Any]:
    """A profiler's end, which gives the turn back whatever it raises."""

    def ended(self: Any, *args: Any) -> Any:
        try:
            return leave(self, *args)
        finally:
            turns.given_back(self)

    return ended


def _end_kineto() -> None:
    """End torch's profiler if it is one by Kineto that still records."""
    import torch

    if torch._C._autograd._profiler_type().name == "KINETO":
        torch._C._autograd._disable_profiler()


def close_older_ranges() -> None:
    """End ranges that are still open from an earlier recording, so that no later one records their end.

    A range that was opened in one recording and is closed in the next one writes to memory of the first, which has been
    freed: the process crashes sooner or later (torch 2.13). Ended while nothing records it does nothing, nor when the
    script ends it once more. What an op opens cannot be ended from here, so our recordings are a step apart as well.
    """
    import torch

    if turns.begun > 1 and not torch.autograd._profiler_enabled():
        for object_ in gc.get_objects():
            is_range = type(object_) is torch.autograd.profiler.record_function
            if is_range and getattr(object_, "record", None) is not None:  # It has no truth value.
                torch.ops.profiler._record_function_exit._RecordFunction(object_.record)
