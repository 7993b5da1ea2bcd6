"""Where a process spends its time while it makes a batch: lines of the script, and what they call, by samples.

A thread of its own looks. Of what one look finds, all time since the look before counts: a call that keeps Python's
lock delays the look, and is where it is found.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import NamedTuple

from .loops import line_of
from .made import is_users

EVERY_S, SWITCH_S = 0.001, 0.0001
"""Time from one look to the next, and how long another thread may keep Python's lock when one is due (our choices)."""

MOST_LINES = 48  # That are kept of a loader, those with most time (our choice).

_AROUND = frozenset(
    ("fetch", "__getitem__", "__getitems__", "__call__", "_call_impl", "_wrapped_call_impl", "forward", "collate")
)
"""Names of library functions that only call what does the work."""


class Line(NamedTuple):
    """A place in the script, and the library function that it calls there."""

    file: str  # Empty, and line 0: no code of the user's was running.
    line: int
    function: str
    calls: str  # As "numpy.load"; empty: the line's own work, or built-in functions.


class Sampler:
    """Looks where this thread is, from `with` to the end of it."""

    def __init__(self, below: str) -> None:
        """`below`: the file of the function that calls the loader's; frames around it do not count."""
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
        before_ns = time.perf_counter_ns()
        while not self._over.wait(EVERY_S):
            place, now_ns = self._place(sys._current_frames().get(self._thread)), time.perf_counter_ns()
            if place is not None:
                self.found[place] += now_ns - before_ns
            before_ns = now_ns

    def _place(self, frame: FrameType | None) -> Line | None:
        """The innermost line of the user's; None outside of the fetch."""
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
    """Of a library's function, as users call it where the package itself has it by that name."""
    module, name = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
    top = module.partition(".")[0]
    if name.startswith("<"):
        return module
    if name in vars(sys.modules.get(top, sys)):
        return f"{top}.{name}"
    return ".".join((*(part for part in module.split(".") if not part.startswith("_")), name))


def told(found: Counter[Line], total_ns: int) -> list[dict[str, object]]:
    """By the names of `SampledLine` in the manifest, those with most time first."""
    return [{**line._asdict(), "share": ns / total_ns} for line, ns in found.most_common(MOST_LINES)]
