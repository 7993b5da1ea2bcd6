"""Epochs of a run: the first one where it is slow by itself, and what their beginnings wait for data."""

from __future__ import annotations

from contextlib import suppress
from statistics import median

from msgspec import Struct

from diagnose.facts.core.base import Missing
from diagnose.facts.watched.base import RunFacts, run_fact
from diagnose.facts.watched.windows import total
from diagnose.trace.run_log import EpochTime, RunLog, Window

SLOWER = 0.2  # By so much a first epoch's step is longer than later ones at least (our choice).

LEAST_EPOCH_STEPS = 5

NO_SECOND = Missing("the log has no second epoch of a DataLoader")


class FirstEpoch(Struct, frozen=True):
    """A first epoch that is slow by itself."""

    step_ns: int
    later_step_ns: int
    loader_ns: int
    later_loader_ns: int
    steps: int
    second: int  # Where the next epoch begins.

    @property
    def beyond_ns(self) -> int:
        """What its steps take beyond later ones."""
        return self.steps * (self.step_ns - self.later_step_ns)

    @property
    def waiting_ns(self) -> int:
        """What of that is waiting for data."""
        return max(min(self.steps * (self.loader_ns - self.later_loader_ns), self.beyond_ns), 0)


class EpochWaits(Struct, frozen=True):
    """Waiting for the first batches of later epochs."""

    lost_ns: int  # Beyond usual waits; scaled to epochs that are not told one by one.
    epochs: int


def known_epochs(log: RunLog) -> list[EpochTime]:
    """Those that are told one by one, with steps besides the run's first, in order."""
    told = {one.first_step: one for window in log.windows for one in window.epochs if one.steps}
    return [one for _, one in sorted(told.items())]


@run_fact
def first_epoch(run: RunFacts) -> FirstEpoch | None:
    """A slow first epoch; None if it is not. Missing without a second one, and if the first is short or not there."""
    # Against the median of later epochs: the last one may be cut short, and has a mean step as well.
    known = known_epochs(run.logs[0])
    if len(known) < 2:
        raise NO_SECOND
    if known[0].first_step > 1:
        raise Missing("the first epoch is not in the log")
    if known[0].steps < LEAST_EPOCH_STEPS:
        raise Missing(f"the first epoch has fewer than {LEAST_EPOCH_STEPS} steps")
    first, later = known[0], known[1:]
    step, wait = first.step_ns // first.steps, first.loader_ns // first.steps
    usual = int(median(one.step_ns // one.steps for one in later))
    waits = int(median(one.loader_ns // one.steps for one in later))
    if step < (1 + SLOWER) * usual:
        return None
    return FirstEpoch(step, usual, wait, waits, first.steps, known[1].first_step)


def steady(run: RunFacts) -> list[Window]:
    """Windows without those of a first epoch that is slow by itself."""
    first = None
    with suppress(Missing):
        first = first_epoch(run)
    return [one for one in run.logs[0].windows if first is None or one.first_step >= first.second]


@run_fact
def epoch_waits(run: RunFacts) -> EpochWaits:
    """What first batches of epochs are waited for. Missing without a second epoch, and in older logs."""
    log = run.logs[0]
    later = [one for one in known_epochs(log) if one.first_step > 1]
    if not later:
        raise NO_SECOND
    waits = [(one.first_wait_ns, one) for one in later if one.first_wait_ns is not None]
    if not waits:
        raise Missing("an older version of diagnose wrote the log")
    others = sum(one.steps - 1 for _, one in waits)
    usual = max(sum(one.loader_ns - first for first, one in waits), 0) // max(others, 1)
    lost = sum(max(first - usual, 0) for first, _ in waits)
    count = len(later) + sum(window.more_epochs for window in log.windows)
    return EpochWaits(min(lost * count // len(waits), total(log.windows, "loader")), count)
