"""Intervals of speed-ups from pairs of arms, and when enough has been measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from diagnose.advice.student import student
from diagnose.capture.agent import intervals
from diagnose.capture.agent.intervals import MARGIN, NARROW
from diagnose.capture.agent.intervals import MOST_PAIRS as MOST_PAIRS
from diagnose.capture.agent.intervals import alpha_of as alpha_of
from diagnose.capture.agent.intervals import look_of as look_of
from diagnose.capture.agent.intervals import schedule as schedule
from diagnose.contracts.trials import Range, Verdict

LEAST_FOR_HOPELESS = 5
"""Pairs, before which their spread is not known well enough to give up (our choice)."""


def interval(log_ratios: Sequence[float], look: int, others: Sequence[Sequence[float]] = ()) -> Range:
    """The speed-up of a fix, as `diagnose.capture.agent.intervals` says it."""
    found = intervals.interval(log_ratios, look, others)
    return Range(found.low, found.likely, found.high)


def enough(measured: Range) -> bool:
    """Whether more pairs would not change what to do."""
    return intervals.enough(measured.low, measured.high)


def verdict(measured: Range) -> Verdict:
    """By an interval alone."""
    if measured.low > 1:
        return "keep"
    if measured.high < 1:
        return "slower"
    return "no_gain" if enough(measured) else "inconclusive"


def hopeless(log_ratios: Sequence[float], look: int) -> bool:
    """Whether even twice the most pairs would not be enough: equal arms differ too much. One bad arm is no sign."""
    if len(log_ratios) < LEAST_FOR_HOPELESS:
        return False
    spread, effect = statistics.stdev(log_ratios), abs(statistics.fmean(log_ratios))
    wanted = max(NARROW / 2, effect - MARGIN)
    needed = (student(1 - alpha_of(look) / 2, 2 * MOST_PAIRS) * spread / wanted) ** 2
    return needed > 2 * MOST_PAIRS


def spread(log_ratios: Sequence[float]) -> float:
    """By which share pairs differ: the standard deviation of their logarithms."""
    return statistics.stdev(log_ratios)


def noise(step_ns: Sequence[float]) -> float:
    """By which share the steps of equal arms differ: the standard deviation of their logarithms."""
    return statistics.stdev(map(math.log, step_ns))
