"""Does a quantity rise from one step to the next, or does it only vary?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

RARE_TIME = 0.001
"""Chance of a rise that is taken for one: of times, which vary by what else the machine does (our choice)."""

RISE = 0.1  # Of the beginning, or of the median, by so much at least what grows is more at the end (our choice).


@dataclass(frozen=True)
class Trend:
    """How values change with their position."""

    first: float
    last: float
    each: float  # From one to the next: the median of the slopes between all pairs (Theil and Sen).
    chance: float  # That values in an order of no meaning would rise as often: the exact distribution of Kendall's tau.


def trend(values: Sequence[float]) -> Trend:
    """Of one value at least. Equal values count as if they fell.

    How many pairs of n values fall, in an order of no meaning, is the sum of independent uniform numbers below 1, 2,
    ..., n (Kendall 1938).

    >>> trend([3, 4, 5, 7])
    Trend(first=3, last=7, each=1.2..., chance=0.041...)
    """
    slopes = [(values[b] - values[a]) / (b - a) for a, b in combinations(range(len(values)), 2)]
    falls = sum(slope <= 0 for slope in slopes)
    share = np.ones(1)
    for count in range(2, len(values) + 1):
        share = np.convolve(share, np.full(count, 1 / count))
    return Trend(values[0], values[-1], float(np.median(slopes or 0.0)), float(share[: falls + 1].sum()))
