"""One recording by torch.profiler, the memory that it takes, and what one event costs.

In the process that is recorded, as machines differ by several times, and one machine from minute to minute.

The profiler's records come to lie in memory that ops let go, and part it: what the next op asks for fits no more, and
is taken anew from the system. In a net that filled 64 tensors of 1.3 MB a step each recorded step fetched 80 MB so,
and took 46 ms where it took 14 without the profiler; with that memory fetched before, 26 (torch 2.13, glibc 2.36).
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from math import ceil, inf
from pathlib import Path
from statistics import quantiles
from typing import Any

from .alone import alone, failed, tried, uses_gpu
from .foreign import OLDER, close_older_ranges, turns
from .interruptions import Collections
from .lines import Lines
from .threads import wait_for_others

TIMES = 100  # Ops of a block: far fewer launches than those after which the host waits for a device (our choice).
BLOCKS = 20  # Within the recording, and as many without it (our choice).


def event_cost() -> dict[str, float | None] | None:
    """As `EventCost` in the manifest, in some 50 ms; None if it cannot be measured.

    It draws no random numbers, adds nothing to autograd's graph and keeps no memory. What is open already ends after
    its recording, as what is opened within ends within: so it need not be a step apart from others (foreign.py).
    """
    if not turns.take():
        return None
    try:
        found: dict[str, float | None] | None = alone("what recording an event costs", _measured)
        return found
    finally:
        turns.leave()


def _measured() -> dict[str, float | None]:
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
    without = [_undisturbed(first + last) for first, last in zip(before, after, strict=True)]
    op_ns, *both_ns = [(_undisturbed(times) - less) / TIMES for times, less in zip(within, without, strict=True)]
    return {"op_ns": _if_more(op_ns), "call_ns": _if_more(both_ns[0] - op_ns) if both_ns else None}


def _undisturbed(times_ns: list[int]) -> float:
    """The lower quartile: on a busy machine medians came out below zero in 6 of 50 tries, these in none of 30."""
    return quantiles(times_ns)[0]


def _if_more(ns: float) -> float | None:
    """None: the machine got slower or faster meanwhile by more than an event costs."""
    return ns if ns > 0 else None


def _times_ns(op: Callable[[], object], blocks: int) -> list[int]:
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
MOST_SHARE = 0.25  # What is fetched at least and at most, and of what is free (our choice).

SPARE = 2
"""Times what steps took is fetched: records part memory otherwise in each recording. With once as much, repeated up to
twice, 3 of 24 of such recordings still took 11 to 21 MB a step, with this none of 20."""

USUAL_SHARE = 0.1  # Of what a recorded step fetches, what one without the profiler may fetch as well (our choice).
BLOCK_BYTES = 24 << 20  # Less than what glibc takes from the system apart from the rest, and gives back at once.

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD = 32 << 20  # As in glibc's malloc.h; larger ones it does not take.


def fetched_bytes() -> int:
    """Of memory that this process has touched for the first time so far; 0 where that is not told."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize()


def make_room(recorded: int, usual: int, steps: int) -> int:
    """Fetch more than so many steps will, which take `recorded` bytes each and `usual` ones without the profiler.

    Returns how much that was, 0 if it is not worth it. From then on glibc gives nothing back to the system: so nothing
    is done where steps fetch memory anyway, as they would stop to. Nor with another library than glibc, or with a GPU,
    where tensors lie elsewhere.
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
    """Of the machine, or what the control group of the process leaves. `root` is the folder that holds sys."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for most, now in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit, used = ((root / "sys/fs/cgroup" / name).read_text(encoding="ascii").strip() for name in (most, now))
            free = min(free, int(limit) - int(used))
        except (OSError, ValueError):
            continue
    return max(free, 0)


MARKS = "the steps' places in recordings"  # What fails alone if ranges of steps do.


class Recording:
    """From `begin` to `end`; steps in between are marked `ProfilerStep#n`, as torch.profiler itself would."""

    def __init__(
        self,
        *,
        detailed: bool,
        memory: bool = False,
        all_threads: bool = False,
        host_only: bool = False,
        ops: bool = True,
    ) -> None:
        """`detailed`: with call stacks and shapes, which take time; else nothing that does.

        `host_only`: nothing of the device, which only one recorder at a time can ask. Without `ops`: nothing else; the
        profiler has no ranges then, not even of steps.
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
        self._traced_by: Any = None
        self.marks_collections = False  # Whether collections of garbage are ranges of it.

    def begin(self, number: int | None) -> None:
        """Start to record, and mark the step of that number; None marks none. Raises what the profiler raises.

        It must be our turn.
        """
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
        """Stop, and write the trace as gzip if it has a target, in `work` before it is whole."""
        self._stop()
        if target is not None:
            written = self._written(work)
            try:
                _compress(written, target)
            finally:
                written.unlink(missing_ok=True)

    def end_and_measure(self, folder: Path) -> int:
        """Stop. Returns the size of the trace in bytes, which is not kept."""
        self._stop()
        written = self._written(folder)
        try:
            return written.stat().st_size
        finally:
            written.unlink(missing_ok=True)

    def _stop(self) -> None:
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

    def _written(self, folder: Path) -> Path:
        written = folder / f"{os.getpid()}.json"
        self._profile.export_chrome_trace(str(written))
        return written

    def _open(self, number: int | None) -> None:
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
        try:
            config(**{name: value})
        except TypeError:
            continue
        known[name] = value
    return config(**known)
