"""Where epochs begin among the steps of a run, and how long whole ones take, with all that is between them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

MOST_STEPS = 10_000  # Whose ends are kept, the latest ones (our choice).

MOST_BEGUN = 1_000
"""Beginnings that are kept, the latest ones: a script may make an iterator for each step (our choice)."""

MOST_TOLD = 64  # Beginnings that the manifest has (our choice).


@dataclass
class _Begun:
    loader: Hashable
    step: int  # The first of the epoch.
    asked_ns: int
    first_ns: int | None = None  # When its first batch was there.


class Epochs:
    """Reads the clock once a step until it is closed. `loader` is anything that stands for one, such as itself."""

    def __init__(self) -> None:
        self._ends_ns: deque[int] = deque(maxlen=MOST_STEPS)
        self._begun: deque[_Begun] = deque(maxlen=MOST_BEGUN)
        self._waiting: _Begun | None = None
        self._kinds: dict[Hashable, Hashable] = {}
        self._trained: Counter[Hashable] = Counter()
        self._latest: Hashable = None
        self._last = self._closed_at = -1
        self._steady_from: int | None = None
        self._open = True

    def begins(self, loader: Hashable, kind: Hashable = None) -> None:
        """An iterator of a loader is about to be made. Loaders of one kind may be made anew for each epoch."""
        self._kinds[loader] = loader if kind is None else kind
        self._waiting = _Begun(loader, self._last + 1, time.perf_counter_ns())
        self._begun.append(self._waiting)

    def got(self, loader: Hashable) -> None:
        """The training has a batch of a loader."""
        self._latest = loader
        if self._waiting is not None and self._waiting.loader is loader:
            self._waiting.first_ns, self._waiting = time.perf_counter_ns(), None

    def step_ended(self, number: int) -> None:
        """The step of this number has ended."""
        if number != self._last + 1:  # Steps are counted anew.
            self._ends_ns.clear()
            self._begun.clear()
        self._last = number
        if self._open:
            self._ends_ns.append(time.perf_counter_ns())
            self._trained[self._latest] += 1
            self._latest = None

    def steady(self, steps: int) -> None:
        """So many steps, the latest, and those to come, are as they will be."""
        self._steady_from = max(self._last - steps + 1, 0)

    def close(self) -> None:
        """The steps to come are disturbed: only where epochs begin is noted."""
        self._open, self._closed_at = False, self._last

    def found(self) -> dict[str, object] | None:
        """By the names of `Epochs` in the manifest; None if no loader gave the training its batches."""
        begun = self._of_training()
        if not begun:
            return None
        lengths = [after.step - before.step for before, after in pairwise(begun)]
        told = {"began": [one.step for one in begun[-MOST_TOLD:]], "steps": lengths[-1] if lengths else None}
        return {**told, **(self._whole(begun, lengths[-1]) if lengths else {})}

    def _of_training(self) -> list[_Begun]:
        """Beginnings of the loader, or of those of a kind, of which most steps had a batch, in order."""
        trained = Counter[Hashable]()
        for loader, count in self._trained.items():
            if loader in self._kinds:
                trained[self._kinds[loader]] += count
        ((kind, most),) = trained.most_common(1) or ((None, 0),)
        if 2 * most < self._trained.total():
            return []
        mine = [one for one in list(self._begun) if self._trained[one.loader] and self._kinds[one.loader] == kind]
        # Of several before one step, as where a script looks at a batch, the last is trained on.
        return list({one.step: one for one in mine}.values())

    def _whole(self, begun: list[_Begun], length: int) -> dict[str, object]:
        """Of the latest steady steps as many as are in whole epochs: each has what is between epochs as often."""
        last = self._last if self._open else self._closed_at
        first = last - len(self._ends_ns) + 1
        if self._steady_from is None:
            return {}
        since = max(self._steady_from, first + 1)
        count = (last - since + 1) // length * length
        if count <= 0:
            return {}
        since = last - count + 1

        def end_ns(number: int) -> int:
            return self._ends_ns[number - first]

        turns = [one for one in begun if since <= one.step <= last]
        starts = [one.first_ns - one.asked_ns for one in turns if one.first_ns is not None]
        return {
            "timed": count,
            "step_ns": round((end_ns(last) - end_ns(since - 1)) / count),
            "first_step_ns": _mean(end_ns(one.step) - end_ns(one.step - 1) for one in turns),
            "between_ns": _mean(one.asked_ns - end_ns(one.step - 1) for one in turns),
            "starting_ns": _mean(starts),
        }


def _mean(values: Iterable[int]) -> int | None:
    found = list(values)
    return round(fmean(found)) if found else None
