"""What a step's time goes to, by a few reads of the clock: waiting for a batch, backward passes, optimizers, saving,
collecting garbage. The rest is forward passes and the Python between.

The same clocks run in steps without a profiler and in recorded ones, so that what recording costs is known of each
phase. A phase within another counts for itself, and not for the other.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from . import backwards

LOADER, BACKWARD, OPTIMIZER, SAVE, COLLECTION = "loader", "backward", "optimizer", "save", "collection"
FORWARD, COMPILATION = "forward", "compilation"  # Which only a watched run tells apart.

ALL = (LOADER, FORWARD, BACKWARD, OPTIMIZER, SAVE, COLLECTION, COMPILATION)

YOUNGEST = 0  # Collections of the youngest objects are many, and short: they are part of what they interrupt.


class Phases:
    """Time of one thread by phase, while it is on. What begins in other threads is not counted."""

    def __init__(self) -> None:
        self.in_thread: int | None = None  # Whose time is told apart; None while it is off.
        self._since_ns = 0
        self._open: list[str] = []
        self._spent_ns = dict.fromkeys(ALL, 0)
        self._callback: Callable[[str, dict[str, int]], None] = self._collects
        self.after_save: Callable[[], None] = lambda: None
        """Is called when a checkpoint has been saved, in the thread whose time is told apart."""

    def on(self) -> None:
        """Begin, in this thread."""
        self.off()
        self.in_thread, self._spent_ns = threading.get_ident(), dict.fromkeys(ALL, 0)
        backwards.listen(self._backward_begins)
        backwards.listen_to_ends(self._backward_ended)
        gc.callbacks.append(self._callback)
        if "torch._dynamo" in sys.modules:
            self.leave_compiled()

    def leave_compiled(self) -> None:
        """Once torch.compile is there: what Python calls within compiled frames is not compiled."""
        import torch

        ours = self._callback in gc.callbacks
        if ours:
            gc.callbacks.remove(self._callback)
        self._callback = torch.compiler.disable(self._collects)
        if ours:
            gc.callbacks.append(self._callback)

    def off(self) -> None:
        """End: from now on a phase costs a look at one attribute."""
        self.in_thread = None
        self._open.clear()
        backwards.leave(self._backward_begins)
        backwards.leave(self._backward_ended)
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def spent_ns(self) -> dict[str, int]:
        """Since it began, by phase; what is open counts up to now."""
        if self._open:
            self._count(time.perf_counter_ns())
        return dict(self._spent_ns)

    def moment(self) -> tuple[int, ...]:
        """The clock, and what has been spent on each of ALL by then."""
        now_ns = time.perf_counter_ns()
        if self._open:
            self._count(now_ns)
        return (now_ns, *self._spent_ns.values())

    def spent_so_far_ns(self) -> dict[str, int]:
        """The same, for another thread: what changes meanwhile may be missed."""
        spent, innermost, since_ns = dict(self._spent_ns), self._open[-1:], self._since_ns
        for phase in innermost:
            spent[phase] += max(time.perf_counter_ns() - since_ns, 0)
        return spent

    def begin(self, phase: str) -> bool:
        """A phase begins. Returns whether it is counted: only then `end` is to be called."""
        if self.in_thread is None or self.in_thread != threading.get_ident():
            return False
        now_ns = time.perf_counter_ns()
        if self._open:
            self._count(now_ns)
        self._open.append(phase)
        self._since_ns = now_ns
        return True

    def end(self, phase: str) -> None:
        """The phase has ended, and with it all that began in it."""
        opened = self._open
        if phase in opened:
            now_ns = time.perf_counter_ns()
            self._spent_ns[opened[-1]] += now_ns - self._since_ns
            self._since_ns = now_ns
            while opened.pop() != phase:
                pass
            if phase == SAVE:
                self.after_save()

    def _count(self, now_ns: int) -> None:
        self._spent_ns[self._open[-1]] += now_ns - self._since_ns
        self._since_ns = now_ns

    def _backward_begins(self, _tensors: list[Any]) -> None:
        """Of a pass that runs within another only the outer one's end is told."""
        if BACKWARD not in self._open:
            self.begin(BACKWARD)

    def _backward_ended(self) -> None:
        if self.in_thread == threading.get_ident():
            self.end(BACKWARD)

    def _collects(self, when: str, info: dict[str, int]) -> None:
        if info["generation"] == YOUNGEST:
            return
        if when == "start":
            self.begin(COLLECTION)
        elif self.in_thread == threading.get_ident():
            self.end(COLLECTION)


phases = Phases()  # Of this process.
