"""What a step's time goes to, by a few reads of the clock: waiting for batches, backward passes, the optimizer, saving,
collecting garbage. And ranges in recordings for what interrupts a training.

The same clocks run in steps without a profiler and in recorded ones, so that what recording costs is known of each
phase. A phase within another counts for itself, and not for the other.
"""

import functools
import gc
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import backwards, script_files
from .alone import alone, tried
from .script_files import when_imported

LOADER, BACKWARD, OPTIMIZER, SAVE, COLLECTION = "loader", "backward", "optimizer", "save", "collection"
FORWARD, COMPILATION = "forward", "compilation"  # Which only a watched run tells apart.
ALL = (LOADER, FORWARD, BACKWARD, OPTIMIZER, SAVE, COLLECTION, COMPILATION)
YOUNGEST = 0  # Collections of the youngest objects are many, and short: they are part of what they interrupt.


class Phases:
    """Time of one thread by phase, while it is on. What begins in other threads is not counted."""

    def __init__(self) -> None:
        self.in_thread: int | None = None  # Whose time is told apart; None while it is off.
        self._since_ns = 0  # When time was last added to `_spent_ns`.
        self._open: list[str] = []  # Phases that have begun, the innermost last.
        self._spent_ns = dict.fromkeys(ALL, 0)
        self._callback: Callable[[str, dict[str, int]], None] = self._collects
        self.after_save: Callable[[], None] = lambda: None  # Called in that thread after a checkpoint is saved.

    def on(self) -> None:
        """Begin to count this thread's time, from zero."""
        self.off()
        self.in_thread, self._spent_ns = threading.get_ident(), dict.fromkeys(ALL, 0)
        backwards.listen(self._backward_begins)
        backwards.listen_to_ends(self._backward_ended, of_failed=True)
        gc.callbacks.append(self._callback)
        if "torch._dynamo" in sys.modules:
            self.leave_compiled()

    def leave_compiled(self) -> None:
        """Once torch.compile is imported: keep it from compiling our callback of `gc` within compiled frames."""
        import torch

        ours = self._callback in gc.callbacks
        if ours:
            gc.callbacks.remove(self._callback)
        self._callback = torch.compiler.disable(self._collects)
        if ours:
            gc.callbacks.append(self._callback)

    def off(self) -> None:
        """End. From now on `begin` only reads one attribute."""
        self.in_thread = None
        self._open.clear()
        backwards.leave(self._backward_begins)
        backwards.leave(self._backward_ended)
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def spent_ns(self) -> dict[str, int]:
        """Time in ns since `on`, by phase; an open one counts up to now. For the thread that is counted only."""
        self._count()
        return dict(self._spent_ns)

    def moment(self) -> tuple[int, ...]:
        """The clock, then what has been spent on each of ALL by then, in ns. For the thread that is counted only."""
        return (self._count(), *self._spent_ns.values())

    def spent_so_far_ns(self) -> dict[str, int]:
        """As `spent_ns`, for other threads: a phase that begins or ends meanwhile may be missed."""
        spent, innermost, since_ns = dict(self._spent_ns), self._open[-1:], self._since_ns
        for phase in innermost:
            spent[phase] += max(time.perf_counter_ns() - since_ns, 0)
        return spent

    def begin(self, phase: str) -> bool:
        """A phase begins in this thread. Returns whether it is counted: only then `end` is to be called."""
        if self.in_thread is None or self.in_thread != threading.get_ident():
            return False
        self._count()
        self._open.append(phase)
        return True

    def end(self, phase: str) -> None:
        """The phase has ended, and with it all that began in it."""
        if phase in self._open:
            self._count()
            while self._open.pop() != phase:
                pass
            if phase == SAVE:
                self.after_save()

    def _count(self) -> int:
        """Add the time since the last change to the innermost open phase; returns the clock in ns."""
        now_ns = time.perf_counter_ns()
        if self._open:
            self._spent_ns[self._open[-1]] += now_ns - self._since_ns
        self._since_ns = now_ns
        return now_ns

    def _backward_begins(self, _tensors: list[Any]) -> None:
        """Does nothing within another pass, as only the end of the outer one is told."""
        if BACKWARD not in self._open:
            self.begin(BACKWARD)

    def _backward_ended(self) -> None:
        if self.in_thread == threading.get_ident():
            self.end(BACKWARD)

    def _collects(self, when: str, info: dict[str, int]) -> None:
        """A callback of `gc`: collections of more than the youngest generation count as the phase COLLECTION."""
        if info["generation"] == YOUNGEST:
            return
        if when == "start":
            self.begin(COLLECTION)
        elif self.in_thread == threading.get_ident():
            self.end(COLLECTION)


phases = Phases()  # Of this process.


AUTOMATIC = "Python GC"  # As torch.profiler names collections that Python starts by itself.
ASKED_FOR = "<built-in function collect>"  # And those that the script asks for.
SAVING = "torch.save (checkpoint)"
STARTING, STOPPING = (f"_MultiProcessingDataLoaderIter.{name}" for name in ("__init__", "_shutdown_workers"))
RANGES = "saving, collections of garbage and texts in recordings"  # The name of such ranges for `alone`.
MARKS = "the steps' places in recordings"  # That of ranges of steps.
FORMATTING = "Tensor.__repr__ (text)"


class Collections:
    """While on, each collection of garbage, but of the youngest objects, is a range of whatever is recording."""

    def __init__(self) -> None:
        self._open = Marked("")
        self._callback: Callable[[str, dict[str, int]], None] = self._on_collection

    def on(self) -> bool:
        """Begin; whether this version of torch can.

        A collection may come at any moment, also while ops are traced for a graph. So only a range that calls no op
        will do, and torch.compile must not look at the callback.
        """
        import torch

        if not hasattr(torch._C._profiler, "_RecordFunctionFast"):
            return False
        if "torch._dynamo" in sys.modules:
            self._callback = torch.compiler.disable(self._on_collection)
        gc.callbacks.append(self._callback)
        return True

    def off(self) -> None:
        """End."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)
        self._open.__exit__()

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        """A callback of `gc`: a range around each collection says whether a threshold or the script began it."""
        self._open.__exit__()
        if phase == "start" and info["generation"] > YOUNGEST:
            automatic = gc.isenabled() and gc.get_count()[0] > gc.get_threshold()[0]
            self._open = Marked(AUTOMATIC if automatic else ASKED_FOR, fast=True)
            self._open.__enter__()


_marking: list[Callable[..., Any]] = []  # Functions that make ranges: once is enough, for all recordings.


class Marked:
    """A range of whatever is recording, if one can be made."""

    def __init__(self, name: str, fast: bool = False) -> None:
        """`fast`: a range that calls no op, for where ops are traced."""
        self._name, self._fast = name, fast
        self._open: Any = None

    def __enter__(self) -> None:
        self._open = alone(RANGES, self._opened_range)

    def _opened_range(self) -> Any:
        """The range, open."""
        import torch.profiler

        made = torch._C._profiler._RecordFunctionFast if self._fast else torch.profiler.record_function
        begun = made(self._name)
        begun.__enter__()
        return begun

    def __exit__(self, *_error: object) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            tried(RANGES, opened.__exit__, None, None, None)


# Functions that save checkpoints, by their module; torch's own first.
SAVERS = {
    "torch.serialization": "save",
    "safetensors.torch": "save_file",
    "torch.distributed.checkpoint.state_dict_saver": "save",
}


def mark_saving(others: bool = False) -> None:
    """Have every torch.save, and with `others` every call of SAVERS, be a range of whatever is recording."""
    for module, name in list(SAVERS.items())[: None if others else 1]:
        when_imported(module, functools.partial(_mark_saver, name=name))


def _mark_saver(module: ModuleType, name: str) -> None:
    """Wrap a function that saves: each call is a range and the phase SAVE, and its path is noted."""
    original: Callable[..., Any] = getattr(module, name)
    if original in _marking:
        return

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        # C++ opens the file; nothing but a path is noted.
        script_files.note(args[1] if len(args) > 1 else kwargs.get("f"))
        counted = phases.begin(SAVE)
        try:
            with Marked(SAVING):
                return original(*args, **kwargs)
        finally:
            if counted:
                phases.end(SAVE)

    _marking.append(save)
    for owner in (module, sys.modules.get(module.__name__.partition(".")[0])):
        if getattr(owner, name, None) is original:  # torch itself has taken the name, where it was imported before.
            setattr(owner, name, save)


def mark_formatting() -> None:
    """Have every tensor that is written as text be a range of whatever is recording, if this version of torch can.
    Tensors without data are written as text while graphs are traced: only a range that calls no op will do."""
    when_imported("torch._tensor_str", _mark_formatting)


def _mark_formatting(module: ModuleType) -> None:
    """Wrap the function that formats tensors as text, so that each call is a range."""
    import torch

    original: Callable[..., str] = module._str
    if not hasattr(torch._C._profiler, "_RecordFunctionFast") or original in _marking:
        return

    @functools.wraps(original)
    def text(*args: Any, **kwargs: Any) -> str:
        with Marked(FORMATTING, fast=True):
            return original(*args, **kwargs)

    _marking.append(text)
    module._str = text  # type: ignore[attr-defined]
