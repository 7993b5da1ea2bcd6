"""Steps that take over three times the usual one: how often, at which period, and what of them is longer."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from diagnose.facts.core.base import Missing
from diagnose.facts.watched.base import RunFacts, run_fact
from diagnose.facts.watched.series import OTHER_CODE, PARTS
from diagnose.trace.run_log import RunLog, Window

LEAST_OUTLIERS, REGULAR, MOSTLY = 5, 0.6, 0.2
"""Outliers, the share of them that must come at the period, and that of steps above which they are no outliers but
another kind of steps, or a machine that others use (our choice)."""

EXPLAINS = 0.5  # Of what an outlier takes beyond the usual step, the share from which on a part is why (our choice).


class Outliers(Struct, frozen=True):
    """Those of a run."""

    count: int
    excess_ns: int  # What they take beyond usual steps.
    period_steps: int | None  # None: they come at no period.
    regular: float  # Share of them that came so many steps after the one before, by one step more or less.
    part: str  # Of PARTS or OTHER_CODE: what is longer in them; "" if that is not known.


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
    """The commonest distance between outliers, by one step more or less, if most have it."""
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

    Waiting is told of these steps. Of other parts the longest of each window is: likely it was in the same step.
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
            waited = longest.loader_ns if part == "loader" and longest is not None else window.of(part).most_ns
            by_part[part] += max(min(waited - _mean(window, part), excess), 0)
    if not beyond:
        return ""
    part, most = max(by_part.items(), key=lambda pair: pair[1])
    if most >= EXPLAINS * beyond:
        return part
    return OTHER_CODE if sum(by_part.values()) < EXPLAINS * beyond else ""


def _mean(window: Window, part: str) -> float:
    column = window.of(part)
    return (column.sum_ns - column.most_ns) / max(window.timed - 1, 1) if column.count else 0.0
