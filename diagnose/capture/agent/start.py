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
from .alone import alone, parent_process, process_group, uses_gpu
from .board import Board
from .foreign import turns
from .plan import INTERRUPTED, Part, Plan
from .recorder import Recorder
from .script_files import when_imported
from .steps import Steps, watch_optimizers
from .threads import OWN
from .watch.watcher import Watcher

MOST_EXITS = 3  # Times the script may catch the exit that ends the run; then it is left to the command that started it.
WINDOW_S = 2.0  # The stretch of time that is recorded where no steps are found (chosen).
BUSY = 0.1  # CPU time over wall time from which on a process works, and does not only wait for others (chosen).


FOUND_BY = {  # What to say if steps were found by anything but an optimizer.
    "backward": "Each backward pass counts as a step, as no optimizer stepped. An update of several backward passes"
    " counts as several steps.",
    "loader": "Each batch of a DataLoader counts as a step, as the run had no optimizer step and no backward pass.",
    "call": "Each model call counts as a step, as nothing else repeats.",
}


class Script:
    """The script that runs in this process."""

    def __init__(self, part: Part) -> None:
        self._part, self._plan = part, Plan.read(part)
        Board(part.work).claim("python")
        self._exits = 0
        injection.inject(self._plan.fixes)
        injection.inject(self._plan.switches, on=False)
        self._begin()
        self._optimizers = watch_optimizers(self._optimizer_stepped)
        when_imported("torch", self._wait_for_steps)
        atexit.register(self._ended)
        self._show_errors_without_us()

    def _begin(self) -> None:
        """Find steps and record in this process; called again in a forked one that trains."""
        self._pid, self._how = os.getpid(), "itself"
        backwards.forget_all()
        kind = Watcher if self._plan.watch else Recorder
        self._recorder: Recorder | Watcher = kind(self._part, self._plan, lambda: self._happened("loader"))
        self._steps = Steps(self._recorder.step_ended)
        self._leave_model: Callable[[], None] | None = None
        backwards.listen_to_ends(self._backward_ended)

    def _optimizer_stepped(self, optimizer: object) -> None:
        """After each optimizer step: note a new optimizer, and count the step. A forked process records by itself."""
        if os.getpid() != self._pid:
            self._begin()  # Forked from a process with an agent, and trains itself.
            if parent_process() is not None:  # Forked ones leave without atexit.
                from multiprocessing.util import Finalize

                Finalize(None, self._ended, exitpriority=100)
        stepped = self._recorder.optimizers
        if not stepped or (stepped[-1]() is not optimizer and not any(ref() is optimizer for ref in stepped)):
            stepped.append(weakref.ref(optimizer))
        self._steps.optimizer_stepped(optimizer)
        self._after_step()

    def _backward_ended(self) -> None:
        self._happened("backward")

    def _happened(self, kind: str) -> None:
        """Count an event other than an optimizer's step that may mark a step; not in a forked process."""
        if os.getpid() == self._pid:
            self._steps.optimizer_made = "made" in self._optimizers
            self._steps.happened(kind)
            self._after_step()

    def _after_step(self) -> None:
        """Fix what counts as a step once that is settled; once all is recorded, end the run as `sys.exit()` would."""
        if self._plan.watch and self._steps.fixed:
            return
        self._recorder.steps_by = self._steps.by
        if not self._recorder.begun:
            return
        self._stop_needless_listeners()
        if self._recorder.settled and not self._steps.fixed:
            self._steps.fixed = True
            if self._steps.by in FOUND_BY:
                self._recorder.note(FOUND_BY[self._steps.by])
        ends = self._recorder.may_end and not self._plan.keep_running and self._exits < MOST_EXITS
        if ends and threading.current_thread() is threading.main_thread() and not turns.foreign_elsewhere:
            self._exits += 1
            _wait_for_work()
            raise SystemExit(0)

    def _stop_needless_listeners(self) -> None:
        """Stop listening to less reliable events once steps are found by better ones."""
        if self._steps.by == "optimizer" or (self._steps.fixed and self._steps.by != "backward"):
            backwards.leave(self._backward_ended)
        if self._leave_model is not None and self._steps.by != "call":
            self._leave_model()
            self._leave_model = None

    def _wait_for_steps(self, torch: ModuleType) -> None:
        """Start timers: without a step by then, count calls of the model, then tell the user, then record some time.
        Not in workers of multiprocessing, nor where the process only idles, as a launcher does."""
        if parent_process() is not None:
            return
        begun_s, pid = time.process_time(), self._pid

        def without_steps(seconds: float, act: Callable[[], None]) -> None:
            """After so long call `act()` in a thread, if the process works and no step has ended."""

            def check() -> None:
                busy = time.process_time() - begun_s > BUSY * seconds
                if os.getpid() == pid and busy and not self._recorder.begun:
                    act()

            timer = threading.Timer(seconds, check)
            timer.daemon = True
            timer.start()

        without_steps(self._plan.calls_after_s, lambda: threads.soon(self._watch_model))
        if self._plan.watch:
            return
        without_steps(self._plan.hint_after_s, self._tell_how_to_mark)
        without_steps(self._plan.window_after_s, lambda: self._recorder.record_window(WINDOW_S))

    def _watch_model(self) -> None:
        if "made" not in self._optimizers and (model := noticed.largest()) is not None:
            self._leave_model = noticed.when_called(model, lambda: self._happened("call"))

    def _tell_how_to_mark(self) -> None:
        """Post where the training loop seems to be: the command says how to mark its steps."""
        loop = threads.training_loop()
        where = "around its loop" if loop is None else f"in {loop.file}, line {loop.line}"
        head = "for batch in batches:" if loop is None else loop.head
        Board(self._part.work).post("unfound", seconds=self._plan.hint_after_s, where=where, head=head)

    def _ended(self) -> None:
        """End the recording and note how the script ended; if no steps were found, post what was seen instead."""
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

    def _show_errors_without_us(self) -> None:
        """Hook `sys.excepthook`: note how the script ends, and show its errors without frames of diagnose."""
        earlier = sys.excepthook

        def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            interrupted = issubclass(kind, KeyboardInterrupt)
            self._how = "interrupted" if interrupted else "crashed"
            _be_interrupted_once()
            if interrupted and self._part.work.is_dir():
                with suppress(OSError):
                    Board(self._part.work).post(INTERRUPTED)
            _strip_own_frames(error)
            earlier(kind, error, error.__traceback__)

        sys.excepthook = show


def start(work: str) -> None:
    """Make this process ready to be recorded. `work`: the working folder of its part, which has the plan."""
    global _script
    part = Part.at(Path(work))
    _script = Script(part)
    script_files.watch(part.recording, Plan.read(part).written)


_script: Script | None = None  # Kept for as long as the process lives.


# For gloo's threads to let go of their tensors: one that does so while Python shuts down aborts the process (seen in up
# to half of short runs with torch 2.13; with this pause in none of 60).
QUIET_S = 0.5


def _be_interrupted_once() -> None:
    """Ignore Ctrl-C from now on: one may arrive twice, and the second would break into the end of the script."""
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _wait_for_work() -> None:
    """Wait for the GPU, as other ranks may need its work; with a process group also QUIET_S, for its threads."""
    import torch

    if uses_gpu():
        alone("the end of queued work", torch.cuda.synchronize)
    if process_group() is not None:
        time.sleep(QUIET_S)


def _strip_own_frames(error: BaseException) -> None:
    """Remove frames of diagnose from the tracebacks of an error, and of its causes and contexts."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            current.__traceback__ = _without(current.__traceback__)
            pending += [current.__cause__, current.__context__]


def _without(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without frames of diagnose; None if it has no others."""
    kept: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OWN):
            kept.append(trace)
        trace = trace.tb_next
    for before, after in zip(kept, [*kept[1:], None], strict=False):
        before.tb_next = after
    return kept[0] if kept else None
