"""What was measured of DataLoaders, in the process that trains and in its workers."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .batches import Batches
from .loaders_settings import dataset_length, start_method

MOST_KEPT = 1_000
"""Batches of a loader that are kept, the latest ones (our choice)."""

MOST_LINES = 300
"""Batches that a worker measures (our choice)."""

MOST_FILES = 128
"""Workers of one training process that measure: a script may start new ones for each epoch (our choice)."""


class Fetch(NamedTuple):
    """What making one batch took."""

    fetch_ns: int
    collate_ns: int
    items: int
    """0 if unknown."""
    cpu_ns: int
    """Of all threads of the process."""


class Loader:
    """A DataLoader that this process iterates over."""

    def __init__(self, settings: dict[str, object]) -> None:
        """Settings by the names of `Loader` in the manifest."""
        self._settings = settings
        self._asked = self._asked_timed = 0
        self._waits_ns: deque[int] = deque(maxlen=MOST_KEPT)
        self._ready: deque[int] = deque(maxlen=MOST_KEPT)
        self._fetches: deque[Fetch] = deque(maxlen=MOST_KEPT)
        self._workers: dict[int, None] = {}
        self.batches = Batches()

    def ready(self, iterator: Any) -> int | None:
        """How many batches its workers have ready; None without workers."""
        if not iterator._num_workers:
            return None
        stored = sum(len(task) == 2 for task in iterator._task_info.values())
        try:
            queued = 0 if iterator._data_queue.empty() else max(iterator._data_queue.qsize(), 1)
        except NotImplementedError:  # macOS cannot tell how many.
            queued = 1
        except (OSError, ValueError):  # Closed, after the last batch.
            queued = 0
        return stored + queued

    def fetched(self, fetch: Fetch) -> None:
        """A batch was made in this process."""
        self._fetches.append(fetch)

    def waited(self, wait_ns: int, ready: int | None, iterator: Any, timed: bool) -> None:
        """The training got a batch from the iterator; `timed`: in a step that is timed without the profiler."""
        if not self._asked:
            self._settings["dataset_length"] = dataset_length(iterator)
        self._asked += 1
        self._asked_timed += timed
        self._waits_ns.append(wait_ns)
        if ready is not None:
            self._ready.append(ready)
            self._note_workers(iterator._workers)

    def _note_workers(self, workers: list[Any]) -> None:
        if workers and workers[0].pid not in self._workers and len(self._workers) < MOST_FILES:
            self._workers.update(dict.fromkeys(worker.pid for worker in workers))
            self._settings["start_method"] = start_method(workers[0])

    def found(self, work: Path) -> dict[str, object]:
        """Settings and medians by the names of `Loader` in the manifest; reads what the workers have left in `work`."""
        fetches = [*self._fetches, *(fetch for pid in self._workers for fetch in _left(work, pid))]
        ready = self._ready
        return {
            **self._settings,
            "batches": len(fetches),
            "fetch_ns": _median_ns(one.fetch_ns for one in fetches),
            "items_ns": _median_ns(one.fetch_ns - one.collate_ns for one in fetches),
            "collate_ns": _median_ns(one.collate_ns for one in fetches),
            "items_per_batch": _median(one.items for one in fetches if one.items),
            "fetch_cpu_ns": _median_ns(one.cpu_ns for one in fetches),
            "asked": self._asked,
            "asked_timed": self._asked_timed,
            "wait_ns": _median_ns(self._waits_ns),
            "ready": sum(ready) / len(ready) if ready else None,
            "empty_share": sum(not one for one in ready) / len(ready) if ready else None,
            **self.batches.found(),
        }


class WorkerFile:
    """Where a worker process leaves its measurements: one line for each of its first batches."""

    def __init__(self, work: Path) -> None:
        self._lines = 0
        self._file: int | None = None
        parent = _parent()
        try:
            if parent is not None and sum(1 for _ in work.glob(f"loader-{parent}-*")) < MOST_FILES:
                self._file = os.open(_path(work, parent, os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError:
            pass  # An unwritable folder; the batches are made all the same.

    @property
    def usable(self) -> bool:
        """Whether it takes more."""
        return self._file is not None

    def fetched(self, fetch: Fetch) -> None:
        """A batch was made in this worker."""
        if self._file is None:
            return
        self._lines += 1
        line = f"{' '.join(map(str, fetch))}\n".encode()
        try:
            full = os.write(self._file, line) < len(line) or self._lines >= MOST_LINES
        except OSError:
            full = True
        if full:
            os.close(self._file)
            self._file = None


def _path(work: Path, parent: int, worker: int) -> Path:
    return work / f"loader-{parent}-{worker}"


def _parent() -> int | None:
    """The process that started this one as a worker, also where a server forked it."""
    multiprocessing = sys.modules.get("multiprocessing")
    parent = multiprocessing.parent_process() if multiprocessing is not None else None
    return None if parent is None else parent.pid


def _left(work: Path, worker: int) -> list[Fetch]:
    """What a worker of this process has left so far."""
    try:
        lines = _path(work, os.getpid(), worker).read_text(encoding="ascii").split("\n")[:-1]  # The last may be cut.
        return [Fetch(*map(int, line.split())) for line in lines]
    except (OSError, ValueError, TypeError):
        return []


def _median(values: Iterable[int]) -> float | None:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2 if ordered else None


def _median_ns(values: Iterable[int]) -> int | None:
    median = _median(values)
    return None if median is None else round(median)
