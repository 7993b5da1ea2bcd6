"""What the planted cases share. A case is a training with one fault, and one switch that mends it:

    python -m sample_traces.<case>.make [--fixed] [--level weak|medium|strong] [--steps N]

It needs torch and nothing else, runs on the CPU with one thread, and gives the same numbers both ways.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

LEVELS = ("weak", "medium", "strong")
TIMES = "PLANTED_TIMES"
"""Environment variable: the file to write the step times to, in ns, for who measures."""

SEED = 0


@dataclass
class Run:
    """A run of a case."""

    fixed: bool
    level: str
    steps: int
    _times_ns: list[int] = field(default_factory=list)
    _last_ns: int = 0

    def stepped(self) -> bool:
        """A step has ended; whether that was the last."""
        now = time.perf_counter_ns()
        self._times_ns.append(now - self._last_ns)
        self._last_ns = now
        if len(self._times_ns) < self.steps:
            return False
        if TIMES in os.environ:
            Path(os.environ[TIMES]).write_text(json.dumps(self._times_ns), encoding="utf-8")
        return True


def start(threads: int = 1) -> Run:
    """Read the command line, and make the run repeatable: one seed, so many threads for ops."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true", help="without the fault")
    parser.add_argument("--level", choices=LEVELS, default="strong", help="how much the fault costs")
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(threads)
    run = Run(given.fixed, given.level, given.steps)
    run._last_ns = time.perf_counter_ns()
    return run


def spans(trace: Path) -> list[dict[str, Any]]:
    """The spans of a recorded trace, for `verify`."""
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def pauses_us(trace: Path) -> list[float]:
    """Stretches between two ops in which none goes on, for `verify`."""
    ops = sorted((span["ts"], span["ts"] + span["dur"]) for span in spans(trace) if span.get("cat") == "cpu_op")
    found, reach = [], math.inf
    for start, end in ops:
        if start > reach:
            found.append(start - reach)
        reach = end if math.isinf(reach) else max(reach, end)
    return found


def expect(holds: bool, otherwise: str) -> None:
    """Raise AssertionError with a sentence unless it holds."""
    if not holds:
        raise AssertionError(otherwise)
