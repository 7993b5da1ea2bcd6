"""One recording by torch.profiler."""

from __future__ import annotations

import os
import sys
from math import inf
from pathlib import Path
from typing import Any

from .alone import alone, tried, uses_gpu
from .foreign import OLDER, close_older_ranges, turns
from .interruptions import Collections
from .lines import Lines
from .threads import wait_for_others

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
