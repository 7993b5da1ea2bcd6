"""Is what one rank takes longer than others more than chance?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.facts.core.base import Facts, Missing
from diagnose.trace.model import Context

_T_995 = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250)
"""Quantiles of Student's t for 1 to 9 degrees of freedom: beyond them is chance in 1 of 200 cases. One of several ranks
is the longest by chance as well, so that it must be rare."""

DEVICE_NOISE, CPU_NOISE, SHARED_NOISE = 0.05, 0.25, 0.5
"""Of what a rank takes by itself: ranks of equal work differ by as much all the time. Devices of one model do by some
per cent; of two ranks on two shared cores one took up to 0.22 longer, and 0.33 where both cores were one."""

SIBLINGS = 2
"""Logical cores that may be one."""


def is_certain(excess_ns: npt.NDArray[np.float64]) -> bool:
    """Whether what is positive on average is so beyond how it differs from step to step. False for a single step."""
    count = len(excess_ns)
    if count < 2:
        return False
    error = float(excess_ns.std(ddof=1)) / np.sqrt(count)
    return bool(excess_ns.mean() > _T_995[min(count - 2, len(_T_995) - 1)] * error)


def require_steps(excess_ns: npt.NDArray[np.float64], least_ns: float) -> None:
    """Raises Missing if so much is known of a single step only: it may be chance, and it may be none."""
    if len(excess_ns) < 2 and float(excess_ns.mean()) >= least_ns:
        raise Missing("whether ranks differ by more than chance", "Record several steps, and mark them.")


def noise(facts: Facts, on_cpu: bool) -> float:
    """Share of a rank's own time by which equal ranks differ."""
    if not on_cpu:
        return DEVICE_NOISE
    context = facts.rank.context
    return SHARED_NOISE if context is not None and cores_shared(context) else CPU_NOISE


def cores_shared(context: Context) -> bool:
    """Whether the ranks of a machine keep more of its cores busy than are surely cores of their own.

    What a rank keeps busy was measured in the steps without the profiler; in recordings that do not say, it is taken
    for as many cores as the rank has threads. False if neither is known.
    """
    cpus, alone = context.host.cpus_allowed, context.rank.unprofiled
    busy = alone.busy_cores if alone is not None and alone.cpu_ns is not None else context.rank.flags.threads
    return cpus is not None and busy is not None and cpus < SIBLINGS * busy * max(context.ranks, 1)
