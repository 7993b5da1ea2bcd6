"""Intervals of speed-ups from pairs of measurements, and when enough of them have been made: what screening in one
process and trials in processes of their own share. Of the standard library alone, as all of the agent.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ALPHA_OF_LOOK = 0.01
"""What each look at one fix may be wrong: the six after 2, 3, 5, 8, 12 and 18 pairs of runs are so in 4 % together, the
seven after 5 to 60 pairs of blocks in 4.5 %, as they see the same pairs (Pocock, Biometrika 64, 1977; for these numbers
by simulation). The rest is for spreads that are not known well: intervals are of 95 %."""

NARROW = 0.02
"""Width of an interval, as a share, at which more pairs tell nothing new (trials.md)."""

MARGIN = 0.01
"""A gain that is worth a change: an interval all above it tells enough, and one all below it (our choice)."""

WIDE = 4.0
"""Times its low end, from which on an interval's high end shows that something else was at work: such an interval
decides nothing, wherever it lies (our choice)."""

MOST_PAIRS = 18
"""Of one fix (our choice)."""

GROWTH = 1.5
"""Times as many pairs at each look as at the one before (our choice)."""

UNLIKE = 1.5
"""Times the spread of all others, from which on pairs are judged by their own spread alone (our choice)."""


MOST_WAITED = 0.9
"""Share of a step that is taken for waiting at most: what is left of others is too short to be told (our choice)."""


LEAST_WAITS = 3
"""Pairs, of fewer of which it is not known whether one side waits more (our choice)."""

OF_THE_FIX = 6.0
"""Standard errors by which sides wait differently if that is of the fix: far more than make a claim (our choice)."""

Pair = tuple[float, float]
"""Of a measurement without and one with a fix."""


class Interval(NamedTuple):
    """A speed-up and how far it may be off."""

    low: float
    likely: float
    high: float


def schedule(least: int, most: int = MOST_PAIRS) -> list[int]:
    """After how many pairs it is looked: 2, 3, 5, 8, 12 and 18."""
    numbers = [least]
    while numbers[-1] < most:
        numbers.append(min(math.ceil(GROWTH * numbers[-1]), most))
    return numbers


def interval(log_ratios: Sequence[float], others: Sequence[Sequence[float]] = ()) -> Interval:
    """The speed-up of a fix, as a look at it says: Student's t on the logarithms of without / with, two or more.

    `others`: those of other fixes of the session, each of which has a mean of its own: pairs of one machine and one
    training spread alike, so that few pairs of one fix are judged by all.
    """
    mean = statistics.fmean(log_ratios)
    variance, freedom = _pooled(log_ratios, [one for one in others if len(one) > 1])
    half = student(1 - ALPHA_OF_LOOK / 2, freedom) * math.sqrt(variance / len(log_ratios))
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


def wait_alike(pairs: Sequence[Pair], waited: Sequence[Pair]) -> list[Pair]:
    """Steps without and with a fix, as if each measurement had waited for a CPU as long as they usually do.

    `waited`: shares of their time. What differs from one measurement to the other is of other processes. If one side
    waits more than the other throughout, as where a fix changes how many threads there are, that is of the fix: then,
    and of fewer than three pairs, all stays as it is.
    """
    apart = [without - changed for without, changed in waited]
    if len(apart) < LEAST_WAITS or abs(statistics.fmean(apart)) > OF_THE_FIX * _error(apart):
        return list(pairs)
    shares = [share for pair in waited for share in pair]
    all_ns = [ns for pair in pairs for ns in pair]
    usual_ns = statistics.median(ns * share for ns, share in zip(all_ns, shares, strict=True))
    return [
        (without * (1 - first) + usual_ns, changed * (1 - second) + usual_ns)
        for (without, changed), (first, second) in zip(pairs, waited, strict=True)
    ]


def _error(some: Sequence[float]) -> float:
    return statistics.stdev(some) / math.sqrt(len(some))


def waited_share(waited_ns: float, step_ns: float) -> float:
    """Of a step, at most MOST_WAITED."""
    return min(waited_ns / step_ns, MOST_WAITED)


def enough(low: float, high: float) -> bool:
    """Whether more pairs would not change what to do."""
    return high / low < 1 + NARROW or (decides(low, high) and (low > 1 + MARGIN or high < 1 + MARGIN))


def decides(low: float, high: float) -> bool:
    """Whether an interval is narrow enough to tell that a fix pays, or that it costs."""
    return high / low < WIDE


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
