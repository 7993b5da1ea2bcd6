"""Recordings by torch.profiler or Nsight Systems, the memory that they need, and the cost of recording an event.

The cost is measured in the recorded process: it differs by several times between machines, and from minute to minute.

The profiler puts its records into memory that ops have freed, and fragments it: the next op's request no longer fits,
and takes new memory from the system. In a net that filled 64 tensors of 1.3 MB a step each recorded step so fetched
80 MB, and took 46 ms instead of 14 without the profiler; with that memory fetched before, 26 (torch 2.13, glibc 2.36).
"""

import ctypes
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from pathlib import Path
from statistics import quantiles
from typing import Any

from .about import control_groups
from .alone import alone, failed, text_of, tried, uses_gpu
from .board import Board
from .clocks import Clock
from .foreign import OLDER, close_older_ranges, turns
from .interruptions import MARKS, Collections, phases
from .lines import Lines
from .nsys import NsysRecording
from .place import Place
from .plan import ENDINGS, FILES, OF_TIMES, Part, Plan
from .threads import wait_for_others

TIMES = 100  # Ops of a block: far fewer launches than those after which the host waits for a device (chosen).
BLOCKS = 20  # Within the recording, and as many without it (chosen).


def event_cost() -> dict[str, float | None] | None:
    """The fields of `EventCost` in the manifest, in some 50 ms; None if it cannot be measured.

    It draws no random numbers, adds nothing to autograd's graph and keeps no memory. No range begins in its recording
    and ends outside, or the other way round: so it need not be a step apart from others (foreign.py).
    """
    if not turns.take():
        return None
    try:
        found: dict[str, float | None] | None = alone("what recording an event costs", _measured)
        return found
    finally:
        turns.leave()


def _measured() -> dict[str, float | None]:
    """What profiling adds to an op, and to a CUDA call, in ns; None where noise exceeds it. No GPU: no call."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    ops: list[Callable[[], object]] = [partial(torch.empty(0, device="cpu").view, 0)]  # One event each.
    activities = [ProfilerActivity.CPU]
    if uses_gpu():
        ops.append(torch.zeros(1, device="cuda").neg_)  # And a launch.
        activities.append(ProfilerActivity.CUDA)
    before = [_times_ns(op, BLOCKS // 2) for op in ops]
    with profile(activities=activities):
        within = [_times_ns(op, BLOCKS) for op in ops]
    after = [_times_ns(op, BLOCKS // 2) for op in ops]
    # Lower quartiles: on a busy machine medians came out below zero in 6 of 50 tries, these in none of 30.
    without = [quantiles(first + last)[0] for first, last in zip(before, after, strict=True)]
    op_ns, *both_ns = [(quantiles(times)[0] - less) / TIMES for times, less in zip(within, without, strict=True)]
    cost = {"op_ns": op_ns, "call_ns": both_ns[0] - op_ns if both_ns else 0.0}
    # None: the machine got slower or faster meanwhile by more than an event costs.
    return {name: ns if ns > 0 else None for name, ns in cost.items()}


def _times_ns(op: Callable[[], object], blocks: int) -> list[int]:
    """For each block the ns of TIMES calls of the op. Raises RuntimeError if a launch may have met a full queue."""
    import torch

    found = []
    for _ in range(blocks):
        if uses_gpu() and alone("waiting for the device", torch.cuda.synchronize, default=failed) is failed:
            raise RuntimeError("a launch may have waited for a place in the queue")
        begun_ns = time.perf_counter_ns()
        for _ in range(TIMES):
            op()
        found.append(time.perf_counter_ns() - begun_ns)
    return found


LEAST_BYTES = 16_000_000
MOST_BYTES = 1_000_000_000
MOST_SHARE = 0.25  # Memory fetched at least and at most, and at most of what is free (chosen).

# So many times what steps took is fetched: each recording fragments memory differently. With once as much, repeated up
# to twice, 3 of 24 of such recordings still took 11 to 21 MB a step, with this none of 20.
SPARE = 2
USUAL_SHARE = 0.1  # Of what a recorded step fetches, what one without the profiler may fetch as well (chosen).
BLOCK_BYTES = 24 << 20  # Less than what glibc takes from the system apart from the rest, and gives back at once.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD = 32 << 20  # As in glibc's malloc.h; larger ones it does not take.


def make_room(recorded: int, usual: int, steps: int) -> int:
    """Have glibc hold as much memory as recording these steps will take, so that no step fetches it page by page.

    A step takes `recorded` bytes with the profiler and `usual` ones without. Blocks are touched and freed again, and
    glibc is told to give nothing back. Returns their bytes; 0 if nothing was done: for little memory, where steps fetch
    memory without the profiler too (they would stop, and other steps be measured), without glibc, and with a GPU.
    """
    size = (recorded - usual) * steps
    if size < LEAST_BYTES or usual > USUAL_SHARE * recorded or uses_gpu():
        return 0
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "gnu_get_libc_version"):
        return 0
    count = min(ceil(SPARE * size / BLOCK_BYTES), int(min(MOST_BYTES, MOST_SHARE * free_bytes())) // BLOCK_BYTES)
    library.mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
    library.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    blocks = [block for _ in range(count) if (block := library.malloc(BLOCK_BYTES))]
    for block in blocks:
        ctypes.memset(block, 0, BLOCK_BYTES)
    for block in blocks:
        library.free(block)
    return len(blocks) * BLOCK_BYTES


def free_bytes(root: Path = Path("/")) -> int:
    """Free bytes, with caches: of the machine, or of the process's control groups if less. `root` has proc and sys."""
    known = re.search(r"^MemAvailable:\s+(\d+)", text_of(root / "proc/meminfo"), re.MULTILINE)
    free = 1024 * int(known[1]) if known else 2 << 30  # Where the system does not say (chosen).
    for folder, is_first in control_groups(root, "memory"):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if is_first else ("memory.max", "memory.current")
        cached = re.search(r"^(?:total_)?inactive_file (\d+)", text_of(folder / "memory.stat"), re.MULTILINE)
        with suppress(ValueError):
            most, now = (int(text_of(folder / name)) for name in names)
            free = min(free, most - now + (int(cached[1]) if cached else 0))
    return max(free, 0)


class Recording:
    """From `begin` to `end`; steps in between are marked `ProfilerStep#n`, as torch.profiler itself would."""

    def __init__(
        self, detailed: bool, memory: bool = False, all_threads: bool = False, host_only: bool = False, ops: bool = True
    ) -> None:
        """`detailed`: with call stacks and shapes, which slow steps down. `all_threads`: not only of this thread.

        `host_only`: without the device, which only one recorder can have at a time. Without `ops`: the device alone;
        the trace has no ranges then, not even of steps.
        """
        from torch.profiler import ProfilerActivity, profile

        device = not host_only and uses_gpu()
        activities = [*([ProfilerActivity.CPU] if ops else []), *([ProfilerActivity.CUDA] if device else [])]
        options: dict[str, bool] = {"record_python_gc_info": True} if detailed else {"enable_cuda_sync_events": True}
        if all_threads:
            options["profile_all_threads"] = True
        self._profile = profile(
            activities=activities,
            record_shapes=detailed,
            with_stack=detailed,
            profile_memory=detailed and memory,
            experimental_config=alone("options of the profiler", _config, options),
        )
        self._detailed, self._ops = detailed, ops
        self._collections = Collections() if ops and not detailed else None
        self._lines = Lines() if detailed else None
        self._range: Any = None
        self._traced_by: Any = None  # The script's own function of `sys.setprofile`.
        self.marks_collections = False  # Whether collections of garbage are ranges of it.

    def begin(self, number: int | None) -> None:
        """Record from now on, after `turns.take`; mark the step of this number, if any. Raises what torch raises."""
        self._traced_by = sys.getprofile()
        alone(OLDER, close_older_ranges, most_s=inf)
        if self._detailed:
            wait_for_others()
        self._profile.start()
        turns.taken()
        self.mark(number)
        if self._collections is not None:
            self.marks_collections = self._collections.on()
        if self._lines is not None:
            self._lines.on()

    def mark(self, number: int | None) -> None:
        """A step has ended, and the one of this number begins."""
        tried(MARKS, self._close)
        alone(MARKS, self._open, number)

    def end(self, target: Path | None, work: Path) -> None:
        """Stop, and write the trace to the target as gzip, by way of files in `work`; None: drop it."""
        self._stop()
        if target is not None:
            with self._written(work) as written:
                _compress(written, target)

    def end_and_measure(self, folder: Path) -> int:
        """Stop, and drop the trace. Returns its size in bytes, uncompressed. `folder`: for a temporary file."""
        self._stop()
        with self._written(folder) as written:
            return written.stat().st_size

    def _stop(self) -> None:
        """Stop all tracing and end our turn, even if the profiler fails; put back the script's own profile function."""
        if self._collections is not None:
            self._collections.off()
        if self._lines is not None:
            self._lines.off()
        tried(MARKS, self._close)
        if self._detailed:
            wait_for_others()
        try:
            self._profile.stop()
        finally:
            turns.leave()
            if self._traced_by is not None:
                sys.setprofile(self._traced_by)  # Recording stacks takes its place.

    @contextmanager
    def _written(self, folder: Path) -> Iterator[Path]:
        """Yield the trace as a file in the folder, which is removed afterwards."""
        written = folder / f"{os.getpid()}.json"
        try:
            self._profile.export_chrome_trace(str(written))
            yield written
        finally:
            written.unlink(missing_ok=True)

    def _open(self, number: int | None) -> None:
        """Open the range that marks step `number` in the trace; not in a recording without ops."""
        import torch

        if number is not None and self._ops:
            opened = torch.profiler.record_function(f"ProfilerStep#{number}")
            opened.__enter__()
            self._range = opened  # Ctrl-C may come at any line: only what is open is ever closed.

    def _close(self) -> None:
        opened, self._range = self._range, None
        if opened is not None:
            opened.__exit__(None, None, None)


def _compress(source: Path, target: Path) -> None:
    """Write `source` as gzip to `target`, which is there whole or not at all."""
    import gzip
    import shutil

    packed = source.with_suffix(".gz")
    try:
        with source.open("rb") as read, gzip.open(packed, "wb", compresslevel=5) as write:
            shutil.copyfileobj(read, write, 1 << 20)
        packed.replace(target)
    finally:
        packed.unlink(missing_ok=True)


def _config(options: dict[str, bool]) -> Any:
    """The profiler's experimental options, as far as this version of torch has them."""
    from torch._C import _profiler

    config: Any = _profiler._ExperimentalConfig
    known = {}
    for name, value in options.items():
        with suppress(TypeError):
            config(**{name: value})
            known[name] = value
    return config(**known)


@dataclass(frozen=True)
class OpenRecording:
    """A recording that goes on, with the clock of its steps."""

    kind: str
    recording: Recording | NsysRecording
    clock: Clock


class Recordings:
    """The recordings of this process, made one after the other: no more than one is open."""

    def __init__(self, part: Part, plan: Plan, here: Place, found: dict[str, object]) -> None:
        """`found`: a dict to which `keep` adds each recording, by the fields of `RankManifest`."""
        self._part, self._plan, self._here, self._found = part, plan, here, found
        self.open: OpenRecording | None = None
        self.kept: dict[str, int] = {}  # Kind of a recording in the folder -> bytes fetched per step.

    def file(self, kind: str) -> Path:
        """The path of the recording of this kind, of this rank."""
        name = f"rank{self._here.rank}.{FILES[kind]}.{ENDINGS[self._plan.tracer_of(kind)]}"
        return self._part.recording / name

    def start(self, kind: str, number: int | None, all_threads: bool = False) -> Recording | NsysRecording:
        """A recording that has begun. Call `turns.take` before; if this raises, the turn has been given back."""
        try:
            recording = self._new_recording(kind, all_threads)
            recording.begin(number)
        except BaseException:
            turns.leave()
            raise
        return recording

    def _new_recording(self, kind: str, all_threads: bool) -> Recording | NsysRecording:
        """A recording of that kind that has not begun, by the tracer that the plan names for it."""
        ops = kind != "device_timing"
        if self._plan.tracer_of(kind) == "nsys":
            return NsysRecording(Board(self._part.work), self._here, kind, ops)
        host_only = self._plan.tracer == "nsys"  # It holds what traces the device until the process ends.
        detailed, memory = kind == "attribution", self._plan.memory
        return Recording(detailed=detailed, memory=memory, all_threads=all_threads, host_only=host_only, ops=ops)

    def begin(self, kind: str, number: int) -> OpenRecording:
        """Open a recording with a clock at the beginning of the step of this number; it becomes `open`."""
        recording = self.start(kind, number)
        self.open = OpenRecording(kind, recording, Clock(number, by_phase=kind in OF_TIMES))
        return self.open

    def keep(self, steps: int) -> None:
        """End the open recording and put it into the folder, unless one is there that took less memory as it went.
        `steps`: so many of its last steps are to be used; the ones before are called settling."""
        made, self.open = self.open, None
        phases.off()
        assert made is not None
        if made.clock.fetched_bytes > self.kept.get(made.kind, sys.maxsize):
            return made.recording.end(None, self._part.work)
        target, timed = self.file(made.kind), made.clock.timed()
        timed |= {"bounds_unix_ns": made.clock.bounds_unix_ns, "settling": made.clock.steps - steps}
        made.recording.end(target, self._part.work)
        self._found |= {made.kind: timed, FILES[made.kind]: target.name}
        if made.recording.marks_collections:
            self._found["marked"] = ["garbage_collection", "checkpoint", "text"]
        self.kept[made.kind] = made.clock.fetched_bytes

    def abandon(self) -> bool:
        """End the open recording, if there is one, and keep nothing of it."""
        made, self.open = self.open, None
        phases.off()
        if made is not None:
            made.recording.end(None, self._part.work)
        return made is not None
