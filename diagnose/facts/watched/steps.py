"""Steps of a run that are unlike others: in a slow first epoch, at beginnings of epochs, and outliers."""

from collections import Counter
from contextlib import suppress
from statistics import median

from msgspec import Struct

from diagnose.facts.core.base import Missing
from diagnose.facts.watched.log import OTHER_CODE, PARTS, RunFacts, run_fact, total
from diagnose.trace.run_log import EpochTime, RunLog, Window

SLOWER = 0.2  # By so much a first epoch's step is longer than later ones at least (our choice).
LEAST_EPOCH_STEPS = 5
LEAST_OUTLIERS, REGULAR, MOSTLY = 5, 0.6, 0.2
"""Outliers, the share of them that must come at the period, and that of steps above which they are no outliers but
another kind of steps, or a machine that others use (our choice)."""

EXPLAINS = 0.5  # Of what an outlier takes beyond the usual step, the share from which on a part is why (our choice).
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


class Outliers(Struct, frozen=True):
    """Steps that take over three times the usual one."""

    count: int
    excess_ns: int  # What they take beyond usual steps.
    period_steps: int | None  # None: they come at no period.
    regular: float  # Share of them that came so many steps after the one before, by one step more or less.
    part: str  # Of PARTS or OTHER_CODE: what is longer in them; "" if that is not known.


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


@run_fact
def outliers(run: RunFacts) -> Outliers | None:
    """Outlier steps of the rank; None without any. Missing if a fifth of the steps are."""
    log = run.logs[0]
    count = sum(window.outliers for window in log.windows)
    if count > MOSTLY * sum(window.steps for window in log.windows):
        raise Missing("more than a fifth of the steps are outliers")
    if not count:
        return None
    period, regular = _period(log, count) if count >= LEAST_OUTLIERS else (None, 0.0)
    return Outliers(count, sum(window.excess_ns for window in log.windows), period, regular, _part(log))


def _period(log: RunLog, count: int) -> tuple[int | None, float]:
    """(commonest distance of outliers, give or take a step, None unless REGULAR of them have it; share that has it)."""
    gaps = Counter[int]()
    for window in log.windows:
        gaps.update(dict(window.gaps))
    near = {gap: sum(gaps[gap + off] for off in (-1, 0, 1)) for gap in gaps if gap > 1}
    if not near:
        return None, 0.0
    period = max(near, key=lambda gap: (near[gap], gaps[gap], -gap))
    regular = min(near[period] / max(count - 1, 1), 1.0)
    return (period, regular) if regular >= REGULAR else (None, regular)


def _part(log: RunLog) -> str:
    """What most of the longest outliers' time beyond the usual step is, window by window.

    The log has the waiting of these steps. Of other parts it has the longest of each window, taken to be in that step.
    A part of PARTS; OTHER_CODE if they explain less than EXPLAINS together; "" if that is not known.
    """
    beyond, by_part = 0.0, dict.fromkeys(PARTS, 0.0)
    for window in log.windows:
        if not window.outliers or not window.timed:
            continue
        usual = (window.of("step").sum_ns - window.excess_ns) / window.timed
        longest = max(window.longest, key=lambda one: one.step_ns, default=None)
        step_ns = window.of("step").most_ns if longest is None else longest.step_ns
        excess = step_ns - usual
        if excess <= 0:
            continue
        beyond += excess
        for part in PARTS:
            column = window.of(part)
            waited = longest.loader_ns if part == "loader" and longest is not None else column.most_ns
            mean = (column.sum_ns - column.most_ns) / max(window.timed - 1, 1) if column.count else 0.0
            by_part[part] += max(min(waited - mean, excess), 0)
    if not beyond:
        return ""
    part, most = max(by_part.items(), key=lambda pair: pair[1])
    if most >= EXPLAINS * beyond:
        return part
    return OTHER_CODE if sum(by_part.values()) < EXPLAINS * beyond else ""
