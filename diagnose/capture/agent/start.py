"""The beginning and the end of a recorded script: hooks when Python starts, a clean exit when all is recorded."""

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

from . import backwards, injection, noticed, script_files, threads
from .alone import alone, uses_gpu
from .board import Board
from .foreign import turns
from .imports import when_imported
from .plan import INTERRUPTED, Part, Plan
from .recorder import Recorder
from .steps import Steps, watch_optimizers
from .threads import OWN
from .watch.watcher import Watcher

MOST_EXITS = 3  # Times the script may catch the exit that ends the run; then it is left to the command that started it.
WINDOW_S = 2.0  # The stretch of time that is recorded where no steps are found (our choice).
BUSY = 0.1  # CPU time over time from which on a process works itself, and does not only wait for others (our choice).


FOUND_BY = {
    "backward": "Each backward pass counts as a step, as no optimizer stepped. An update of several backward passes"
    " counts as several steps.",
    "loader": "Each batch of a DataLoader counts as a step, as the run had no optimizer step and no backward pass.",
    "call": "Each model call counts as a step, as nothing else repeats.",
}
"""What to say if steps were found by anything but an optimizer."""


class Script:
    """The script that runs in this process."""

    def __init__(self, part: Part) -> None:
        self._part, self._plan = part, Plan.read(part)
        Board(part.work).claim("python")
        self._exits = 0
        injection.inject(self._plan.fixes)
        injection.prepare(self._plan.switches)
        self._begin()
        self._optimizers = watch_optimizers(self._optimizer_stepped)
        when_imported("torch", self._wait_for_steps)
        atexit.register(self._ended)
        self._show_errors_without_us()

    def _begin(self) -> None:
        self._pid, self._how = os.getpid(), "itself"
        backwards.forget_all()
        kind = Watcher if self._plan.watch else Recorder
        self._recorder: Recorder | Watcher = kind(self._part, self._plan, self._batch_asked)
        self._steps = Steps(self._recorder.step_ended)
        self._leave_model: Callable[[], None] | None = None
        backwards.listen_to_ends(self._backward_ended)

    def _optimizer_stepped(self, optimizer: object) -> None:
        if os.getpid() != self._pid:
            self._begin()  # Forked from a process with an agent, and trains itself.
            _at_end_of_child(self._ended)
        known = self._recorder.optimizers
        if not known or (known[-1]() is not optimizer and not any(one() is optimizer for one in known)):
            known.append(weakref.ref(optimizer))
        self._steps.optimizer_stepped(optimizer)
        self._after_step()

    def _backward_ended(self) -> None:
        self._seen(self._steps.backward_ended)

    def _batch_asked(self) -> None:
        self._seen(self._steps.batch_asked)

    def _model_called(self) -> None:
        self._seen(self._steps.model_called)

    def _seen(self, tell: Callable[[], None]) -> None:
        """Something that may be a step's, in this process, which is not the optimizer's step."""
        if os.getpid() == self._pid:
            self._steps.optimizer_made = "made" in self._optimizers
            tell()
            self._after_step()

    def _after_step(self) -> None:
        """End the run once all is recorded, as `sys.exit()` in the script would."""
        if self._plan.watch and self._steps.fixed:
            return
        self._recorder.steps_by = self._steps.by
        if not self._recorder.begun:
            return
        self._leave_what_is_worse()
        if self._recorder.settled and not self._steps.fixed:
            self._steps.fixed = True
            if self._steps.by in FOUND_BY:
                self._recorder.note(FOUND_BY[self._steps.by])
        if not self._recorder.may_end or self._plan.keep_running or self._exits >= MOST_EXITS:
            return
        if threading.current_thread() is threading.main_thread() and not turns.foreign_elsewhere:
            self._exits += 1
            _wait_for_work()
            raise SystemExit(0)

    def _leave_what_is_worse(self) -> None:
        """Once steps are found no more is asked of what cannot change that."""
        if self._steps.by == "optimizer" or (self._steps.fixed and self._steps.by != "backward"):
            backwards.leave(self._backward_ended)
        if self._leave_model is not None and self._steps.by != "call":
            self._leave_model()
            self._leave_model = None

    def _wait_for_steps(self, torch: ModuleType) -> None:
        """Without any step for long, look for calls of the model, tell the user, and record a stretch of time at last.

        But not in workers, nor in a launcher, which idles.
        """
        processes = sys.modules.get("multiprocessing")
        if processes is not None and processes.parent_process() is not None:
            return
        begun_s, pid = time.process_time(), self._pid

        def after(seconds: float, act: Callable[[], None]) -> None:
            def check() -> None:
                busy = time.process_time() - begun_s > BUSY * seconds
                if os.getpid() == pid and busy and not self._recorder.begun:
                    act()

            timer = threading.Timer(seconds, check)
            timer.daemon = True
            timer.start()

        after(self._plan.calls_after_s, lambda: threads.soon(self._watch_model))
        if self._plan.watch:
            return
        after(self._plan.hint_after_s, self._tell_how_to_mark)
        after(self._plan.window_after_s, lambda: self._recorder.record_window(WINDOW_S))

    def _watch_model(self) -> None:
        if "made" not in self._optimizers and (model := noticed.largest()) is not None:
            self._leave_model = noticed.when_called(model, self._model_called)

    def _tell_how_to_mark(self) -> None:
        loop = threads.running()
        where = "around its loop" if loop is None else f"in {loop.file}, line {loop.line}"
        head = "for batch in batches:" if loop is None else loop.head
        Board(self._part.work).post("unfound", seconds=self._plan.hint_after_s, where=where, head=head)

    def _ended(self) -> None:
        if os.getpid() != self._pid:
            return
        _be_interrupted_once()
        last = getattr(sys, "last_type", None)  # Python notes an error that nothing caught, whoever shows it.
        if self._how == "itself" and last is not None:
            self._how = "interrupted" if issubclass(last, KeyboardInterrupt) else "crashed"
        self._recorder.end(self._how)
        with suppress(Exception):  # Torch says what it thinks of it.
            turns.end_foreign()
        if not self._recorder.begun and self._part.work.is_dir():
            if "compiled" in self._optimizers:
                Board(self._part.work).post("compiled")
            elif seen := self._steps.seen():
                Board(self._part.work).post("seen", **seen)

    def _heard(self, kind: type[BaseException]) -> None:
        """An error ends the script. Of an interrupt let nobody tell it again."""
        _be_interrupted_once()
        if issubclass(kind, KeyboardInterrupt) and self._part.work.is_dir():
            with suppress(OSError):
                Board(self._part.work).post(INTERRUPTED)

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
    part = Part.at(Path(recording))
    _script = Script(part)
    script_files.watch(part.recording, Plan.read(part).written)


_script: Script | None = None  # Kept for as long as the process lives.


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

    if uses_gpu():
        alone("the end of queued work", torch.cuda.synchronize)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        time.sleep(QUIET_S)


def _strip_own_frames(error: BaseException) -> None:
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _without(one.__traceback__)
            pending += [one.__cause__, one.__context__]


def _without(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OWN):
            kept.append(trace)
        trace = trace.tb_next
    for before, after in zip(kept, [*kept[1:], None], strict=False):
        before.tb_next = after
    return kept[0] if kept else None
