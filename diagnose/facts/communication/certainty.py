"""Is what one rank takes longer than others more than chance?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_T_995 = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250)
"""Quantiles of Student's t for 1 to 9 degrees of freedom: beyond them is chance in 1 of 200 cases. One of several ranks
is the longest by chance as well, so that it must be rare."""

DEVICE_NOISE, CPU_NOISE = 0.05, 0.25
"""Of the time a rank takes by itself: ranks of equal work differ by as much all the time. Devices of one model do by some
per cent; of two ranks on two shared cores one took up to 0.22 longer."""


def is_certain(excess_ns: npt.NDArray[np.float64]) -> bool:
    """Whether what is positive on average is so beyond how it differs from step to step. False for a single step."""
    count = len(excess_ns)
    if count < 2:
        return False
    error = float(excess_ns.std(ddof=1)) / np.sqrt(count)
    return bool(excess_ns.mean() > _T_995[min(count - 2, len(_T_995) - 1)] * error)


def noise(on_cpu: bool) -> float:
    """Share of a rank's own time by which equal ranks differ."""
    return CPU_NOISE if on_cpu else DEVICE_NOISE
