"""The process's other threads: how much do Python's compute while the training runs, and when does none run at all?"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

MOST_THREADS, LONGEST_NAME = 16, 80
LEAST_SHARE = 0.01  # Of a core: what computes less is not worth a line.

REST_S, LOOKS, BETWEEN_S = 0.25, 2, 0.001
"""How long to wait at most until other threads rest, and how many times in a row none may be found running (our
choice): one that has just finished something may wait for Python a moment."""

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
    for task in _TASKS.glob("[0-9]*"):
        try:
            state = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if state == "R" and int(task.name) != own:
            return True
    return False


class CompetingThreads:
    """CPU time of all threads of Python but the one that trains, from now on. Only Linux tells."""

    def __init__(self) -> None:
        """Call it on the thread that trains."""
        self._own = threading.get_native_id()
        self._begun_ns = time.perf_counter_ns()
        self._before = _cpu_s()

    def found(self) -> list[dict[str, object]] | None:
        """As in `RankManifest.python_threads`, those that compute most first; None if it cannot be known."""
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
        try:
            fields = (_TASKS / str(thread) / "stat").read_text(encoding="utf-8", errors="replace")
            spent = fields.rpartition(")")[2].split()[11:13]
            found[thread] = (int(spent[0]) + int(spent[1])) / tick
        except (OSError, ValueError, IndexError):
            continue
    return found or None
