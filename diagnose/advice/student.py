"""Student's t-distribution, and the spread that it is taken with. Of the standard library alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Spread:
    """How far something measured may be off."""

    share: float
    """Its standard deviation, or that of a mean, over the mean."""
    freedom: int
    """Degrees of freedom that it is known with."""


def moderated(prior: Spread, groups: Sequence[Sequence[float]]) -> Spread:
    """What is known beforehand of how values spread within groups, and what the groups show of it.

    `groups`: logarithms of what was measured, of equal things within each. Variances count by their degrees of freedom:
    Smyth, Statistical Applications in Genetics and Molecular Biology 3 (2004), article 3.
    """
    known = [(statistics.variance(group), len(group) - 1) for group in groups if len(group) > 1]
    freedom = prior.freedom + sum(own for _, own in known)
    seen = sum(variance * own for variance, own in known)
    return Spread(math.sqrt((prior.share**2 * prior.freedom + seen) / freedom), freedom)


@lru_cache
def student(probability: float, freedom: int) -> float:
    """The quantile of Student's t for whole degrees of freedom and a probability over 1/2.

    The distribution has a closed form for these (Abramowitz and Stegun 26.7.3 and 26.7.4), so that no scipy is needed.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(200):
        angle = (low + high) / 2
        low, high = (angle, high) if _inside(angle, freedom) < 2 * probability - 1 else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _inside(angle: float, freedom: int) -> float:
    """The probability that |t| is below sqrt(freedom) * tan(angle)."""
    odd, cosine = freedom % 2, math.cos(angle)
    term = cosine if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
