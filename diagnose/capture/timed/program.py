"""The process that times ops: what to time as JSON on standard input, a line of JSON for each that is done.

So what was measured is there whenever it is ended. It runs no code of the user's.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from msgspec import Struct

from diagnose.capture.timed import MARK
from diagnose.capture.timed.calls import Call, call_of, first_line
from diagnose.capture.timed.tensors import CannotTime

LONG_NS, FEWEST, MOST = 60_000_000, 5, 200  # How long both are called, and how often at least and at most (chosen).
STEADY, LONGER = 0.1, 4  # Where the quickest runs differ by more, they run up to so many times as long (chosen).
WARM_NS = 20_000_000
FLUSHED_BYTES = 256 << 20  # Written before each repetition on a GPU: more than any L2 cache holds.


def main() -> None:
    """Time what standard input asks for, in its order."""
    asked = json.load(sys.stdin)
    _harmless(float(asked["seconds"]))
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    if asked["threads"]:
        torch.set_num_threads(asked["threads"])
    device = torch.device(asked["device"])
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    say({"device": torch.cuda.get_device_name() if on_gpu else "", "torch": torch.__version__})
    if device.type == "cuda" and not on_gpu:
        return
    for index, one in enumerate(asked["ops"]):
        for change in one["changes"]:
            try:
                said = compared(device, one, change, Flags(**asked["flags"]))
            except CannotTime as error:
                said = {"why": str(error)}
            except Exception as error:
                said = {"why": f"{type(error).__name__}: {first_line(error)}"}
            say({"index": index, "change": change, **said})


def _harmless(seconds: float) -> None:
    """The system ends this process when its time is over, and before others where memory runs out."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def say(line: dict[str, object]) -> None:
    """A line of JSON, at once."""
    print(MARK + json.dumps(line), flush=True)


class Flags(Struct, frozen=True):
    """What libraries of a GPU may do."""

    matmul_tf32: bool
    cudnn_tf32: bool
    benchmark: bool
    deterministic: bool

    def after(self, words: list[str]) -> Flags:
        """As a change leaves them."""
        tf32, benchmark = "tf32" in words, self.benchmark or "searched" in words
        return Flags(self.matmul_tf32 or tf32, self.cudnn_tf32 or tf32, benchmark, self.deterministic)

    def set(self) -> None:
        """Let them hold from now on."""
        torch.backends.cuda.matmul.allow_tf32 = self.matmul_tf32
        torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        torch.backends.cudnn.benchmark = self.benchmark
        torch.backends.cudnn.deterministic = self.deterministic


def compared(device: torch.device, one: dict[str, str], change: str, flags: Flags) -> dict[str, object]:
    """What an op takes at least, as it is and after a change: whatever else a machine does makes it longer.

    Both are called in turn, so that clocks and neighbours are the same. Raises CannotTime.
    """
    words, before, after = change.split("+"), list[float](), list[float]()
    sides = []
    for changed, holds, times in ((list[str](), flags, before), (words, flags.after(words), after)):
        holds.set()
        sides.append((holds, times, timer(device, call_of(device, one, changed))))
    begin = time.perf_counter_ns()
    while not _enough(before, after, time.perf_counter_ns() - begin):
        for holds, times, clock in sides:
            holds.set()
            times.append(clock())
    spread = max(_spread(before), _spread(after))
    return {"before_ns": min(before), "after_ns": min(after), "spread": spread, "runs": len(after)}


def _enough(before: list[float], after: list[float], spent_ns: int) -> bool:
    if len(after) < FEWEST or (len(after) < MOST and spent_ns < LONG_NS):
        return False
    return spent_ns >= LONGER * LONG_NS or max(_spread(before), _spread(after)) <= STEADY


def _spread(took: list[float]) -> float:
    """By which share the quickest quarter of the runs differ."""
    return (sorted(took)[len(took) // 4] - min(took)) / max(min(took), 1.0)


def timer(device: torch.device, call: Call) -> Callable[[], float]:
    """Takes the time of a call in ns, by events on a GPU, by the clock on the CPU; the call is warm."""
    cache = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=device) if device.type == "cuda" else None
    flushes = 1

    def once() -> float:
        if cache is None:
            began = time.perf_counter_ns()
            call()
            return float(time.perf_counter_ns() - began)
        for _ in range(flushes):
            cache.zero_()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last) * 1e6)

    begin, called = time.perf_counter_ns(), 0
    while not called or time.perf_counter_ns() - begin < WARM_NS:
        call()
        called += 1
    if cache is not None:
        # The GPU is kept at flushing until the host has launched the whole call: what counts is its work alone.
        host_ns = (time.perf_counter_ns() - begin) / called
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        cache.zero_()
        torch.cuda.synchronize()
        flushes = min(int(2 * host_ns / (time.perf_counter_ns() - began)) + 1, MOST)
    return once
