"""The process's threads: which compute, and what the main thread runs now."""

import ast
import ctypes
import os
import re
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from .alone import text_of

_Call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_asked_for: list[Any] = []  # Kept, as Python calls them when it likes.


def soon(act: Callable[[], object]) -> None:
    """Have `act()` called by the main thread, a moment later; what it raises is lost.

    Only there may all objects be looked at: a tuple that a script is making, as of a generator, cannot be finished
    while another thread holds it too (SystemError).
    """

    def call(_: object) -> int:
        with suppress(Exception):
            act()
        return 0

    _asked_for.append(_Call(call))
    ctypes.pythonapi.Py_AddPendingCall(_asked_for[-1], None)


MOST_THREADS, LONGEST_NAME = 16, 80
LEAST_SHARE = 0.01  # Of a core: what computes less is not worth a line.
REST_S, LOOKS, BETWEEN_S = 0.25, 2, 0.001
"""How long to wait at most until other threads rest, and how many times in a row none may be found running (chosen):
one that has just finished something may wait for Python a moment."""

_TASKS = Path("/proc/self/task")


def wait_for_others(most_s: float = REST_S) -> None:
    """Wait until no other thread of the process runs, where /proc tells, or for as long as is allowed.

    When torch's tracer of Python's frames starts and stops it visits what Python keeps of each thread, and crashes the
    process if a thread of gloo's makes that or gives it up meanwhile, as it does when it lets go of a tensor (torch
    2.13, on two busy cores with gloo's threads at the lowest priority: 6 of 7 runs of 25 s that start and stop it all
    the time, and with this wait none of 7).
    """
    own, until, resting = threading.get_native_id(), time.monotonic() + most_s, 0
    while resting < LOOKS and time.monotonic() < until:
        time.sleep(BETWEEN_S)
        resting = 0 if _running(own) else resting + 1


def _running(own: int) -> bool:
    """Whether a thread other than this one runs, or waits for nothing but a core (proc(5): state R)."""
    return any(_fields(task.name)[:1] == ["R"] and int(task.name) != own for task in _TASKS.glob("[0-9]*"))


def _fields(thread: object) -> list[str]:
    """The fields of a thread's /proc stat (proc(5)) from its state, the third, on; empty if the thread is gone."""
    return text_of(_TASKS / str(thread) / "stat").rpartition(")")[2].split()


class CompetingThreads:
    """The CPU time, from now on, of all threads that Python knows but the one that trains. Only on Linux."""

    def __init__(self) -> None:
        """Call it on the thread that trains."""
        self._own = threading.get_native_id()
        self._begun_ns = time.perf_counter_ns()
        self._before = _cpu_s()

    def found(self) -> list[dict[str, object]] | None:
        """The value of `RankManifest.python_threads`, those that compute most first; None without /proc."""
        if self._before is None:
            return None
        spent, seconds = _cpu_s() or {}, (time.perf_counter_ns() - self._begun_ns) / 1e9
        shares = [
            (round((spent[thread] - self._before.get(thread, 0.0)) / max(seconds, 1e-9), 3), name)
            for thread, name in _names()
            if thread in spent and thread != self._own
        ]
        busy = sorted((one for one in shares if one[0] >= LEAST_SHARE), reverse=True)[:MOST_THREADS]
        return [{"name": name[:LONGEST_NAME], "cpu_share": share} for share, name in busy]


def _names() -> list[tuple[int, str]]:
    return [(one.native_id, one.name) for one in threading.enumerate() if one.native_id is not None]


def _cpu_s() -> dict[int, float] | None:
    """CPU seconds of each thread of Python so far (proc(5): utime and stime, in ticks); None without /proc."""
    found, tick = dict[int, float](), os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    for thread, _ in _names():
        if spent := _fields(thread)[11:13]:
            found[thread] = sum(map(int, spent)) / tick
    return found or None


_PATHS = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
LIBRARIES = tuple({str(Path(path).resolve()) for path in _PATHS})
CALLS_OF_MODULES = "/torch/nn/modules/module.py"
LOOP_LOOKS = 9  # Moments that are looked at, of which some are in other loops (chosen).
BETWEEN_LOOKS_S = 0.05
_HERE = Path(__file__).resolve().parent
OWN = (str(_HERE), *(str(_HERE.parents[1] / ours) for ours in ("fixes", "statistics.py")))
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")  # Of any environment: one may use the libraries of another.


def is_library(file: str) -> bool:
    """Whether a file, given by its whole path, is installed, Python's, or ours, rather than the user's own."""
    return file.startswith((*LIBRARIES, *OWN)) or _INSTALLED.search(file) is not None


OWNERS = {  # Modules that run or wrap a training's loop -> `fixes.setting.Loop`. Earlier ones may stand on later ones.
    "transformers.trainer": "transformers",
    "lightning.pytorch": "lightning",
    "pytorch_lightning": "lightning",
    "deepspeed.runtime": "deepspeed",
    "lightning.fabric": "fabric",
    "lightning_fabric": "fabric",
    "accelerate.data_loader": "accelerate",
    "accelerate.optimizer": "accelerate",
}


def owner() -> str:
    """What runs the training loop that this thread is in: a value of OWNERS, or "own" for the script itself."""
    modules = {str(frame.f_globals.get("__name__", "")) for frame in frames(sys._getframe(1))}
    met = (known for known in OWNERS if any(f"{name}.".startswith(f"{known}.") for name in modules))
    return OWNERS.get(next(met, ""), "own")


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, its caller, and so on: innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def line_of(frame: FrameType) -> int:
    """The line that runs; where Python (from 3.11 on) knows none, the first line of its function."""
    return frame.f_lineno or frame.f_code.co_firstlineno


class Loop(NamedTuple):
    """A loop in a file of the user's."""

    file: str
    line: int
    head: str  # Its first line as it stands, as in `for batch in batches:`.


def training_loop() -> Loop | None:
    """The loop in the user's own files in which the main thread is most often, of LOOP_LOOKS looks; None if in none.

    Of nested loops it is the innermost one that calls the model, as the model may have loops of its own.
    """
    seen = Counter[Loop | None]()
    for _ in range(LOOP_LOOKS):
        seen[_current_loop()] += 1
        time.sleep(BETWEEN_LOOKS_S)
    del seen[None]
    return seen.most_common(1)[0][0] if seen else None


def _current_loop() -> Loop | None:
    """The innermost loop of the user's that now calls the model (or runs, where no module is called); None if none."""
    found: Loop | None = None
    for frame in frames(sys._current_frames().get(threading.main_thread().ident or 0)):
        if frame.f_code.co_filename.endswith(CALLS_OF_MODULES):
            found = None
        found = found or _around(frame)
    return found


def _around(frame: FrameType) -> Loop | None:
    """The innermost loop of the frame's function around the line that runs; None in a library or without source."""
    path = Path(frame.f_code.co_filename)
    if not path.is_file() or is_library(str(path.resolve())):
        return None
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return None
    loops = [loop for loop in _of(frame, tree) if loop.lineno <= line_of(frame) <= (loop.end_lineno or 0)]
    if not loops:
        return None
    line = max(loop.lineno for loop in loops)
    return Loop(str(path), line, source.splitlines()[line - 1].strip())


def _of(frame: FrameType, tree: ast.Module) -> list[ast.For | ast.AsyncFor | ast.While]:
    """The loops of the frame's own function, without those of functions inside it."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    first, found = frame.f_code.co_firstlineno, list[ast.For | ast.AsyncFor | ast.While]()
    begins = {
        min([one.lineno, *(each.lineno for each in getattr(one, "decorator_list", []))]): one
        for one in ast.walk(tree)
        if isinstance(one, functions)
    }
    whole = frame.f_code.co_name == "<module>"
    pending: list[ast.AST] = [tree] if whole else [begins[first]] if first in begins else []
    while pending:
        one = pending.pop()
        if isinstance(one, (ast.For, ast.AsyncFor, ast.While)):
            found.append(one)
        pending += [each for each in ast.iter_child_nodes(one) if not isinstance(each, functions)]
    return found
