"""What planted cases and controls share. A case is a training with one fault, and one switch that mends it:

    python -m sample_traces.planted.<family>.<case>.make [--fixed] [--level LEVEL] [--steps N] [--device cpu|cuda]

It needs torch and nothing else, computes with one CPU thread unless threads are what it is about, and gives the same
numbers both ways. Cases of several processes are started by torchrun. A mixed case has several faults, with names:
`--fixed loader logs`.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import math
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LEVELS = ("weak", "medium", "strong")
TIMES = "PLANTED_TIMES"  # Environment variable: the file to write the step times to, in ns, for who measures.

SEED = 0


@dataclass
class Run:
    """A run of a case."""

    level: str
    steps: int
    device: torch.device
    only: frozenset[str] | None  # Names of the faults that are fixed; empty: all; None: none.
    rank: int = 0
    ranks: int = 1
    _times_ns: list[int] = field(default_factory=list)
    _cpu_ns: list[int] = field(default_factory=list)
    _last_ns: int = 0
    _last_cpu_ns: int = 0

    @property
    def fixed(self) -> bool:
        """Whether the fault is fixed."""
        return self.only is not None

    def fixes(self, fault: str) -> bool:
        """Whether this fault of several is fixed."""
        return self.only is not None and (not self.only or fault in self.only)

    def begin(self) -> None:
        """The first step begins now."""
        self._last_ns, self._last_cpu_ns = time.perf_counter_ns(), time.process_time_ns()

    def stepped(self) -> bool:
        """A step has ended; whether that was the last.

        A device is waited for in the middle and at the end: what the second half took is true, each step of it is not.
        """
        taken = len(self._times_ns) + 1
        if self.device.type == "cuda" and taken in (self.steps // 2, self.steps):
            torch.cuda.synchronize()
        now, cpu = time.perf_counter_ns(), time.process_time_ns()
        self._times_ns.append(now - self._last_ns)
        self._cpu_ns.append(cpu - self._last_cpu_ns)
        self._last_ns, self._last_cpu_ns = now, cpu
        if taken < self.steps:
            return False
        self._end()
        return True

    def __iter__(self) -> Iterator[int]:
        """Numbers of the steps, from 0: a loop over a run makes one step each time, and ends with the last."""
        for number in count():
            yield number
            if self.stepped():
                return

    def _end(self) -> None:
        if TIMES in os.environ and self.rank == 0:
            told = {"times_ns": self._times_ns, "cpu_ns": self._cpu_ns, "clock_mhz": _clock_mhz(self.device)}
            Path(os.environ[TIMES]).write_text(json.dumps(told), encoding="utf-8")
        if self.ranks > 1:
            dist.barrier()
            # gloo's threads may still hold the last tensor; they abort if the interpreter ends first (torch 2.13)
            time.sleep(0.2)
            dist.destroy_process_group()


def start(threads: int = 1, *, keeps_memory: bool = True) -> Run:
    """Read the command line, and make the run repeatable: one seed, so many CPU threads for ops, memory that is kept.

    Where torchrun started several processes, they are joined into a process group.
    """
    if keeps_memory:
        keep_memory()
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", nargs="*", metavar="FAULT", help="without the fault, or without those named")
    parser.add_argument("--level", choices=LEVELS, default="strong", help="how much the fault costs")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    only = None if given.fixed is None else frozenset(given.fixed)
    return joined(given.level, given.steps, given.device, only, threads)


def joined(level: str, steps: int, device_type: str, only: frozenset[str] | None, threads: int = 1) -> Run:
    """A run, in a process group if torchrun started several processes."""
    torch.manual_seed(SEED)
    torch.set_num_threads(threads)
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda", rank) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    run = Run(level, steps, device, only, rank, ranks)
    run.begin()
    return run


def _clock_mhz(device: torch.device) -> int | None:
    """Of the device's multiprocessors, right after the last step."""
    if device.type != "cuda":
        return None
    command = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", f"--id={device.index}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return int(found) if found.isdigit() else None


def spans(trace: Path) -> list[dict[str, Any]]:
    """The spans of a recorded trace, for `verify`; ranges once, as they were on the host."""
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and event.get("cat") != "gpu_user_annotation"]


def named(trace: Path, name: str) -> list[dict[str, Any]]:
    """The spans whose name holds this, for `verify`."""
    return [span for span in spans(trace) if name in span["name"]]


def steps(trace: Path) -> list[dict[str, Any]]:
    """The spans of the recorded steps, for `verify`."""
    return [
        span
        for span in spans(trace)
        if span.get("cat") == "user_annotation" and span["name"].startswith("ProfilerStep#")
    ]


def within(some: list[dict[str, Any]], other: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Those that begin while the other goes on, for `verify`."""
    return (span for span in some if other["ts"] <= span["ts"] < other["ts"] + other["dur"])


def pauses_us(trace: Path) -> list[float]:
    """Stretches between two ops in which none goes on, for `verify`."""
    ops = sorted((span["ts"], span["ts"] + span["dur"]) for span in spans(trace) if span.get("cat") == "cpu_op")
    found, reach = [], math.inf
    for start, end in ops:
        if start > reach:
            found.append(start - reach)
        reach = end if math.isinf(reach) else max(reach, end)
    return found


def loader(trace: Path) -> dict[str, Any]:
    """What the manifest beside a trace says of the first loader, for `verify`."""
    manifest = json.loads(trace.with_name("manifest.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = manifest["ranks"][0]["loaders"][0]
    return found


def keep_memory() -> None:
    """Have glibc keep what is freed, as far as it can: tensors of up to 32 MB.

    It gives them back else, and fetches them anew page by page: a fault of its own, of which most trainings have some.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD
        library.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


def expect(holds: bool, otherwise: str) -> None:
    """Raise AssertionError with a sentence unless it holds."""
    if not holds:
        raise AssertionError(otherwise)
