"""A process that is watched: hooks that find where its time goes, and the log that they feed."""

import functools
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any

from .. import about, about_settings, backwards, interruptions, loaders, noticed, place, script_files
from ..board import Board
from ..foreign import watch_foreign
from ..interruptions import COMPILATION, FORWARD, phases
from ..noticed import compiler_switch
from ..plan import Part, Plan
from ..recorder import Recorder
from ..script_files import when_imported
from .log import Figures, Log, rename_earlier_log
from .step_times import BatchesAsked, DeviceTimes, Interval, StepTimes, recorded

ASKED_BY_SIGNAL = getattr(signal, "SIGUSR2", None)  # Asks for a recording, unless the script uses it; None on Windows.
RECORDING = "recording"  # Posted by the command, with a number, to have the next steps recorded; the folder's name.
MADE = "made"  # What each rank posts in the part of a recording when it is over.
ASK = "ask"  # What anyone posts who wants a recording, with a suffix of their own.


class Asked:
    """Recordings that are asked for: a thread calls `look`, the one that trains takes `part` and calls `made`."""

    def __init__(self, part: Part) -> None:
        self._board, self._shared = Board(part.work), part.shared
        self._number, self._signals = 1, 0
        self.part: Part | None = None  # What to record into; None while nothing is asked for.
        here = threading.current_thread() is threading.main_thread()
        # Unless there is a handler already, or the script sets one later.
        if here and ASKED_BY_SIGNAL is not None and signal.getsignal(ASKED_BY_SIGNAL) is signal.SIG_DFL:
            signal.signal(ASKED_BY_SIGNAL, lambda *_: self._signalled())

    def look(self) -> None:
        """Set `part` if the next recording has been asked for and none is under way."""
        while self.part is None and (word := self._board.read(f"{RECORDING}-{self._number}")) is not None:
            self._number += 1
            work = Path(word["part"])
            self.part = Part.at(work) if work.exists() else None  # Of an earlier attempt, which is complete.

    def made(self) -> None:
        """The recording is over, or has failed: tell the command, and look for the next."""
        part, self.part = self.part, None
        if part is not None:
            Board(part.work).post(f"{MADE}.{place.find().rank}")

    def _signalled(self) -> None:
        self._signals += 1
        Board(self._shared).post(f"{ASK}.{os.getpid()}-{self._signals}", why="requested by a signal")


LOOKS_FOR_MODELS = (0, 1, 2, 10)  # Steps after which models are looked for if none was called: some wrap late (chosen).


class Watcher:
    """Takes the place of a Recorder: told of each step's end, it writes a log. `step_ended` never raises."""

    may_end = False  # The run is never ended.

    def __init__(self, part: Part, plan: Plan, on_batch: Callable[[], None]) -> None:
        """`on_batch` is called when this process asks a DataLoader for a batch."""
        self.optimizers: list[weakref.ref[object]] = []  # Those that stepped, where that is known.
        self.steps_by: str | None = None  # As in `RankManifest`.
        self.over = False  # No log is written any more.
        self._part, self._warmup, self._pid = part, plan.warmup, os.getpid()
        self._on_batch = on_batch
        self._steps = self._calls = 0  # Steps so far; calls of models that have not returned, one within another.
        self._log: Log | None = None
        self._times: StepTimes | None = None  # None while something is recorded, too.
        self._settings = about_settings.Settings()
        self._settings.install()
        self._asked_for = Asked(part)
        self._recorder: Recorder | None = None
        self._device = DeviceTimes()
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # Models whose calls we hear of.
        self._went_backward = False  # After a call in training mode: then one in evaluation mode is an evaluation.
        self._called_in_step = False  # A model was called for training in this step.
        self._trains = False  # The latest call was of a model in training mode.
        self._doubtful = False  # It was of one in evaluation mode with gradients.
        self._began_ns = self._ended_ns = time.perf_counter_ns() - age_ns()
        self._grad_enabled: Callable[[], bool] = lambda: True
        self._batches = loaders.use(BatchesAsked(part.work, self._batch_asked))
        backwards.listen(self._backward_begins)
        interruptions.mark_saving(others=True)
        watch_foreign(lambda: None)
        when_imported("torch.optim.optimizer", self._begin_times)
        when_imported("torch.nn.modules.module", self._watch_eval)
        when_imported("torch._dynamo.callback", _mark_compilation)
        when_imported("torch._dynamo", lambda _: phases.leave_compiled())

    @property
    def begun(self) -> bool:
        """Whether a step has ended."""
        return self._steps > 0

    @property
    def settled(self) -> bool:
        """Whether the warm-up is over, so that what counts as a step must not change any more."""
        return self._steps >= self._warmup

    def step_ended(self, number: int) -> None:
        """The step of this number has ended: log its interval, or tell the recorder while one is at work."""
        if self.over or (times := self._times) is None:
            if self._recorder is not None:
                self._recorded_step_ended(self._recorder, number)
            return
        try:
            if phases.in_thread != get_ident():
                phases.on()  # Another thread trains: its time is told apart from here on.
                self._times = times = StepTimes(self._ended_ns)
            if self._steps in LOOKS_FOR_MODELS and not self._called_in_step:
                self._look_for_models()
            self._called_in_step = False
            interval = times.step_ended(self._batches.epoch_begins())
            self._ended_ns = interval.ended
            if self._log is not None:
                self._log.add(interval, self._device.step_ended())
            else:
                self._device.step_ended()
                self._log = self._new_log()
                self._log.begin(interval)
            self._steps += 1
            self._log.steps_by = self.steps_by
            if self._asked_for.part is not None and self.settled:
                self._record(self._asked_for.part)
        except FileExistsError:
            self.over = True  # Another process of this rank has a log.
        except Exception as error:
            self.over = True
            print(f"diagnose: watching stopped ({type(error).__name__}: {error})", file=sys.stderr)

    def note(self, sentence: str) -> None:
        """Does nothing: notes are about what steps are found by, which the log has."""

    def record_window(self, seconds: float) -> None:
        """Does nothing: without steps there is nothing to watch."""

    def end(self, how: str) -> None:
        """End an open recording, and write what is left of the log. Later calls do nothing."""
        log, self._log, self.over = self._log, None, True
        if log is not None and os.getpid() == self._pid:
            if self._recorder is not None:
                self._recorder.end(how)
            log.end(how, script_files.found() or [])

    def _new_log(self) -> Log:
        """The log of this rank; the one of an earlier process is renamed. Raises OSError."""
        here = place.find()
        rename_earlier_log(self._part.shared, self._part.recording, here.rank)
        figures = Figures(self._batches.ready)
        folder, so_far, look = self._part.recording, self._so_far, self._asked_for.look
        return Log(folder, here.rank, here.world_size, self._began_ns, so_far, figures, look, self._loading)

    def _loading(self) -> list[object]:
        """The training's loader, steps and batches it fed, cores for each rank here, torch's threads; or nothing."""
        used, cpus = self._batches.trained_from(), about.host()["cpus_allowed"]
        cores = max(cpus // place.find().peers, 1) if isinstance(cpus, int) else None
        return [] if used is None else [*used, cores, sys.modules["torch"].get_num_threads()]

    def _so_far(self) -> Interval:
        times = self._times
        return times.so_far() if times is not None else recorded(self._ended_ns, time.perf_counter_ns())

    def _record(self, part: Part) -> None:
        """Begin a recording; until it is over, steps are not timed but count as `recording` in the log."""
        try:
            recorder = Recorder(part, Plan.read(part), self._on_recorded_batch, self._settings)
        except Exception as error:
            print(f"diagnose: nothing is recorded ({type(error).__name__}: {error})", file=sys.stderr)
            self._asked_for.made()
            return
        recorder.optimizers, recorder.steps_by = self.optimizers, self.steps_by
        self._recorder, self._times = recorder, None

    def _on_recorded_batch(self) -> None:
        if self.steps_by != "optimizer":
            self._on_batch()

    def _recorded_step_ended(self, recorder: Recorder, number: int) -> None:
        """A step has ended that the recorder was told of. After its last one steps are timed again."""
        recorder.step_ended(number)
        began_ns, self._ended_ns = self._ended_ns, time.perf_counter_ns()
        self._steps += 1
        if self._log is not None:
            self._log.add(recorded(began_ns, self._ended_ns), [])
        if recorder.over:
            self._recorder = None
            self._asked_for.made()
            loaders.use(self._batches)
            phases.on()
            self._times = StepTimes(self._ended_ns)
            self._device = DeviceTimes()

    def _begin_times(self, module: ModuleType) -> None:
        """Begin to time this thread once the script imports torch; the first interval is from the process's start."""
        import torch

        self._grad_enabled = torch.is_grad_enabled
        phases.on()
        phases.after_save = self._evaluation_ends
        self._times = StepTimes(self._began_ns)

    def _batch_asked(self) -> None:
        """The script asks for a batch: a stretch of time may begin with it, and so may a step."""
        if self._times is not None and phases.in_thread == get_ident():
            self._times.batch_asked(self._grad_enabled())
        if not self.settled or self.steps_by != "optimizer":
            self._on_batch()

    def _backward_begins(self, _tensors: list[Any]) -> None:
        """A pass shows that the latest call was training, also one that was taken for evaluation."""
        times = self._times
        if times is not None and phases.in_thread == get_ident():
            if self._doubtful:
                times.trains_after_all()
                self._doubtful = False
            self._went_backward |= self._trains
            times.trains()

    def _watch_eval(self, module: ModuleType) -> None:
        """Before the first step look for models where one is put into evaluation mode: it may be validated."""
        import torch

        original, compile_with = module.Module.eval, compiler_switch()

        @functools.wraps(original)
        def eval_(model: Any) -> Any:
            if not torch.compiler.is_compiling() and not self.begun:
                compiler = compile_with(None)
                compile_with(compiler)
                if not compiler and not self._known:
                    self._look_for_models()
            return original(model)

        module.Module.eval = eval_

    def _look_for_models(self) -> None:
        """Hear of calls of models that optimizers update; only in the thread that trains, not in a forked process."""
        if phases.in_thread != get_ident() or os.getpid() != self._pid:
            return
        optimizers = [one for ref in self.optimizers if (one := ref()) is not None] or about.all_optimizers()
        for model in noticed.trained(optimizers):
            if model not in self._known:
                self._known.add(model)
                noticed.when_called(model, self._called(model), self._call_ended)
                noticed.when_trained(model, self._evaluation_ends)

    def _called(self, model: Any) -> Callable[[], None]:
        """What is called before each call of the model: it tells training from evaluation."""
        wanted = weakref.ref(model)

        def called() -> None:
            times = self._times
            if times is None or phases.in_thread != get_ident():
                return
            self._calls += 1
            if self._calls > 1:
                return  # A call within that of another model.
            one = wanted()
            trains = bool(one is not None and one.training)
            if not self._grad_enabled():
                times.evaluates()
            elif not trains and self._went_backward:
                times.evaluates()
                self._doubtful = True
            else:
                times.trains()
                self._trains, self._doubtful, self._called_in_step = trains, False, True
                phases.begin(FORWARD)

        return called

    def _evaluation_ends(self) -> None:
        if self._times is not None and phases.in_thread == get_ident():
            self._times.evaluation_ends()

    def _call_ended(self) -> None:
        if self._calls and phases.in_thread == get_ident():
            self._calls -= 1
            if not self._calls:
                phases.end(FORWARD)


def _mark_compilation(module: ModuleType) -> None:
    handler = module.callback_handler
    handler.register_start_callback(lambda _: phases.begin(COMPILATION))
    handler.register_end_callback(lambda _: phases.end(COMPILATION) if phases.in_thread == get_ident() else None)


def age_ns() -> int:
    """How long ago this process started; 0 where nothing tells (proc(5): field 22 of stat, ticks since boot)."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(round(age_s * 1e9), 0)
    except (OSError, AttributeError, IndexError, ValueError):
        return 0
