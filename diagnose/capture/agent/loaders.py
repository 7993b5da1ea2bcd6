"""The DataLoader X-ray: how long the training waits for batches, and what making them takes."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from .alone import failed, tried
from .batches import settings
from .interruptions import LOADER, STARTING, STOPPING, Marked, phases
from .lines import Sampler
from .loaders_measured import Fetch, Loader, RunQueue, WorkerFile
from .noticed import Noticed
from .script_files import when_imported
from .steps import Epochs

MOST_LOADERS = 32  # DataLoaders that are kept apart: a script may make one for each epoch (chosen).


Watch = TypeVar("Watch", bound="LoaderWatch")


def use(watch: Watch) -> Watch:
    """Watch the DataLoaders of this process, and of workers that it starts. Of several watches the last one works."""
    global _watch, _hooks
    if _watch is not None:
        watch.take_over(_watch)
    _watch = watch
    if not _hooks:
        _hooks = True
        when_imported("torch.utils.data.dataloader", _hook_iterators)
        when_imported("torch.utils.data._utils.fetch", _hook_fetchers)
    return watch


class LoaderWatch:
    """What the DataLoaders that this process iterates over do. Holds nothing of the script's alive."""

    def __init__(self, work: Path, on_batch: Callable[[], None]) -> None:
        """`work`: the folder for what workers measure. `on_batch()` is called when the training asks for a batch; of
        what it raises only what ends the process gets through.
        """
        self.measuring = True  # Whether to measure; if not, the hooks cost about a microsecond.
        self.starting_is_waiting = False  # Whether the beginning of an epoch counts as waiting for its first batch.
        self.looking = True  # Whether to look into batches, too: while nothing is timed.
        self.epochs = Epochs()
        self._work = work
        self._on_batch = on_batch
        self.trains_here = True  # This process is the one that trains: neither forked from it nor a worker.
        self._loaders: list[Loader] = []
        self._known: dict[int, tuple[weakref.ref[Any], Loader]] = {}  # By the identity of the DataLoader.
        self._iterating: weakref.WeakKeyDictionary[Any, Loader] = weakref.WeakKeyDictionary()
        self._file: WorkerFile | None = None

    def take_over(self, other: LoaderWatch) -> None:
        """Take over which loaders and iterators another watch knows, without what it has measured."""
        other.forget_gone()
        anew = {known: Loader(dict(known.settings)) for known in other._loaders}
        self._known = {one: (loader, anew[known]) for one, (loader, known) in other._known.items()}
        self._iterating = weakref.WeakKeyDictionary({one: anew[known] for one, known in other._iterating.items()})
        self._loaders = [*anew.values()]

    def forget_gone(self) -> None:
        """Forget loaders that are gone and have no iterator left, such as those made for earlier epochs."""
        self._known = {one: (loader, known) for one, (loader, known) in self._known.items() if loader() is not None}
        used = {*self._iterating.values(), *(known for _, known in self._known.values())}
        self._loaders = [known for known in self._loaders if known in used]

    def loaders(self) -> list[dict[str, object]]:
        """The DataLoaders that were asked for batches, each with the fields of `Loader` in the manifest."""
        return [loader.found(self._work) for loader in self._loaders if loader.asked]

    def _of(self, loader: Any) -> Loader | None:
        """What is kept of a DataLoader, from now on if it is new; None if there are MOST_LOADERS already."""
        known = self._known.get(id(loader))
        if known is None or known[0]() is not loader:
            if len(self._loaders) >= MOST_LOADERS:
                return None
            known = weakref.ref(loader), Loader(settings(loader))
            self._known[id(loader)] = known
            self._loaders.append(known[1])
        return known[1]

    def _iter_called(self, loader: Any) -> None:
        if (known := self._of(loader)) is not None:
            self.epochs.begins(known, known.line)

    def _iterator_made(self, iterator: Any, loader: Any) -> None:
        if (known := self._of(loader)) is not None:
            self._iterating[iterator] = known

    def _batch_asked(self) -> None:
        tried("DataLoader (on_batch)", self._on_batch)

    def _before_batch(self, iterator: Any) -> tuple[Loader | None, int | None]:
        """The loader of an iterator that is about to be asked, and how many batches are ready, None without workers;
        twice None: it is not measured."""
        if self.measuring:
            try:
                loader = self._iterating.get(iterator)
                if loader is not None:
                    return loader, loader.ready(iterator)
            except Exception as error:
                failed("DataLoader (_next_data)", error)
        return None, None

    def _got(self, loader: Loader, asked_ns: int, got_ns: int, ready: int | None, iterator: Any, batch: Any) -> None:
        """The training has got a batch: note the times, and look into it unless steps are timed."""
        self.epochs.got(loader)
        loader.waited(asked_ns, got_ns, _thread.sampling_ns, ready, iterator, timed=not self.looking)
        if self.looking:
            loader.batches.look(batch, in_process=ready is None)

    def _keeper(self) -> Loader | WorkerFile | None:
        """What keeps the measurement of a fetch in this process and thread; None if nothing does."""
        worker = worker_here()
        if worker is None:
            return _thread.loader
        if getattr(worker, "worker_method", None) == "thread":
            return None
        self.trains_here = False
        if self._file is None:
            self._file = WorkerFile(self._work)
        return self._file if self._file.usable else None


_watch: LoaderWatch | None = None
_hooks = False  # Loaders are hooked, or will be: once is enough, however many watches there were.


def _forked() -> None:
    if _watch is not None:
        _watch.trains_here = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Thread(threading.local):
    asking = False  # A batch has been asked for. What its dataset asks of other loaders is part of making it.
    loader: Loader | None = None  # That is measured.
    fetching = False  # A fetcher is making a batch.
    collates_ns = 0  # When the fetcher took its collate_fn, by `time.perf_counter_ns`; 0: not yet.
    sampling_ns = 0  # For how long the sampler said what comes next, since the batch was asked for.
    queue: RunQueue | None = None


_thread = _Thread()


def worker_here() -> Any:
    """What torch says of the worker that runs here; None if none does."""
    module = sys.modules.get("torch.utils.data._utils.worker")
    return None if module is None else module.get_worker_info()


def _hook_iterators(module: ModuleType) -> None:
    """Wrap what DataLoaders and their iterators call for each epoch and each batch, in the process that trains."""
    module.DataLoader.__iter__ = _beginning(module.DataLoader.__iter__)
    module.DataLoader._get_iterator = _iterating(module.DataLoader._get_iterator)
    # The name of the range that `__next__` records: read first of all, before the range begins.
    module._BaseDataLoaderIter._profile_name = Noticed("_profile_name", _next_called)
    several = module._MultiProcessingDataLoaderIter
    several._shutdown_workers = _ending(several._shutdown_workers)
    for kind in (module._SingleProcessDataLoaderIter, several):
        kind._next_data = _waiting(kind._next_data)
    module._BaseDataLoaderIter._next_index = _sampling(module._BaseDataLoaderIter._next_index)


def _hook_fetchers(module: ModuleType) -> None:
    # Read right before it is called, which is the last that `fetch` does.
    module._BaseDatasetFetcher.collate_fn = Noticed("collate_fn", _collates)
    for kind in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
        kind.fetch = _fetching(kind.fetch)


def _next_called() -> None:
    """The training asks an iterator for a batch: `__next__` has read `_profile_name`."""
    watch = _watch
    if watch is not None and not _thread.asking and watch.trains_here:
        watch._batch_asked()


def _collates() -> None:
    if _thread.fetching:
        _thread.collates_ns = time.perf_counter_ns()


def _beginning(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`DataLoader.__iter__`, with which an epoch begins; its iterator may be one that has been there before."""

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807
        watch = _watch
        if watch is not None and not _thread.asking and watch.trains_here:
            tried("DataLoader (__iter__)", watch._iter_called, self)
            if watch.starting_is_waiting and phases.begin(LOADER):
                try:
                    return original(self)
                finally:
                    phases.end(LOADER)
        return original(self)

    return __iter__


def _iterating(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`DataLoader._get_iterator`, which makes an iterator: a range where that starts workers."""

    @functools.wraps(original)
    def _get_iterator(self: Any) -> Any:
        watch = _watch
        watched = watch is not None and not _thread.asking and watch.trains_here
        with Marked(STARTING) if watched and self.num_workers > 0 else nullcontext():
            iterator = original(self)
        if watch is not None and watched:
            tried("DataLoader (_get_iterator)", watch._iterator_made, iterator, self)
        return iterator

    return _get_iterator


def _ending(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """`_shutdown_workers` of an iterator, which is also called when nothing is left to end."""

    @functools.wraps(original)
    def _shutdown_workers(self: Any) -> None:
        over = _watch is None or not _watch.trains_here or getattr(self, "_shutdown", True) or sys.is_finalizing()
        with nullcontext() if over else Marked(STOPPING):
            original(self)

    return _shutdown_workers


def _waiting(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`_next_data` of an iterator, timed: how long the training waits for a batch."""

    @functools.wraps(original)
    def _next_data(self: Any) -> Any:
        watch = _watch
        if watch is None or _thread.asking or not watch.trains_here:
            return original(self)
        loader, ready = watch._before_batch(self)
        _thread.asking, _thread.loader, _thread.sampling_ns = True, loader, 0
        counted, begun_ns = phases.begin(LOADER), time.perf_counter_ns()
        try:
            batch = original(self)
        finally:
            _thread.asking, _thread.loader = False, None
            if counted:
                phases.end(LOADER)
        if loader is not None:
            given = (loader, begun_ns, time.perf_counter_ns(), ready, self, batch)
            tried("DataLoader (_next_data)", watch._got, *given)
        return batch

    return _next_data


def _sampling(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`_next_index` of an iterator, timed: what the sampler takes."""

    @functools.wraps(original)
    def _next_index(self: Any) -> Any:
        begun_ns = time.perf_counter_ns()
        try:
            return original(self)
        finally:
            if not _thread.fetching:  # Of a loader that a dataset iterates over it is part of making an item.
                _thread.sampling_ns += time.perf_counter_ns() - begun_ns

    return _next_index


def _fetching(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A fetcher's `fetch`, timed: a batch's wall, CPU and collation time, and how long its thread waited for a core.

    In a worker also the batch's number, which the loop of torch that calls it has as `idx`, and the CPU time since the
    batch before, which went to sending that.
    """

    @functools.wraps(original)
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        watch = _watch
        keep = watch._keeper() if watch is not None and not _thread.fetching else None
        if watch is None or keep is None:
            return original(self, possibly_batched_index)
        worker = keep if isinstance(keep, WorkerFile) else None
        sampler = Sampler(__file__) if keep.samples and (worker is not None or watch.looking) else None
        _thread.fetching, _thread.collates_ns = True, 0
        queue = _thread.queue
        if queue is None or queue.process != os.getpid():  # That of the process that forked this one.
            queue = _thread.queue = RunQueue()
        queued_ns, begun_cpu_ns, begun_ns = queue.waited_ns(), time.process_time_ns(), time.perf_counter_ns()
        try:
            with sampler or nullcontext():
                batch = original(self, possibly_batched_index)
        finally:
            _thread.fetching = False
        made_ns, ended_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        queued_ns = queue.waited_ns() - queued_ns if queued_ns >= 0 else -1
        cpu_ns = ended_cpu_ns - begun_cpu_ns
        collate_ns = made_ns - (_thread.collates_ns or made_ns)
        number, sent_ns = -1, -1
        if worker is not None:
            number = sys._getframe(1).f_locals.get("idx", -1)
            sent_ns = begun_cpu_ns - worker.ended_cpu_ns if worker.ended_cpu_ns >= 0 else -1
            worker.ended_cpu_ns = ended_cpu_ns
        sampled = int(sampler is not None)
        keep.fetched(Fetch(made_ns - begun_ns, collate_ns, cpu_ns, made_ns, number, queued_ns, sampled, sent_ns))
        if sampler is not None:
            keep.sampled(sampler.found)
        return batch

    return fetch
