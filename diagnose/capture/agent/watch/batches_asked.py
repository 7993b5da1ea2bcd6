"""Asking for batches, as a watched run sees it: when, and with which step an epoch begins. Workers measure nothing."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..loaders import LoaderWatch, worker_here


class BatchesAsked(LoaderWatch):
    """Calls `on_batch()` when a batch is asked for, and where an epoch of a loader begins. Keeps no loader alive."""

    def __init__(self, on_batch: Callable[[], None]) -> None:
        super().__init__(Path(), on_batch)
        self.starting_is_waiting = True
        self._begun: weakref.WeakSet[Any] = weakref.WeakSet()
        self._loader_of: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        self._latest: weakref.ref[Any] | None = None
        self._iterator: weakref.ref[Any] | None = None
        self._loader: weakref.ref[Any] | None = None
        """What was looked up last: an iterator, and its loader."""
        self._looked = False
        """Whether this process is a worker has been looked at; one that is forked does not train."""

    def epoch_begins(self) -> bool:
        """Whether the step that has ended is the first of an epoch: that with its first batch. Asked once a step."""
        latest, self._latest = self._latest, None
        if latest is None or not self._begun:
            return False
        loader = latest()
        if loader is None or loader not in self._begun:
            return False
        self._begun.discard(loader)
        return True

    def _begins(self, loader: Any) -> None:
        self._begun.add(loader)
        self._asked()

    def _made(self, iterator: Any, loader: Any) -> None:
        self._loader_of[iterator] = weakref.ref(loader)

    def _iterated(self, iterator: Any) -> tuple[Any, int | None]:
        if self._iterator is None or self._iterator() is not iterator:
            self._iterator, self._loader = weakref.ref(iterator), self._loader_of.get(iterator)
        return self._loader, None

    def _got(self, loader: Any, *_: Any) -> None:
        self._latest = loader

    def _keeper(self) -> None:
        if self._looked:
            return
        worker = worker_here()
        if worker is not None and getattr(worker, "worker_method", None) != "thread":
            self.trains_here = False
        self._looked = True
