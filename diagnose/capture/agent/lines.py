"""Which lines run: in the user's functions (`Lines`), and while a batch is made (`Sampler`).

torch's profiler gives a function the line at which it starts, and one that was running already the line of that moment,
however long it goes on: so all of a training's loop has one line. While this is on, each line that such a function
comes to is a range of no length in the recording, on its thread.

While a batch is made, a thread looks at what runs; all time since its look before counts for what it finds. A call that
keeps Python's lock delays the look, and is where it is found.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import CodeType, FrameType
from typing import Any, NamedTuple

from .alone import alone
from .noticed import is_users
from .threads import OWN, frames, line_of

LINE = "diagnose.line"  # Before the number of the line and the function, as in `trace.frames.marked_line`.
NOT_KNOWN = 0  # In place of the number: from then on the line of no function is known.
MOST_LINES = 200_000  # That a recording tells, some 40 MB of text (chosen).
MOST_OF_ONE = 5_000  # The same of one called function, 2 us each; then only its first line is given (chosen).


class Lines:
    """For the thread that calls `on`, until `off`. A debugger's or a coverage tool's own tracing is left alone."""

    def __init__(self) -> None:
        self._frames: list[FrameType] = []
        self._codes: frozenset[CodeType] = frozenset()  # Functions that were running when it began.
        self._left_of: dict[CodeType, int] = {}  # How many more lines may be marked of each function called since.
        self._ranges: dict[tuple[CodeType, int], Any] = {}
        self._range: Any = None
        self._on, self._left = False, 0  # Whether lines are marked; how many more may be.

    def on(self) -> None:
        """Begin, where this version of torch has ranges that call no op: lines run in compiled functions too."""
        import torch

        self._range = getattr(torch._C._profiler, "_RecordFunctionFast", None)
        if self._range is None or sys.gettrace() is not None:
            return
        self._frames += [frame for frame in frames(sys._getframe(1)) if not frame.f_code.co_filename.startswith(OWN)]
        self._codes = frozenset(one.f_code for one in self._frames)
        for one in self._frames:
            one.f_trace = self._line
        self._left, self._on = MOST_LINES, True
        sys.settrace(self._called)

    def off(self) -> None:
        """End. Called in another thread than `on`, tracing ends once the traced thread calls its next function."""
        self._on = False
        if sys.gettrace() == self._called:
            sys.settrace(None)
        for frame in self._frames:
            if frame.f_trace == self._line:
                frame.f_trace = None
        self._frames.clear()  # They hold what the script computes.

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        """The trace function for calls: trace the lines of functions that were running, and of the user's others."""
        if not self._on:
            sys.settrace(None)
            return None
        code = frame.f_code
        if code not in self._codes and code not in self._left_of:
            self._left_of[code] = MOST_OF_ONE if is_users(code.co_filename) else 0
        return self._line if code in self._codes or self._left_of[code] else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        """The trace function for lines: mark the one that is reached. What it raised would be raised in the script."""
        if not self._on:
            return None
        if event == "line":
            self._left -= 1
            line = self._line_to_mark(frame) if self._left else NOT_KNOWN
            self._on = alone("the lines that run", self._mark, frame.f_code, line, default=False)
            self._on &= self._left > 0
        return frame.f_trace

    def _line_to_mark(self, frame: FrameType) -> int:
        """The line that runs; at a called function's last allowed mark its first line, and its tracing ends."""
        code = frame.f_code
        if code in self._codes:
            return frame.f_lineno
        self._left_of[code] -= 1
        if self._left_of[code] > 0:
            return frame.f_lineno
        self._left_of[code], frame.f_trace = 0, None
        return code.co_firstlineno

    def _mark(self, code: CodeType, line: int) -> bool:
        """Leave an empty range in the trace, whose name says which line of which function runs. Always True."""
        made = self._ranges.get((code, line))
        if made is None:
            made = self._ranges[code, line] = self._range(f"{LINE}({line}): {code.co_name}")
        made.__enter__()
        made.__exit__(None, None, None)
        return True


EVERY_S, SWITCH_S = 0.001, 0.0001  # Between looks, and for which another thread may delay one (chosen).
_AROUND = frozenset(  # Names of library functions that only call what does the work.
    ("fetch", "__getitem__", "__getitems__", "__call__", "_call_impl", "_wrapped_call_impl", "forward", "collate")
)


class Line(NamedTuple):
    """A place in the script, and the library function that it calls there, as `SampledLine` in the manifest."""

    file: str  # Empty, and line 0: no code of the user's was running.
    line: int
    function: str
    calls: str  # As "numpy.load"; empty: the line's own work, or built-in functions.


class Sampler:
    """Finds where the time of the thread that makes it goes, from `with` to the end of it."""

    def __init__(self, below: str) -> None:
        """`below`: the file of the function that calls what is sampled; its frame and those around it do not count."""
        self.found: Counter[Line] = Counter()  # Time in ns of each.
        self._below, self._thread = below, threading.get_ident()
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, name="diagnose-sampler", daemon=True)
        self._switch_s = sys.getswitchinterval()

    def __enter__(self) -> Sampler:
        sys.setswitchinterval(SWITCH_S)
        self._looking.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._looking.join()
        sys.setswitchinterval(self._switch_s)

    def _look(self) -> None:
        """Until the end, look where the thread is, and count the time since the last look for that place."""
        before_ns = time.perf_counter_ns()
        while not self._over.wait(EVERY_S):
            place, now_ns = self._place(sys._current_frames().get(self._thread)), time.perf_counter_ns()
            if place is not None:
                self.found[place] += now_ns - before_ns
            before_ns = now_ns

    def _place(self, frame: FrameType | None) -> Line | None:
        """The user's innermost line inside of the fetch, else the library's function; None outside of the fetch."""
        inner = list[FrameType]()
        users: int | None = None
        while frame is not None and frame.f_code.co_filename != self._below:
            if users is None and is_users(frame.f_code.co_filename):
                users = len(inner)
            inner.append(frame)
            frame = frame.f_back
        if frame is None or not inner or inner[-1].f_code.co_filename == __file__:
            return None
        if users is not None:
            own = inner[users]
            called = _name(inner[users - 1]) if users else ""
            around = (one.f_code.co_name for one in inner[users:] if not one.f_code.co_name.startswith("<"))
            return Line(own.f_code.co_filename, line_of(own), next(around, own.f_code.co_name), called)
        working = [one for one in inner if one.f_code.co_name.strip("<>") not in _AROUND | {"listcomp"}]
        return Line("", 0, "", _name((working or inner)[-1]))


def _name(frame: FrameType) -> str:
    """A library function's name with its package if that exports it, as "numpy.load", else with its public modules."""
    module, name = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
    top = module.partition(".")[0]
    if name.startswith("<"):
        return module
    if name in vars(sys.modules.get(top, sys)):
        return f"{top}.{name}"
    return ".".join((*(part for part in module.split(".") if not part.startswith("_")), name))
