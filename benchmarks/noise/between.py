"""How mean steps of runs of one script differ, from the blocks in which truth was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from benchmarks.planted_cases import cases, truths
from diagnose.advice.timing import Spread


def blocks() -> list[tuple[int, ...]]:
    """Mean steps of the runs of each way of each planted case on a CPU: five runs each, in turn with the other way."""
    told = [one for case in cases() for one in truths(case).values() if not one.machine.gpu]
    return [tuple(ns) for one in told for ns in (one.bad_ns, one.fixed_ns)]


def fitted(groups: Sequence[Sequence[float]]) -> Spread:
    """The usual spread and its degrees of freedom, by the moments of log variances.

    Groups of the same size whose variances vary as an inverse chi-squared distribution does: Smyth (2004), section 6.2.
    """
    (size,) = {len(group) for group in groups}
    own = (size - 1) / 2
    variances = [statistics.variance(map(math.log, group)) for group in groups]
    logs = [math.log(variance) - digamma(own) + math.log(own) for variance in variances]
    half = solved(trigamma, statistics.variance(logs) - trigamma(own))
    return Spread(math.exp((statistics.fmean(logs) + digamma(half) - math.log(half)) / 2), round(2 * half))


def solved(falling: Callable[[float], float], value: float) -> float:
    """Where a falling function has a value."""
    low, high = 1e-3, 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if falling(middle) > value else (low, middle)
    return low


LARGE = 20.0
"""From which on the series of Abramowitz and Stegun 6.3.18 and 6.4.12 are exact to ten digits."""


def digamma(x: float) -> float:
    """The derivative of the logarithm of the gamma function."""
    if x < LARGE:
        return digamma(x + 1) - 1 / x
    return math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4)


def trigamma(x: float) -> float:
    """Its derivative."""
    if x < LARGE:
        return trigamma(x + 1) + 1 / x**2
    return 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5)
