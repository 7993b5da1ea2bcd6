"""Waiting for data, by when: in the first epoch, at the beginnings of epochs, or all along."""

from contextlib import suppress
from statistics import median

from msgspec import Struct

from diagnose.contracts.finding import Evidence
from diagnose.contracts.watched_run import RunBasis, RunFinding, RunFindingKind
from diagnose.trace.run_log import EpochTime, RunLog, Window
from diagnose.trace.units import duration, number
from diagnose.watched.outliers import outliers
from diagnose.watched.pricing import KEPT_WORKERS, UNKNOWN, CannotTell, cost, finding, saving, total

SLOWER = 0.2  # By so much a first epoch's step is longer than later ones at least (our choice).

LEAST_EPOCH_STEPS = 5

MORE_WORKERS = "Use more workers (num_workers, prefetch_factor), or make batches cheaper."


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


def known_epochs(log: RunLog) -> list[EpochTime]:
    """Those that are told one by one, with steps besides the run's first, in order."""
    told = {one.first_step: one for window in log.windows for one in window.epochs if one.steps}
    return [one for _, one in sorted(told.items())]


def first_epoch(log: RunLog) -> FirstEpoch | None:
    """Against the median of later epochs: the last one may be cut short, and has a mean step as well.

    Raises CannotTell.
    """
    known = known_epochs(log)
    if len(known) < 2:
        raise CannotTell("the log has no second epoch of a DataLoader")
    if known[0].first_step > 1:
        raise CannotTell("the first epoch is not in the log")
    if known[0].steps < LEAST_EPOCH_STEPS:
        raise CannotTell(f"the first epoch has fewer than {LEAST_EPOCH_STEPS} steps")
    first, later = known[0], known[1:]
    step, wait = first.step_ns // first.steps, first.loader_ns // first.steps
    usual = int(median(one.step_ns // one.steps for one in later))
    waits = int(median(one.loader_ns // one.steps for one in later))
    if step < (1 + SLOWER) * usual:
        return None
    return FirstEpoch(step, usual, wait, waits, first.steps, known[1].first_step)


def steady(log: RunLog) -> list[Window]:
    """Windows without those of a first epoch that is slow by itself."""
    first = None
    with suppress(CannotTell):
        first = first_epoch(log)
    return [one for one in log.windows if first is None or one.first_step >= first.second]


def slow_first_epoch(log: RunLog) -> list[RunFinding]:
    """Raises CannotTell."""
    found = first_epoch(log)
    if found is None:
        return []
    cold = 2 * found.waiting_ns > found.beyond_ns
    said = f"Steps take {duration(found.step_ns)} in the first epoch and {duration(found.later_step_ns)} later:"
    return finding(
        RunFindingKind.SLOW_FIRST_EPOCH,
        "The first epoch is slow",
        (
            Evidence(f"{said} {cost(found.beyond_ns, log)}.", found.beyond_ns, "ns", primary=True),
            f"{cost(found.waiting_ns, log)} of this is waiting for data, perhaps with a cold file cache."
            if cold
            else "",
        ),
        saving(found.waiting_ns if cold else found.beyond_ns, UNKNOWN, RunBasis.AT_MOST),
        "Copy the data to a local disk or into memory before the run, or prefetch with more workers."
        if cold
        else "Record steps of the first and of a later epoch with `diagnose record`, and compare them.",
    )


def epoch_starts(log: RunLog) -> list[RunFinding]:
    """What the first batch of each later epoch is waited for beyond usual waits. Raises CannotTell."""
    lost, starts = at_starts(log)
    workers = any("children_resident_bytes" in window.gauges for window in log.windows)
    each = f"The first batch of an epoch arrives {duration(lost / max(starts, 1))} later than others"
    return finding(
        RunFindingKind.EPOCH_STARTS,
        "Each epoch waits for its first batch",
        (Evidence(f"{each}, {number(starts)} times: {cost(lost, log)}.", lost, "ns", primary=True),),
        saving(lost, KEPT_WORKERS, RunBasis.RULE_OF_THUMB) if workers else saving(lost, UNKNOWN, RunBasis.AT_MOST),
        "Keep the workers between epochs: persistent_workers=True."
        if workers
        else "Check what the dataset and its sampler do when an epoch starts.",
    )


def data_wait(log: RunLog) -> list[RunFinding]:
    """Waiting in steps beyond what has a reason of its own: a slow first epoch, beginnings of epochs, outliers."""
    waits, apart = total(log.windows, "loader"), 0
    with suppress(CannotTell):
        first = first_epoch(log)
        apart += first.waiting_ns if first else 0
    starts, long = starts_ns(log), 0
    with suppress(CannotTell):
        found = outliers(log)
        long = found.excess_ns if found and found.part == "loader" else 0
    left = max(waits - apart - max(starts, long), 0)
    steps = sum(window.steps for window in log.windows)
    said = f"Steps wait {duration(left / max(steps, 1))} on average for their batch: {cost(left, log)}."
    looks = [window.gauges["batches_ready"] for window in log.windows if "batches_ready" in window.gauges]
    ready = sum(one.mean * one.count for one in looks) / max(sum(one.count for one in looks), 1)
    return finding(
        RunFindingKind.DATA_WAIT,
        "Steps wait for data",
        (
            Evidence(said, left, "ns", primary=True),
            f"The workers have {ready:.1f} batches ready on average (sampled every second)." if looks else "",
        ),
        saving(left, UNKNOWN, RunBasis.AT_MOST),
        f"{MORE_WORKERS} `diagnose profile` shows how long a batch takes.",
    )


def starts_ns(log: RunLog) -> int:
    """Waiting at beginnings of epochs beyond usual waits; 0 where that is not known."""
    with suppress(CannotTell):
        return at_starts(log)[0]
    return 0


def at_starts(log: RunLog) -> tuple[int, int]:
    """Waiting beyond usual waits, in ns, and in how many epochs; scaled to those that are not told one by one."""
    later = [one for one in known_epochs(log) if one.first_step > 1]
    if not later:
        raise CannotTell("the log has no second epoch of a DataLoader")
    waits = [(one.first_wait_ns, one) for one in later if one.first_wait_ns is not None]
    if not waits:
        raise CannotTell("an older version of diagnose wrote the log")
    others = sum(one.steps - 1 for _, one in waits)
    usual = max(sum(one.loader_ns - first for first, one in waits), 0) // max(others, 1)
    lost = sum(max(first - usual, 0) for first, _ in waits)
    count = len(later) + sum(window.more_epochs for window in log.windows)
    return min(lost * count // len(waits), total(log.windows, "loader")), count
