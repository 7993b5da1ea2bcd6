"""What was measured of DataLoaders, in the process that trains and in its workers."""

import json
import os
import struct
import threading
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .alone import parent_process
from .batches import Batches, dataset_length, start_method
from .lines import Line

MOST_KEPT = 1_000  # Batches of a loader that are kept, the latest ones (chosen).
SAMPLING = "sampling"  # File that tells workers to sample where they spend their time: no step is timed any more.
MOST_LINES = 48  # That are kept of a loader, those with most time (chosen).
MOST_SAMPLED = 4  # Batches that each process samples (chosen).
FIRST_SAMPLED = 4  # In the process that trains, before which what is read for the first time is slower (chosen).
MOST_FILES = 128  # Workers of one training process that measure: a script may start new ones for each epoch (chosen).


class Fetch(NamedTuple):
    """What making one batch took."""

    fetch_ns: int
    collate_ns: int
    cpu_ns: int  # Of all threads of the process.
    made_ns: int = 0  # When it was made, by the clock that all processes share (`time.perf_counter_ns`).
    number: int = -1  # Of the batch in its iterator, in a worker; -1 if unknown.
    queued_ns: int = -1  # For how long its thread waited for a core; -1 if unknown.
    sampled: int = 0  # 1: its time is not what it would have been.
    sent_ns: int = -1  # CPU time of the worker since its batch before: what sending that took; -1 if unknown.


_RECORD = struct.Struct(f"<{len(Fetch._fields)}q")


class Request(NamedTuple):
    """A batch of workers, asked for by the training in a step that is timed."""

    number: int  # Of the batch in its iterator.
    asked_ns: int  # By `time.perf_counter_ns`, like the next.
    got_ns: int  # Without the sampler's time after it.


class RunQueue:
    """For how long the thread that creates it has waited for a core, by Linux's schedstat (sched-stats.rst)."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def waited_ns(self) -> int:
        """In ns, so far; -1 if the system does not say, as where it counts no time at all."""
        if self._file is None:
            return -1
        try:
            ran, waited = os.pread(self._file, 64, 0).split()[:2]
            return int(waited) if int(ran) else -1
        except (OSError, ValueError):
            return -1


class Loader:
    """A DataLoader that this process iterates over."""

    def __init__(self, settings: dict[str, object]) -> None:
        """`settings`: fields of `Loader` in the manifest, as `batches.settings` returns them."""
        self.settings = settings
        self.asked = self._asked_timed = self._timed_from_ns = 0  # Batches got; timed ones; since when they are.
        self._waits_ns: deque[int] = deque(maxlen=MOST_KEPT)
        self._sampling_ns: deque[int] = deque(maxlen=MOST_KEPT)
        self._ready: deque[int] = deque(maxlen=MOST_KEPT)  # Batches that workers had ready, at each request.
        self._fetches: deque[Fetch] = deque(maxlen=MOST_KEPT)
        self._requests: deque[Request] = deque(maxlen=MOST_KEPT)
        self._workers: dict[int, None] = {}  # Their process ids, in order.
        self._sampled, self._lines = 0, Counter[Line]()
        self.batches = Batches()

    @property
    def line(self) -> tuple[object, object] | None:
        """File and line that made the DataLoader; None if that is not known."""
        place = self.settings.get("made")
        return (place["file"], place["line"]) if isinstance(place, dict) else None

    def ready(self, iterator: Any) -> int | None:
        """How many batches the iterator's workers have ready; None without workers."""
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

    @property
    def samples(self) -> bool:
        """Whether the next batch that this process makes is to be sampled, if nothing is timed."""
        return self.asked >= FIRST_SAMPLED and self._sampled < MOST_SAMPLED

    def sampled(self, found: Counter[Line]) -> None:
        """Where the time of a batch of this process went: ns by line."""
        self._sampled += 1
        self._lines += found

    def fetched(self, fetch: Fetch) -> None:
        """A batch was made in this process."""
        self._fetches.append(fetch)

    def waited(self, asked_ns: int, got_ns: int, index_ns: int, ready: int | None, iterator: Any, timed: bool) -> None:
        """The training got a batch from the iterator; `timed`: in a step that is timed without the profiler.
        `index_ns`: how long the sampler took of that, which workers' iterators ask once a batch is there."""
        if not self.asked:
            self.settings["dataset_length"] = dataset_length(iterator)
        self.asked += 1
        self._asked_timed += timed
        if timed and not self._timed_from_ns:
            self._timed_from_ns = asked_ns
            self._waits_ns.clear()
            self._sampling_ns.clear()
        self._waits_ns.append(got_ns - asked_ns)
        self._sampling_ns.append(index_ns)
        if ready is not None:
            self._ready.append(ready)
            workers = iterator._workers
            if workers and workers[0].pid not in self._workers and len(self._workers) < MOST_FILES:
                self._workers.update(dict.fromkeys(worker.pid for worker in workers))
                self.settings["start_method"] = start_method(workers[0])
            number = iterator._rcvd_idx - 1 if getattr(iterator, "_in_order", True) else -1
            if timed and number > 0:  # The first waits for workers that start.
                self._requests.append(Request(number, asked_ns, got_ns - index_ns))

    def found(self, work: Path) -> dict[str, object]:
        """All fields of `Loader` in the manifest; reads what the workers have left in `work`.
        Another thread may ask while batches are got."""
        workers = list(self._workers)
        made = [*self._fetches, *(fetch for pid in workers for fetch in _left(work, pid))]
        fetches = [fetch for fetch in made if not fetch.sampled]
        timed = [one for one in fetches if one.made_ns >= self._timed_from_ns] or fetches
        ready, (sampled, lines) = list(self._ready), _sampled(work, workers)
        lines += self._lines
        blocked_ns = sorted(max(one.fetch_ns - one.cpu_ns - one.queued_ns, 0) for one in timed if one.queued_ns >= 0)
        return {
            **self.settings,
            "blocked_ns": _mean_ns(blocked_ns),  # Of a busy machine nothing is known without its queue.
            "blocked_most_ns": blocked_ns[len(blocked_ns) * 9 // 10] if blocked_ns else None,
            "sending_ns": _mean_ns(one.sent_ns for one in timed if one.sent_ns >= 0),
            **_handed(list(self._requests), made),
            "sampled": sampled + self._sampled,
            "lines": [
                {**line._asdict(), "share": ns / max(lines.total(), 1)} for line, ns in lines.most_common(MOST_LINES)
            ],
            "batches": len(fetches),
            "fetch_ns": _mean_ns(one.fetch_ns for one in timed),
            "items_ns": _mean_ns(one.fetch_ns - one.collate_ns for one in timed),
            "collate_ns": _mean_ns(one.collate_ns for one in timed),
            "fetch_cpu_ns": _mean_ns(one.cpu_ns for one in timed),
            "fetch_queued_ns": _mean_ns(one.queued_ns for one in timed if one.queued_ns >= 0),
            "asked": self.asked,
            "asked_timed": self._asked_timed,
            "wait_ns": _mean_ns(self._waits_ns),
            "sampling_ns": _mean_ns(self._sampling_ns),
            "empty_share": sum(not one for one in ready) / len(ready) if ready else None,
            **({} if self._workers else self.batches.handing),
            **self.batches.found(),
        }


class WorkerFile:
    """A file of a worker process with what its latest MOST_KEPT batches took, in turn; the oldest is overwritten."""

    def __init__(self, work: Path) -> None:
        self._work, self._count, self._batches = work, 0, 0
        self._file: int | None = None
        self.ended_cpu_ns = -1  # CPU time of this process when its latest batch was made.
        self._lines: Counter[Line] = Counter()
        parent = parent_process()
        self._parent = None if parent is None else parent.pid
        with suppress(OSError):  # An unwritable folder; the batches are made all the same.
            if parent is not None and sum(1 for _ in work.glob(f"loader-{parent.pid}-*")) < MOST_FILES:
                self._file = os.open(_path(work, parent.pid, os.getpid()), os.O_WRONLY | os.O_CREAT, 0o666)

    @property
    def usable(self) -> bool:
        """Whether more can be written."""
        return self._file is not None

    @property
    def samples(self) -> bool:
        """Whether the next batch that this worker makes is to be sampled."""
        return self._batches < MOST_SAMPLED and (self._work / SAMPLING).exists()

    def fetched(self, fetch: Fetch) -> None:
        """A batch was made in this worker."""
        if self._file is None:
            return
        try:
            os.lseek(self._file, self._count % MOST_KEPT * _RECORD.size, os.SEEK_SET)
            full = os.write(self._file, _RECORD.pack(*fetch)) < _RECORD.size
        except OSError:
            full = True
        self._count += 1
        if full:
            os.close(self._file)
            self._file = None

    def sampled(self, found: Counter[Line]) -> None:
        """Where a batch's time went, ns by line: added to a file of this worker's."""
        self._batches += 1
        self._lines += found
        path = self._work / f"sampled-{self._parent}-{os.getpid()}"
        with suppress(OSError):
            path.with_suffix(".new").write_text(json.dumps([self._batches, list(self._lines.items())]))
            path.with_suffix(".new").replace(path)


def _path(work: Path, parent: int, worker: int) -> Path:
    return work / f"loader-{parent}-{worker}"


def _left(work: Path, worker: int) -> list[Fetch]:
    """What a worker of this process has left of its latest batches, in no order; empty if it has no file."""
    try:
        left = _path(work, os.getpid(), worker).read_bytes()
    except OSError:
        return []
    return [Fetch(*one) for one in _RECORD.iter_unpack(left[: len(left) // _RECORD.size * _RECORD.size])]


def _sampled(work: Path, workers: Iterable[int]) -> tuple[int, Counter[Line]]:
    """How many batches these workers have sampled, and their time in ns by line, summed."""
    count, lines = 0, Counter[Line]()
    for worker in workers:
        try:
            batches, found = json.loads((work / f"sampled-{os.getpid()}-{worker}").read_text())
        except (OSError, ValueError):
            continue
        count += batches
        lines.update({Line(*line): ns for line, ns in found})
    return count, lines


def _handed(requests: Iterable[Request], fetches: Iterable[Fetch]) -> dict[str, object]:
    """`handed_ns` and `handing_share` of `Loader`: each request got the latest batch of its number made before."""
    made: dict[int, list[int]] = {}
    for fetch in sorted(fetches, key=lambda one: one.made_ns):
        made.setdefault(fetch.number, []).append(fetch.made_ns)
    handed_ns, waited_ns, after_ns = list[int](), 0, 0
    for number, asked_ns, got_ns in requests:
        moments = made.get(number, ())
        if at := bisect_right(moments, got_ns):  # Numbers repeat in each epoch.
            made_ns = moments[at - 1]
            handed_ns.append(got_ns - max(made_ns, asked_ns))
            waited_ns += got_ns - asked_ns
            after_ns += got_ns - asked_ns if made_ns <= asked_ns else 0
    return {"handed_ns": _mean_ns(handed_ns), "handing_share": after_ns / waited_ns if waited_ns else None}


def _mean_ns(values: Iterable[int]) -> int | None:
    some = list(values)
    return round(sum(some) / len(some)) if some else None
