"""What the time of the training thread goes to, from one step's end to the next, by reads of the clock alone.

Between two steps' ends there are stretches of training and of evaluation. What a stretch is shows by its first call of
the model, backward pass or optimizer's step; a batch that was asked for before belongs to it. So at each batch that is
asked for a moment is kept, from which on the time is the next stretch's.

Nothing here waits for the device.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import add, sub
from pathlib import Path
from typing import Any, NamedTuple

from ..alone import alone, capturing, uses_gpu
from ..clocks import ON_DEVICE, between_ns, device_event
from ..interruptions import ALL, COLLECTION, LOADER, SAVE, phases
from ..loaders import LoaderWatch
from ..loaders_measured import Loader, WorkerFile

MOST_PENDING = 64  # Events that the device has not come to yet, beyond which none are added (chosen).


class DeviceTimes:
    """Times of steps on the device: on the current stream of the current device of the thread that trains."""

    def __init__(self) -> None:
        self._pending: deque[Any] = deque()
        self._free: list[Any] = []  # Events that can be used again.

    def step_ended(self) -> list[int]:
        """A step has ended on the host. Returns ns between those ends of steps that the device has passed by now."""
        if not uses_gpu() or capturing():
            self._pending.clear()
            return []
        return list(alone(ON_DEVICE, self._passed, default=()))

    def _passed(self) -> list[int]:
        """Queue an event for this end of a step; ns between consecutive ends that the device has passed."""
        found, pending = list[int](), self._pending
        while len(pending) > 1 and pending[1].query():
            before = pending.popleft()
            found.append(between_ns(before, pending[0]))
            self._free.append(before)
        if len(pending) >= MOST_PENDING:
            pending.clear()  # Times that begin at an earlier end would be those of several steps.
        pending.append(device_event(self._free.pop() if self._free else None))
        return found


FIRST_TIMED, ONE_TIMED_IN = 200, 16  # The first so many batches are timed, then one in so many (chosen).


@dataclass
class Fed:
    """What a loader gave to the steps whose last batch was of it."""

    steps: int = 0
    batches: int = 0  # Of this loader, in a row up to the ends of these steps.


class BatchesAsked(LoaderWatch):
    """Calls `on_batch()` when a batch is asked for, and where an epoch of a loader begins. Keeps no iterator alive.

    An epoch is that of an iterator: its loader may be gone by then, as in `for batch in DataLoader(...)`.
    """

    def __init__(self, work: Path, on_batch: Callable[[], None]) -> None:
        """As LoaderWatch, for whole runs: the first batches are timed, then some, and nothing looks into them."""
        super().__init__(work, on_batch)
        self.starting_is_waiting, self.looking = True, False
        self._fed: dict[Loader, Fed] = {}
        self._untimed = Loader({})  # Takes what is not timed, and loaders beyond MOST_LOADERS.
        self._begun: weakref.WeakSet[Any] = weakref.WeakSet()  # Iterators whose first batch is in no step so far.
        self._latest: weakref.ref[Any] | None = None  # The iterator that gave the last batch of the step.
        self._iterator: weakref.ref[Any] | None = None  # That was asked last.
        self._loader = self._untimed  # Of that iterator.
        self._asks = self._batches = 0  # Of all loaders in the run; in a row from `_latest` in the step.

    def epoch_begins(self) -> bool:
        """Whether the step that has ended has the first batch of an epoch. To be called once at each step's end."""
        latest, self._latest = self._latest, None
        iterator = None if latest is None else latest()
        if iterator is None:
            return False
        if latest is self._iterator and self._loader is not self._untimed:
            fed = self._fed.setdefault(self._loader, Fed())
            fed.steps += 1
            fed.batches += self._batches
        if iterator not in self._begun:
            return False
        self._begun.discard(iterator)
        return True

    def ready(self) -> int | None:
        """How many batches the iterator that was asked last has ready; None without workers. For another thread."""
        iterator = None if self._iterator is None else self._iterator()
        loader = None if iterator is None else self._iterating.get(iterator)
        return None if loader is None else loader.ready(iterator)

    def trained_from(self) -> tuple[dict[str, object], int, int] | None:
        """The loader that most steps took their batches from, as `Loader` of the manifest, how many steps that are, and
        how many batches; for another thread.
        """
        if (most := self._most_used()) is None:
            return None
        return most.found(self._work), self._fed[most].steps, self._fed[most].batches

    def _most_used(self) -> Loader | None:
        fed = self._fed.copy()
        return max(fed, key=lambda one: fed[one].steps, default=None)

    def _iter_called(self, loader: Any) -> None:
        if (kept := getattr(loader, "_iterator", None)) is not None:
            self._begun.add(kept)  # Of persistent workers: it begins again, and is not made anew.
        self._batch_asked()

    def _iterator_made(self, iterator: Any, loader: Any) -> None:
        self.forget_gone()
        kept = {*self._loaders, self._most_used()}
        self._fed = {one: fed for one, fed in self._fed.items() if one in kept}
        super()._iterator_made(iterator, loader)
        self._begun.add(iterator)

    def _before_batch(self, iterator: Any) -> tuple[Any, int | None]:
        """The loader to keep times of this batch, `_untimed` if they do not count, and how many batches are ready."""
        if self._iterator is None or self._iterator() is not iterator:
            self._iterator = weakref.ref(iterator)
            self._loader = self._iterating.get(iterator, self._untimed)
        self._asks += 1
        if self._asks > FIRST_TIMED and self._asks % ONE_TIMED_IN:
            return self._untimed, None
        loader, ready = super()._before_batch(iterator)
        return loader or self._untimed, ready

    def _got(self, loader: Loader, asked_ns: int, got_ns: int, ready: int | None, iterator: Any, batch: Any) -> None:
        self._batches = self._batches + 1 if self._latest is self._iterator else 1
        self._latest = self._iterator
        if loader is not self._untimed:
            loader.waited(asked_ns, got_ns, 0, ready, iterator, timed=True)

    def _keeper(self) -> Loader | WorkerFile | None:
        keep = super()._keeper()
        return None if keep is self._untimed else keep


Moment = tuple[int, ...]  # The clock, and the time spent so far on each of ALL, in ns.
_LOADER, _SAVE, _COLLECTION = (1 + ALL.index(phase) for phase in (LOADER, SAVE, COLLECTION))


class Interval(NamedTuple):
    """From the end of one step to that of the next, in ns. `step`, `save`, `evaluation` and `recording` add up to its
    length."""

    ended: int  # When, by `time.perf_counter_ns`.
    step: int
    between: int  # Of `step`: before the step asks for its first batch, or else calls its model.
    loader: int  # Of `step`, as all that follow.
    forward: int
    backward: int
    optimizer: int
    collection: int
    compilation: int
    save: int
    evaluation: int
    evaluation_loader: int  # Of `evaluation`: waiting for batches.
    recording: int = 0  # All of it, if the step was made while something was recorded.
    epoch: bool = False  # It ends with the first step of an epoch.


def _difference(after: Moment, before: Moment) -> Moment:
    return tuple(map(sub, after, before))


def _sum(one: Moment, other: Moment) -> Moment:
    return tuple(map(add, one, other))


_NOTHING: Moment = (0,) * (1 + len(ALL))


class StepTimes:
    """Intervals of one thread, told by its own calls. `phases` must be on for it."""

    def __init__(self, began_ns: int) -> None:
        """The first interval began at that time of `time.perf_counter_ns`, when `phases` had counted nothing."""
        self._begin((began_ns, *_NOTHING[1:]))

    def _begin(self, now: Moment) -> None:
        self._mark, self._evaluates = now, False  # When the current stretch began; whether it is of evaluation.
        self._asked: Moment | None = None  # When the first batch since the last call or pass was asked for.
        self._trained = self._evaluated = _NOTHING  # Sums over stretches of both kinds that have ended.
        self._between_from: Moment | None = now  # Since when nothing of a step has begun; None: something has.
        self._between = 0  # Sum of such times in ns.

    def batch_asked(self, gradients: bool) -> None:
        """A batch is asked for, or an epoch of a loader begins. `gradients`: autograd is on, as in no evaluation."""
        if self._asked is None:
            self._asked = phases.moment()
            if self._between_from is not None:
                self._between_ends(self._asked)
        if not gradients:
            self.evaluates()

    def evaluates(self) -> None:
        """The current stretch is one of evaluation: the model is called without gradients, or a batch asked for so."""
        if not self._evaluates:
            self._turn()
        self._asked = None

    def trains(self) -> None:
        """The current stretch is one of training: the model is called with gradients, or a backward pass begins."""
        if self._evaluates:
            self._turn()
        elif self._between_from is not None:
            self._between_ends(phases.moment())
        self._asked = None

    def trains_after_all(self) -> None:
        """A backward pass begins in a stretch taken for evaluation, by the model's mode: all of it is training."""
        self._evaluates, self._asked = False, None

    def evaluation_ends(self) -> None:
        """The model is put into training mode, or a checkpoint was saved: a stretch of evaluation, if any, ends."""
        if self._evaluates:
            self._asked = None
            self._turn()
            self._between_from = self._mark

    def step_ended(self, epoch: bool = False) -> Interval:
        """The interval that ends now, at a step's end; begins the next. `epoch`: the step is the first of one."""
        now = phases.moment()
        found = self._interval(now, epoch)
        self._begin(now)
        return found

    def so_far(self) -> Interval:
        """The interval that has not ended yet, for another thread."""
        spent = phases.spent_so_far_ns()
        return self._interval((time.perf_counter_ns(), *spent.values()))

    def _turn(self) -> None:
        """A stretch of the other kind begins: where a batch was asked for since the last sign, else now."""
        since = self._asked or phases.moment()
        if self._between_from is not None:
            self._between_ends(since)
        passed = _difference(since, self._mark)
        if self._evaluates:
            self._evaluated = _sum(self._evaluated, passed)
        else:
            self._trained = _sum(self._trained, passed)
        self._mark, self._evaluates = since, not self._evaluates

    def _between_ends(self, now: Moment) -> None:
        """Count the time before a step as `between`, without saving and garbage collection in it."""
        assert self._between_from is not None
        since = self._between_from
        spent = now[_SAVE] - since[_SAVE] + now[_COLLECTION] - since[_COLLECTION]
        self._between += now[0] - since[0] - spent
        self._between_from = None

    def _interval(self, now: Moment, epoch: bool = False) -> Interval:
        """The interval up to `now`, by ended stretches and the current one. Changes nothing."""
        trained, evaluated = self._trained, self._evaluated
        passed = _difference(now, self._mark)
        if self._evaluates:
            evaluated = _sum(evaluated, passed)
        else:
            trained = passed if trained is _NOTHING else _sum(trained, passed)
        length, loader, forward, backward, optimizer, save, collection, compilation = trained
        step, times = length - save, (loader, forward, backward, optimizer, collection, compilation)
        if evaluated is _NOTHING:
            return Interval(now[0], step, self._between, *times, save, 0, 0, 0, epoch)
        save_too, evaluation_loader = evaluated[_SAVE], evaluated[_LOADER]
        evaluation = evaluated[0] - save_too
        return Interval(now[0], step, self._between, *times, save + save_too, evaluation, evaluation_loader, 0, epoch)


def recorded(began_ns: int, ended_ns: int) -> Interval:
    """An interval in which something was recorded: all of it is `recording`."""
    return Interval._make((ended_ns, *(0,) * (len(Interval._fields) - 3), ended_ns - began_ns, False))
