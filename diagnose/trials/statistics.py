"""Intervals of speed-ups from pairs of arms, and when enough has been measured."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence

from diagnose.advice.student import student
from diagnose.contracts.trials import Range

ALPHA = 0.05
"""What all looks at one fix together may be wrong: intervals are of 95 %."""

NARROW = 0.02
"""Width of an interval, as a share, at which more pairs tell nothing new (trials.md)."""

MARGIN = 0.01
"""By which an interval that excludes 1 does so clearly (our choice)."""

MOST_PAIRS = 12
"""Of one fix (our choice)."""


LEAST_FOR_HOPELESS = 5
"""Pairs, before which their spread is not known well enough to give up (our choice)."""

GROWTH = 1.5
"""Times as many pairs at each look as at the one before: few looks cost little of ALPHA (our choice)."""


def look_of(pairs: int, least: int) -> int:
    """The number of the look at so many pairs, from 1; between two looks it is that of the later one."""
    return bisect_left(schedule(least), pairs) + 1


def schedule(least: int) -> list[int]:
    """After how many pairs it is looked: 3, 5, 8 and 12."""
    numbers = [least]
    while numbers[-1] < MOST_PAIRS:
        numbers.append(min(math.ceil(GROWTH * numbers[-1]), MOST_PAIRS))
    return numbers


def alpha_of(look: int) -> float:
    """What the look of this number, from 1, may be wrong.

    The shares 1/2, 1/6, 1/12, ... of ALPHA add up to all of it. So by Boole's inequality all looks hold together, and
    it may be stopped at any: alpha spending, as in Lan and DeMets, Biometrika 70 (1983).
    """
    return ALPHA / (look * (look + 1))


def interval(log_ratios: Sequence[float], look: int) -> Range:
    """The speed-up of a fix, paired: Student's t on the logarithms of without / with. Takes two pairs or more."""
    mean, half = statistics.fmean(log_ratios), _half_width(log_ratios, look)
    return Range(math.exp(mean - half), math.exp(mean), math.exp(mean + half))


def enough(measured: Range) -> bool:
    """Whether more pairs would not change what to do."""
    return measured.high / measured.low < 1 + NARROW or measured.low > 1 + MARGIN or measured.high < 1 - MARGIN


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


def _half_width(log_ratios: Sequence[float], look: int) -> float:
    error = statistics.stdev(log_ratios) / math.sqrt(len(log_ratios))
    return student(1 - alpha_of(look) / 2, len(log_ratios) - 1) * error
