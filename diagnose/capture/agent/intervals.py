"""Intervals of speed-ups from pairs of measurements, and when enough of them have been made: what screening in one
process and trials in processes of their own share. Of the standard library alone, as all of the agent.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import sys
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ALPHA = 0.05
"""What all looks at one fix together may be wrong: intervals are of 95 %."""

NARROW = 0.02
"""Width of an interval, as a share, at which more pairs tell nothing new (trials.md)."""

MARGIN = 0.01
"""By which an interval that excludes 1 does so clearly (our choice)."""

MOST_PAIRS = 12
"""Of one fix (our choice)."""

GROWTH = 1.5
"""Times as many pairs at each look as at the one before: few looks cost little of ALPHA (our choice)."""

UNLIKE = 2.0
"""Times the spread of all others, from which on pairs are judged by their own spread alone (our choice)."""


class Interval(NamedTuple):
    """A speed-up and how far it may be off."""

    low: float
    likely: float
    high: float


def look_of(pairs: int, least: int, most: int = MOST_PAIRS) -> int:
    """The number of the look at so many pairs, from 1; between two looks it is that of the later one."""
    return bisect_left(schedule(least, most), pairs) + 1


def schedule(least: int, most: int = MOST_PAIRS) -> list[int]:
    """After how many pairs it is looked: 3, 5, 8 and 12."""
    numbers = [least]
    while numbers[-1] < most:
        numbers.append(min(math.ceil(GROWTH * numbers[-1]), most))
    return numbers


def alpha_of(look: int) -> float:
    """What the look of this number, from 1, may be wrong.

    The shares 1/2, 1/6, 1/12, ... of ALPHA add up to all of it. So by Boole's inequality all looks hold together, and
    it may be stopped at any: alpha spending, as in Lan and DeMets, Biometrika 70 (1983).
    """
    return ALPHA / (look * (look + 1))


def interval(log_ratios: Sequence[float], look: int, others: Sequence[Sequence[float]] = ()) -> Interval:
    """The speed-up of a fix, paired: Student's t on the logarithms of without / with. Takes two pairs or more.

    `others`: those of other fixes of the session, each of which has a mean of its own: pairs of one machine and one
    training spread alike, so that few pairs of one fix are judged by all.
    """
    mean = statistics.fmean(log_ratios)
    variance, freedom = _pooled(log_ratios, [one for one in others if len(one) > 1])
    half = student(1 - alpha_of(look) / 2, freedom) * math.sqrt(variance / len(log_ratios))
    return Interval(math.exp(mean - half), math.exp(mean), math.exp(mean + half))


def _pooled(own: Sequence[float], others: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The variance within all, and its degrees of freedom; of `own` alone where that spreads far more."""
    variance, freedom = statistics.variance(own), len(own) - 1
    if not others:
        return variance, freedom
    freedom_of_others = sum(len(one) - 1 for one in others)
    of_others = sum((len(one) - 1) * statistics.variance(one) for one in others) / freedom_of_others
    if variance > UNLIKE**2 * of_others:
        return variance, freedom
    together = freedom + freedom_of_others
    return (freedom * variance + freedom_of_others * of_others) / together, together


def enough(low: float, high: float) -> bool:
    """Whether more pairs would not change what to do."""
    return high / low < 1 + NARROW or low > 1 + MARGIN or high < 1 - MARGIN


def _student() -> Any:
    """`diagnose.advice.student`, which stands alone; the process need not have `diagnose` installed."""
    if __package__ and __package__.startswith("diagnose."):
        return importlib.import_module("diagnose.advice.student")
    name = "diagnose_student"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "advice" / "student.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def student(probability: float, freedom: int) -> float:
    """The quantile of Student's t, as `diagnose.advice.student` has it."""
    found: float = _student().student(probability, freedom)
    return found
