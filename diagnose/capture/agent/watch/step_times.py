"""What the time of the training thread goes to, from one step's end to the next, by reads of the clock alone.

Between two steps' ends there are stretches of training and of evaluation. What a stretch is shows by its first call of
the model, backward pass or optimizer's step; a batch that was asked for before belongs to it. So at each batch that is
asked for a moment is kept, from which on the time is the next stretch's.
"""

from __future__ import annotations

import time
from operator import add, sub
from typing import NamedTuple

from ..phases import ALL, COLLECTION, LOADER, SAVE, phases

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
        self._mark, self._evaluates = now, False
        self._asked: Moment | None = None
        self._trained = self._evaluated = _NOTHING
        self._between_from: Moment | None = now
        self._between = 0

    def batch_asked(self, gradients: bool) -> None:
        """A batch is asked for, or an epoch of a loader begins. `gradients`: autograd is on, as in no evaluation."""
        if self._asked is None:
            self._asked = phases.moment()
            if self._between_from is not None:
                self._between_ends(self._asked)
        if not gradients:
            self.evaluates()

    def evaluates(self) -> None:
        """The model is called without recording gradients, or something else says so."""
        if not self._evaluates:
            self._turn()
        self._asked = None

    def trains(self) -> None:
        """The model is called with gradients, a backward pass begins, or an optimizer's step."""
        if self._evaluates:
            self._turn()
        elif self._between_from is not None:
            self._between_ends(phases.moment())
        self._asked = None

    def trains_after_all(self) -> None:
        """What was taken for evaluation, as the model was in evaluation mode, went backward."""
        self._evaluates, self._asked = False, None

    def evaluation_ends(self) -> None:
        """The model is put into training mode, or a checkpoint has been saved: what follows is between steps."""
        if self._evaluates:
            self._asked = None
            self._turn()
            self._between_from = self._mark

    def step_ended(self, epoch: bool = False) -> Interval:
        """The interval that ends now. `epoch`: it ends with the first step of one."""
        now = phases.moment()
        found = self._interval(now, epoch)
        self._begin(now)
        return found

    def so_far(self) -> Interval:
        """The interval that has not ended yet, for another thread."""
        spent = phases.spent_so_far_ns()
        return self._interval((time.perf_counter_ns(), *spent.values()))

    def _turn(self) -> None:
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
        assert self._between_from is not None
        since = self._between_from
        spent = now[_SAVE] - since[_SAVE] + now[_COLLECTION] - since[_COLLECTION]
        self._between += now[0] - since[0] - spent
        self._between_from = None

    def _interval(self, now: Moment, epoch: bool = False) -> Interval:
        trained, evaluated = self._trained, self._evaluated
        if self._evaluates:
            evaluated = _sum(evaluated, _difference(now, self._mark))
        elif trained is not _NOTHING:
            trained = _sum(trained, _difference(now, self._mark))
        else:
            trained = _difference(now, self._mark)
        length, loader, forward, backward, optimizer, save, collection, compilation = trained
        step, times = length - save, (loader, forward, backward, optimizer, collection, compilation)
        if evaluated is _NOTHING:
            return Interval(now[0], step, self._between, *times, save, 0, 0, 0, epoch)
        save_too, evaluation_loader = evaluated[_SAVE], evaluated[_LOADER]
        evaluation = evaluated[0] - save_too
        return Interval(now[0], step, self._between, *times, save + save_too, evaluation, evaluation_loader, 0, epoch)


def recorded(began_ns: int, ended_ns: int) -> Interval:
    """One that was made while something was recorded, of which nothing else is told."""
    return Interval._make((ended_ns, *(0,) * (len(Interval._fields) - 3), ended_ns - began_ns, False))
