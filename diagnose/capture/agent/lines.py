"""Which lines run in the user's functions, and in all that were on the stack when a recording of stacks began.

torch's profiler gives a function the line at which it starts, and one that was running already the line of that moment,
however long it goes on: so all of a training's loop has one line. While this is on, each line that such a function
comes to is a range of no length in the recording, on its thread.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from .alone import alone
from .loops import OWN
from .made import is_users

LINE = "diagnose.line"  # Before the number of the line and the function, as in `trace.frames.marked_line`.
NOT_KNOWN = 0  # In place of the number: from then on the line of no function is known.
MOST_LINES = 200_000  # That a recording tells, some 40 MB of text (our choice).
MOST_OF_ONE = 5_000
"""Of them, of a function that is called: each takes 2 us. Then it has the line where it starts again (our choice)."""


class Lines:
    """For the thread that calls `on`, until `off`. A debugger's or a coverage tool's own tracing is left alone."""

    def __init__(self) -> None:
        self._frames: list[FrameType] = []
        self._codes: frozenset[CodeType] = frozenset()
        self._left_of: dict[CodeType, int] = {}  # Lines that are told yet of functions that are called.
        self._ranges: dict[tuple[CodeType, int], Any] = {}
        self._range: Any = None
        self._on, self._left = False, 0

    def on(self) -> None:
        """Begin, where this version of torch has ranges that call no op: lines run in compiled functions too."""
        import torch

        self._range = getattr(torch._C._profiler, "_RecordFunctionFast", None)
        if self._range is None or sys.gettrace() is not None:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if not frame.f_code.co_filename.startswith(OWN):
                self._frames.append(frame)
            frame = frame.f_back
        self._codes = frozenset(one.f_code for one in self._frames)
        for one in self._frames:
            one.f_trace = self._line
        self._left, self._on = MOST_LINES, True
        sys.settrace(self._called)

    def off(self) -> None:
        """End. In another thread than that of `on`, with the next function that it calls."""
        self._on = False
        if sys.gettrace() == self._called:
            sys.settrace(None)
        for frame in self._frames:
            if frame.f_trace == self._line:
                frame.f_trace = None
        self._frames.clear()  # They hold what the script computes.

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        """A function is called: is it one of those again, or of the user's?"""
        if not self._on:
            sys.settrace(None)
            return None
        code = frame.f_code
        if code not in self._codes and code not in self._left_of:
            self._left_of[code] = MOST_OF_ONE if is_users(code.co_filename) else 0
        return self._line if code in self._codes or self._left_of[code] else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        """One of these functions has come to a line. What is raised here would be raised in the script."""
        if not self._on:
            return None
        if event == "line":
            self._left -= 1
            line = self._known(frame) if self._left else NOT_KNOWN
            self._on = alone("the lines that run", self._mark, frame.f_code, line, default=False)
            self._on &= self._left > 0
        return frame.f_trace

    def _known(self, frame: FrameType) -> int:
        code = frame.f_code
        if code in self._codes:
            return frame.f_lineno
        self._left_of[code] -= 1
        if self._left_of[code] > 0:
            return frame.f_lineno
        self._left_of[code], frame.f_trace = 0, None
        return code.co_firstlineno

    def _mark(self, code: CodeType, line: int) -> bool:
        made = self._ranges.get((code, line))
        if made is None:
            made = self._ranges[code, line] = self._range(f"{LINE}({line}): {code.co_name}")
        made.__enter__()
        made.__exit__(None, None, None)
        return True
