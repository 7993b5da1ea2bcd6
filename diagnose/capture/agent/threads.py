"""How much do Python's other threads compute, while the training runs? Python runs one thread at a time."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

MOST_THREADS, LONGEST_NAME = 16, 80
LEAST_SHARE = 0.01
"""Of a core: what computes less is not worth a line."""

_TASKS = Path("/proc/self/task")


class Rivals:
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
