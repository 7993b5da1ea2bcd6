"""Intervals of speed-ups from pairs of arms, and when enough has been measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from diagnose.advice import equal_runs
from diagnose.advice.student import Spread, moderated, student
from diagnose.capture.agent import intervals
from diagnose.capture.agent.intervals import ALPHA_OF_LOOK as ALPHA_OF_LOOK
from diagnose.capture.agent.intervals import MARGIN, NARROW
from diagnose.capture.agent.intervals import MOST_PAIRS as MOST_PAIRS
from diagnose.capture.agent.intervals import schedule as schedule
from diagnose.contracts.trials import Range, Verdict

OWN = 0.2
"""Share of what a look may be wrong that is for the interval by the pairs alone: on a machine that is quieter than
others it gets narrow all the same (our choice)."""

LEAST_FOR_HOPELESS = 5
"""Pairs, before which their spread is not known well enough to give up (our choice)."""


def interval(log_ratios: Sequence[float], others: Sequence[Sequence[float]] = ()) -> Range:
    """The speed-up of a fix, as `diagnose.capture.agent.intervals` says it."""
    found = intervals.interval(log_ratios, others)
    return Range(found.low, found.likely, found.high)


def of_runs(log_ratios: Sequence[float], between: Spread, others: Sequence[Sequence[float]] = ()) -> Range:
    """The speed-up of a fix by pairs of runs: Student's t on the logarithms of without / with. Takes two pairs or more.

    `between`: how equal runs usually differ; `others`: log ratios of other fixes of the session, each of which has a
    mean of its own. Where pairs spread far less than these let expect, their own spread alone counts: of both intervals
    it is the narrower one, and they share what the look may be wrong.
    """
    prior = equal_runs.in_session(equal_runs.of_pairs(between), others)
    spreads = (moderated(prior, [log_ratios]), 1 - OWN), (moderated(Spread(0.0, 0), [log_ratios]), OWN)
    error = min(student(1 - part * ALPHA_OF_LOOK / 2, found.freedom) * found.share for found, part in spreads)
    mean, half = statistics.fmean(log_ratios), error / math.sqrt(len(log_ratios))
    return Range(math.exp(mean - half), math.exp(mean), math.exp(mean + half))


def like_pairs(step_ns: Sequence[float]) -> list[float]:
    """Logarithms of steps of equal runs, scaled so that they spread as log ratios of pairs do: for `others`."""
    return [math.sqrt(2) * math.log(ns) for ns in step_ns]


def enough(measured: Range) -> bool:
    """Whether more pairs would not change what to do."""
    return intervals.enough(measured.low, measured.high)


def verdict(measured: Range) -> Verdict:
    """By an interval alone."""
    if not intervals.decides(measured.low, measured.high):
        return "inconclusive"
    if measured.low > 1:
        return "keep"
    if measured.high < 1:
        return "slower"
    return "no_gain" if enough(measured) else "inconclusive"


def hopeless(log_ratios: Sequence[float]) -> bool:
    """Whether even twice the most pairs would not be enough: equal arms differ too much. One bad arm is no sign."""
    if len(log_ratios) < LEAST_FOR_HOPELESS:
        return False
    spread, effect = statistics.stdev(log_ratios), abs(statistics.fmean(log_ratios))
    wanted = max(NARROW / 2, effect - MARGIN)
    needed = (student(1 - ALPHA_OF_LOOK / 2, 2 * MOST_PAIRS) * spread / wanted) ** 2
    return needed > 2 * MOST_PAIRS


def spread(log_ratios: Sequence[float]) -> float:
    """By which share pairs differ: the standard deviation of their logarithms."""
    return statistics.stdev(log_ratios)


def noise(step_ns: Sequence[float]) -> float:
    """By which share the steps of equal arms differ: the standard deviation of their logarithms."""
    return statistics.stdev(map(math.log, step_ns))
