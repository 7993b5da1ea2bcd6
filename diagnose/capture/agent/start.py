"""The beginning and the end of a recorded script: hooks when Python starts, a clean exit when all is recorded."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType

from .board import Board
from .foreign import turns
from .imports import when_imported
from .plan import INTERRUPTED, WORK, Plan
from .recorder import Recorder
from .steps import Steps, watch_optimizers

MOST_EXITS = 3
"""Times the script may catch the exit that ends the run; then it is left to the command that started it."""

WINDOW_S = 2.0
"""The stretch of time that is recorded where no steps are found (our choice)."""

BUSY = 0.1
"""CPU time over time from which on a process works itself, and does not only wait for others (our choice)."""


class Script:
    """The script that runs in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._plan = folder, Plan.read(folder)
        Board(folder / WORK).claim("python")
        self._exits = 0
        self._begin()
        self._hidden = watch_optimizers(self._optimizer_stepped)
        when_imported("torch", self._wait_for_steps)
        atexit.register(self._ended)
        self._show_errors_without_us()

    def _begin(self) -> None:
        self._pid, self._how = os.getpid(), "itself"
        self._recorder = Recorder(self._folder, self._plan, self._batch_asked)
        self._steps = Steps(self._recorder.step_ended)

    def _optimizer_stepped(self, optimizer: object) -> None:
        if os.getpid() != self._pid:
            self._begin()  # Forked from a process with an agent, and trains itself.
            _at_end_of_child(self._ended)
        if not any(one() is optimizer for one in self._recorder.optimizers):
            self._recorder.optimizers.append(weakref.ref(optimizer))
        self._steps.optimizer_stepped(optimizer)
        self._after_step()

    def _batch_asked(self) -> None:
        if os.getpid() == self._pid:
            self._steps.batch_asked()
            self._after_step()

    def _after_step(self) -> None:
        """End the run once all is recorded, as `sys.exit()` in the script would."""
        session, self._recorder.steps_by = self._recorder.session, self._steps.by
        if session is None:
            return
        self._steps.fixed = session.settled
        if not self._recorder.over or self._plan.keep_running or self._exits >= MOST_EXITS:
            return
        if threading.current_thread() is threading.main_thread() and not turns.foreign_elsewhere:
            self._exits += 1
            _wait_for_work()
            raise SystemExit(0)

    def _wait_for_steps(self, torch: ModuleType) -> None:
        """Without any step for long, record a stretch of time; but not in workers, nor in a launcher, which idles."""
        processes = sys.modules.get("multiprocessing")
        if processes is not None and processes.parent_process() is not None:
            return
        busy_s = BUSY * self._plan.window_after_s

        def record() -> None:
            if os.getpid() == self._pid and time.process_time() - begun_s > busy_s:
                self._recorder.record_window(WINDOW_S)

        begun_s = time.process_time()
        timer = threading.Timer(self._plan.window_after_s, record)
        timer.daemon = True
        timer.start()

    def _ended(self) -> None:
        """The process ends, for whatever reason."""
        if os.getpid() != self._pid:
            return
        _be_interrupted_once()
        last = getattr(sys, "last_type", None)  # Python notes an error that nothing caught, whoever shows it.
        if self._how == "itself" and last is not None:
            self._how = "interrupted" if issubclass(last, KeyboardInterrupt) else "crashed"
        self._recorder.end(self._how)
        with suppress(Exception):  # Torch says what it thinks of it.
            turns.end_foreign()
        if self._recorder.session is None and self._hidden and (self._folder / WORK).is_dir():
            Board(self._folder / WORK).post("compiled")

    def _heard(self, kind: type[BaseException]) -> None:
        """An error ends the script. Of an interrupt let nobody tell it again."""
        _be_interrupted_once()
        if issubclass(kind, KeyboardInterrupt) and (self._folder / WORK).is_dir():
            with suppress(OSError):
                Board(self._folder / WORK).post(INTERRUPTED)

    def _show_errors_without_us(self) -> None:
        """Note how the script ends, and show its errors as they would look if it ran by itself."""
        earlier = sys.excepthook

        def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._how = "interrupted" if issubclass(kind, KeyboardInterrupt) else "crashed"
            self._heard(kind)
            _strip_own_frames(error)
            earlier(kind, error, error.__traceback__)

        sys.excepthook = show


def start(recording: str) -> None:
    """Make this process ready to be recorded."""
    global _script
    _script = Script(Path(recording))


_script: Script | None = None
"""Kept for as long as the process lives."""


QUIET_S = 0.5
"""For gloo's threads to let go of their tensors: one that does so while Python shuts down aborts the process (seen in
up to half of short runs with torch 2.13; with this pause in none of 60)."""


def _at_end_of_child(act: Callable[[], None]) -> None:
    """Have `act` called when a child of multiprocessing ends; forked ones leave without atexit."""
    processes = sys.modules.get("multiprocessing")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, act, exitpriority=100)


def _be_interrupted_once() -> None:
    """Let no second interrupt break into the end of a script, as where a Ctrl-C reaches it from two sides."""
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _wait_for_work() -> None:
    """Let queued work end, as other ranks may be waiting for it."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        time.sleep(QUIET_S)


def _strip_own_frames(error: BaseException) -> None:
    """Take our frames out of the traceback of an error, its causes and contexts."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _without(one.__traceback__, str(Path(__file__).parent))
            pending += [one.__cause__, one.__context__]


def _without(trace: TracebackType | None, folder: str) -> TracebackType | None:
    """A traceback without the frames of files in a folder."""
    kept: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(folder):
            kept.append(trace)
        trace = trace.tb_next
    for before, after in zip(kept, [*kept[1:], None], strict=False):
        before.tb_next = after
    return kept[0] if kept else None
