"""Student's t-distribution."""

from __future__ import annotations

import math


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
