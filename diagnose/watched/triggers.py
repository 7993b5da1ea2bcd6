"""When the log of a run that goes on shows what is worth a closer look: a recording of the next steps."""

from collections.abc import Collection, Sequence
from enum import Enum
from itertools import pairwise

from msgspec import Struct

from diagnose.facts.watched.log import counted, total
from diagnose.trace.run_log import RunLog, Window
from diagnose.trace.units import duration, size

FIRST_S, SKIPPED_S = 180.0, 3.0
"""The beginning of a run that later steps are held against; of a shorter run it is the first third. What steps take in
the first seconds is left out: caches fill (our choice)."""

LONG_ENOUGH_S, LEAST_WINDOWS = 15.0, 3
"""Least length and number of windows of the beginning and the latest part: a short pause is no change (our choice)."""

SLOWER = 0.1  # Share by which steps get longer, from which on that is reported (as in trends of a whole run).

PAUSED = 0.2
"""Share of the windows at the beginning that may be slow by something else, as on a shared machine (our choice)."""

WAITING, MORE_WAITING = 0.2, 2.0
"""Share of step time that waiting for data takes, and how many times its share at the beginning that is, from which on
it is reported (our choice)."""

OUTLIERS, MOST_PERIOD = 3, 60
"""How many outliers at equal distances, within one step, let expect the next one; and the longest such distance in
steps, as a recording has to hold a whole one (our choice)."""

LATEST_WINDOWS = 8  # In which outliers are looked for (our choice).
OUTLIER_COST = 0.01  # Share of a period's time that an outlier takes, from which on it is recorded (our choice).
GROWN_BYTES, GROWN = 256_000_000, 0.2  # By so much resident memory must have grown since the beginning (our choice).


class TriggerKind(str, Enum):
    """What asks for a recording. Each does so once in a run."""

    SLOWER = "slower"
    WAITING = "waiting"
    OUTLIERS = "outliers"
    MEMORY = "memory"


class Trigger(Struct, frozen=True):
    """Something to look at more closely."""

    kind: TriggerKind
    why: str  # A clause, in the present tense.
    period_steps: int = 1
    outlier: int = 0  # Number of such a step; one in `period_steps` is. With a period of 1 there are none.


def triggered(log: RunLog, before: Collection[TriggerKind]) -> Trigger | None:
    """The first trigger that the log shows now, of the kinds that are not in `before`; None if there is none."""
    looks = {
        TriggerKind.OUTLIERS: _outliers,
        TriggerKind.SLOWER: _slower,
        TriggerKind.WAITING: _waiting,
        TriggerKind.MEMORY: _memory,
    }
    found = (look(log) for kind, look in looks.items() if kind not in before)
    return next((one for one in found if one is not None), None)


def _slower(log: RunLog) -> Trigger | None:
    """Steps take SLOWER more than at first, and in each latest window more than in all but PAUSED of the first."""
    first, latest = _first(log), _latest(log)
    if not first or not latest:
        return None
    usual, now = _usual_ns(first), _usual_ns(latest)
    earlier = sorted(_usual_ns([one]) for one in first)
    apart = min(_usual_ns([one]) for one in latest) > earlier[int((1 - PAUSED) * (len(earlier) - 1))]
    if not apart or now < (1 + SLOWER) * usual:
        return None
    why = f"step time rose {100 * (now / usual - 1):.0f} % since the start, from {duration(usual)} to {duration(now)}"
    return Trigger(TriggerKind.SLOWER, why)


def _waiting(log: RunLog) -> Trigger | None:
    """In each latest window, waiting for data takes WAITING of a step, and MORE_WAITING times its share at first."""
    first, latest = _first(log), _latest(log)
    if not first or not latest:
        return None
    least = max(WAITING, MORE_WAITING * _share(first, "loader"))
    if min(_share([window], "loader") for window in latest) < least:
        return None
    return Trigger(
        TriggerKind.WAITING,
        f"waiting for data takes {100 * _share(latest, 'loader'):.0f} % of a step, up from"
        f" {100 * _share(first, 'loader'):.0f} %",
    )


def _outliers(log: RunLog) -> Trigger | None:
    """The latest outliers, without those under half the longest, are equally far apart, and cost enough."""
    latest = [one for window in log.windows[-LATEST_WINDOWS:] for one in window.longest]
    most_ns = max((one.step_ns for one in latest), default=0)
    numbers = sorted(one.number for one in latest if one.step_ns >= most_ns / 2)[-OUTLIERS:]
    gaps = [after - before for before, after in pairwise(numbers)]
    if len(numbers) < OUTLIERS or max(gaps) - min(gaps) > 1 or not 1 < max(gaps) <= MOST_PERIOD:
        return None
    period, windows = max(gaps), [window for window in log.windows if window.longest]
    excess = sum(window.excess_ns for window in windows) / max(sum(window.outliers for window in windows), 1)
    if excess < OUTLIER_COST * period * _usual_ns(windows):
        return None
    why = f"one step in {period} takes {duration(excess)} longer than the others"
    return Trigger(TriggerKind.OUTLIERS, why, period, numbers[-1])


def _memory(log: RunLog) -> Trigger | None:
    """Resident memory grows in each latest window, and is GROWN_BYTES and GROWN above that at first."""
    first, latest = _first(log), _latest(log)
    sizes = [window.gauges["resident_bytes"].last for window in (*first, *latest) if "resident_bytes" in window.gauges]
    if not first or not latest or len(sizes) < len(first) + len(latest):
        return None
    before, now = sizes[len(first) - 1], sizes[-1]
    grows = all(one < other for one, other in zip(sizes[-len(latest) :], sizes[1 - len(latest) :], strict=False))
    if not grows or now - before < max(GROWN_BYTES, GROWN * before):
        return None
    return Trigger(TriggerKind.MEMORY, f"resident memory grew from {size(before)} to {size(now)}")


def _first(log: RunLog) -> list[Window]:
    began, end = _first_bounds_ns(log)
    return _enough([one for one in log.windows if began <= one.began_ns and one.ended_ns <= end])


def _latest(log: RunLog) -> list[Window]:
    """The fewest last windows that are long enough together; [] where they would reach into the beginning."""
    some = list[Window]()
    for window in reversed(log.windows):
        some.insert(0, window)
        if _enough(some):
            break
    _, end = _first_bounds_ns(log)
    return _enough([window for window in some if window.began_ns >= end])


def _first_bounds_ns(log: RunLog) -> tuple[float, float]:
    began = log.windows[0].began_ns + SKIPPED_S * 1e9 if log.windows else 0
    return began, min(began + FIRST_S * 1e9, began + (log.length_ns - began) / 3)


def _enough(windows: list[Window]) -> list[Window]:
    whole = sum(window.ended_ns - window.began_ns for window in windows)
    return windows if len(windows) >= LEAST_WINDOWS and whole >= LONG_ENOUGH_S * 1e9 else []


def _usual_ns(windows: Sequence[Window]) -> float:
    """Mean ns of a step, without what outliers take beyond the usual step."""
    excess_ns = sum(window.excess_ns for window in windows)
    return (total(windows, "step") - excess_ns) / max(counted(windows, "step"), 1)


def _share(windows: Sequence[Window], name: str) -> float:
    return total(windows, name) / max(total(windows, "step"), 1)
