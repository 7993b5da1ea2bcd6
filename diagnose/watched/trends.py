"""What only a long window shows: steps or memory that grow, outliers at a period, a slow first epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from statistics import fmean, median

from diagnose.contracts.watched_run import (
    GrowingMemory,
    GrowingSteps,
    NotFound,
    PeriodicOutliers,
    SlowFirstEpoch,
    Trend,
    TrendKind,
)
from diagnose.facts.run.trend import trend
from diagnose.trace.run_log import RunLog, Window
from diagnose.watched.parts import epochs

GROUPS, LEAST_GROUPS = 24, 6
"""Into which a run is put together for the test, at most and at least (our choice): so few hardly depend on each other,
as neighbouring steps do, and six in order come by chance once in 720."""

SHORT = f"the log has too few windows of a second and more, and it takes {LEAST_GROUPS}"

RARE = 0.001
"""Chance of a rise that is taken for one, as `facts/run/growth.py` has it for times."""

RISE = 0.1
"""Of the first part, by so much the last is longer at least, the same."""

LEAST_OUTLIERS, REGULAR, MOSTLY = 5, 0.6, 0.2
"""Outliers, the share of them that must come at the period, and that of steps above which they are no outliers but
another kind of steps, or a machine that others use (our choice)."""

SLOWER = 0.2
"""By so much a first epoch's step is longer than later ones at least (our choice)."""

LEAST_EPOCH_STEPS = 5

LEAST_MEMORY_BYTES, LEAST_MEMORY_SHARE = 64_000_000, 0.05
"""By so much resident memory must rise (our choice): allocators keep some."""

SETTLED = 1 / 3
"""Share of the run after which memory may grow no more: caches and pools fill until then (our choice)."""


class CannotTell(Exception):
    """Why a trend cannot be looked for, as a clause."""


def trends(log: RunLog) -> tuple[tuple[Trend, ...], tuple[NotFound, ...]]:
    """Those that a log shows, and all others, in the order of `TrendKind`."""
    looks = {
        TrendKind.GROWING_STEPS: growing_steps,
        TrendKind.GROWING_MEMORY: growing_memory,
        TrendKind.PERIODIC_OUTLIERS: periodic_outliers,
        TrendKind.SLOW_FIRST_EPOCH: slow_first_epoch,
    }
    found, others = list[Trend](), list[NotFound]()
    for kind, look in looks.items():
        why, one = "", None
        try:
            one = look(log)
        except CannotTell as error:
            why = str(error)
        if one is None:
            others.append(NotFound(kind, why))
        else:
            found.append(one)
    return tuple(found), tuple(others)


def growing_steps(log: RunLog) -> GrowingSteps | None:
    """Usual steps, without what outliers take beyond them, by groups of windows: Kendall's test, Theil and Sen's slope.

    A run that got slower once is no growth: each third must be slower than the one before. Raises CannotTell.
    """
    groups = [group for group in _groups(_steady(log)) if _steps(group)]
    times = [_usual_ns(group) for group in groups]
    if len(times) < LEAST_GROUPS:
        raise CannotTell(SHORT)
    found = trend(times)
    if found is None or found.chance > RARE or not _by_thirds(times):
        return None
    first, last = median(times[:3]), median(times[-3:])
    if last < (1 + RISE) * first:
        return None
    steps = _steps([window for group in groups for window in group])
    cost = sum(_steps(group) * (time - first) for group, time in zip(groups, times, strict=True))
    per_step = found.each * (len(groups) - 1) / max(steps - _steps(groups[-1]), 1)
    return GrowingSteps(int(first), int(last), int(1000 * per_step), max(int(cost), 0), found.chance)


def growing_memory(log: RunLog) -> GrowingMemory | None:
    """Resident memory at the ends of windows, by the same test, once caches and pools are full. Raises CannotTell."""
    known = [window for window in log.windows if "resident_bytes" in window.gauges]
    known = [window for window in known if window.ended_ns > SETTLED * log.length_ns]
    groups = list(_groups(known))
    sizes = [group[-1].gauges["resident_bytes"].last for group in groups]
    if len(sizes) < LEAST_GROUPS:
        raise CannotTell(SHORT if known or not log.windows else "this system does not tell a process's memory")
    found = trend(sizes)
    if found is None or found.chance > RARE or not _by_thirds(sizes):
        return None
    rise, steps = sizes[-1] - sizes[0], _steps(known)
    if rise < max(LEAST_MEMORY_BYTES, LEAST_MEMORY_SHARE * sizes[0]) or not steps:
        return None
    per_step = found.each * (len(groups) - 1) / steps
    return GrowingMemory(int(sizes[0]), int(sizes[-1]), int(1000 * per_step), found.chance)


def periodic_outliers(log: RunLog) -> PeriodicOutliers | None:
    """The commonest distance between outliers, by one step more or less, if most have it. Raises CannotTell."""
    gaps = Counter[int]()
    for window in log.windows:
        gaps.update(dict(window.gaps))
    outliers = sum(window.outliers for window in log.windows)
    near = {gap: sum(gaps[gap + off] for off in (-1, 0, 1)) for gap in gaps if gap > 1}
    if outliers > MOSTLY * _steps(log.windows):
        raise CannotTell("over a fifth of the steps are outliers")
    if outliers < LEAST_OUTLIERS or not near:
        return None
    period = max(near, key=lambda gap: (near[gap], gaps[gap], -gap))
    regular = near[period] / max(outliers - 1, 1)
    if regular < REGULAR:
        return None
    cost = sum(window.excess_ns for window in log.windows)
    return PeriodicOutliers(period, outliers, min(regular, 1.0), cost)


def slow_first_epoch(log: RunLog) -> SlowFirstEpoch | None:
    """Against the median of later epochs: the last one may be cut short, and has a mean step as well.

    Raises CannotTell.
    """
    known = epochs(log)
    if len(known) < 2:
        raise CannotTell("no second epoch of a DataLoader was seen")
    if known[0].first_step > 1:
        raise CannotTell("the first epoch is not in the log")
    if known[0].steps < LEAST_EPOCH_STEPS:
        raise CannotTell(f"the first epoch has fewer than {LEAST_EPOCH_STEPS} steps")
    first, later = known[0], known[1:]
    usual, waits = int(median(one.step_ns for one in later)), int(median(one.loader_ns for one in later))
    if first.step_ns < (1 + SLOWER) * usual:
        return None
    cost = first.steps * (first.step_ns - usual)
    return SlowFirstEpoch(first.step_ns, usual, first.loader_ns, waits, cost)


def _steady(log: RunLog) -> list[Window]:
    """Without a first epoch that is slow by itself."""
    first = None
    with suppress(CannotTell):
        first = slow_first_epoch(log)
    known = epochs(log)
    return [one for one in log.windows if first is None or one.first_step >= known[1].first_step]


def _groups(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Windows put together into at most GROUPS of about as much time."""
    if not windows:
        return
    began, length = windows[0].began_ns, windows[-1].ended_ns - windows[0].began_ns
    groups: dict[int, list[Window]] = {}
    for window in windows:
        middle = (window.began_ns + window.ended_ns) / 2 - began
        groups.setdefault(int(GROUPS * middle / max(length, 1)), []).append(window)
    yield from (groups[at] for at in sorted(groups))


def _steps(windows: Sequence[Window]) -> int:
    return sum(window.steps for window in windows)


def _usual_ns(windows: Sequence[Window]) -> float:
    spent = sum(window.of("step").sum_ns - window.excess_ns for window in windows)
    return spent / max(_steps(windows), 1)


def _by_thirds(values: Sequence[float]) -> bool:
    third = len(values) // 3
    first, middle, last = fmean(values[:third]), fmean(values[third:-third]), fmean(values[-third:])
    return first < middle < last and last - middle > (last - first) / 5 and middle - first > (last - first) / 5
