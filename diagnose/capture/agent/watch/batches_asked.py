"""Asking for batches, as a watched run sees it: when, and with which step an epoch begins. Workers measure nothing."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..loaders import LoaderWatch, worker_here


class BatchesAsked(LoaderWatch):
    """Calls `on_batch()` when a batch is asked for, and where an epoch of a loader begins. Keeps no iterator alive.

    An epoch is that of an iterator: its loader may be gone by then, as in `for batch in DataLoader(...)`.
    """

    def __init__(self, on_batch: Callable[[], None]) -> None:
        super().__init__(Path(), on_batch)
        self.starting_is_waiting = True
        self._begun: weakref.WeakSet[Any] = weakref.WeakSet()
        self._latest: weakref.ref[Any] | None = None
        self._iterator: weakref.ref[Any] | None = None  # That was asked last.
        self._looked = False  # Whether this process is a worker has been looked at; one that is forked does not train.

    def epoch_begins(self) -> bool:
        """Whether the step that has ended is the first of an epoch: that with its first batch. Asked once a step."""
        latest, self._latest = self._latest, None
        if latest is None or not self._begun:
            return False
        iterator = latest()
        if iterator is None or iterator not in self._begun:
            return False
        self._begun.discard(iterator)
        return True

    def ready(self) -> int | None:
        """Batches that workers have ready, of the iterator that was asked last; for another thread."""
        iterator = None if self._iterator is None else self._iterator()
        loader = None if iterator is None else self._iterating.get(iterator)
        return None if loader is None else loader.ready(iterator)

    def _begins(self, loader: Any) -> None:
        if (kept := getattr(loader, "_iterator", None)) is not None:
            self._begun.add(kept)  # Of persistent workers: it begins again, and is not made anew.
        self._asked()

    def _made(self, iterator: Any, loader: Any) -> None:
        self.forget_gone()
        super()._made(iterator, loader)
        self._begun.add(iterator)

    def _iterated(self, iterator: Any) -> tuple[Any, int | None]:
        if self._iterator is None or self._iterator() is not iterator:
            self._iterator = weakref.ref(iterator)
        return self._iterator, None

    def _got(self, loader: Any, *_: Any) -> None:
        self._latest = loader  # The iterator, as _iterated has it.

    def _keeper(self) -> None:
        if self._looked:
            return
        worker = worker_here()
        if worker is not None and getattr(worker, "worker_method", None) != "thread":
            self.trains_here = False
        self._looked = True
