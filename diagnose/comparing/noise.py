"""Is the difference more than noise? An interval of the ratio of two mean steps.

Steps of one run tell how far its own mean is off. They do not tell how far another run of the same script would be
off: memory lies elsewhere, cores and clocks are others. That is known from many runs of trainings (`BETWEEN`), and from
several recordings of a side, if there are any; both count by their degrees of freedom, as variances are moderated in
Smyth, Statistical Applications in Genetics and Molecular Biology 3 (2004), article 3.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.advice.student import student
from diagnose.advice.timing import LEAST_STEPS, Spread, error_of
from diagnose.contracts.baseline import Run
from diagnose.contracts.comparison import Basis, Range

ALPHA = 0.05
"""What an interval may be wrong."""

WIDE = 0.1
"""Half of an interval that is wider says nothing that helps (our choice)."""


BETWEEN = Spread(0.024, 2)
"""How mean steps of runs of one script usually differ: fitted to 720 groups of five runs of planted cases on CPUs, by
`benchmarks.noise.between` (0.0248 of the 474 that are kept). Trainings differ in it so much that it counts for two
degrees of freedom. No runs on GPUs were measured so: it is taken for these too."""


@dataclass(frozen=True)
class Side:
    """The mean steps of one side's recordings, and how far each may be off."""

    means_ns: tuple[float, ...]
    errors: tuple[Spread | None, ...]
    """Their standard errors; None where too few steps were timed."""

    @property
    def mean_ns(self) -> float:
        """Of all recordings."""
        return statistics.fmean(self.means_ns)


def basis_of(before: Sequence[Run], after: Sequence[Run]) -> Basis:
    """What both sides have."""
    if len(before) > 1 or len(after) > 1:
        return Basis.RECORDINGS
    timed = all(len(run.unprofiled_ns) >= LEAST_STEPS for run in (*before, *after))
    return Basis.UNPROFILED_STEPS if timed else Basis.RECORDED_STEPS


def times_of(runs: Sequence[Run], unprofiled: bool) -> Side:
    """The side, by its steps without a profiler or by the recorded ones."""
    times = [run.unprofiled_ns if unprofiled else run.times_ns for run in runs]
    return Side(tuple(map(statistics.fmean, times)), tuple(map(error_of, times)))


def difference(before: Side, after: Side, between: Spread) -> Range:
    """The difference of the mean steps, as a share of the step before, with its interval of 95 %.

    Degrees of freedom are those of Satterthwaite, Biometrics Bulletin 2 (1946), rounded down.
    """
    ratio = after.mean_ns / before.mean_ns
    sides = (before, after)
    errors = [(error, len(side.errors)) for side in sides for error in side.errors]
    logs = [[math.log(mean) for mean in side.means_ns] for side in sides]
    seen = sum(statistics.variance(log) * (len(log) - 1) for log in logs if len(log) > 1)
    freedom = between.freedom + sum(len(log) - 1 for log in logs)
    usual = (between.freedom * between.share**2 + seen) / freedom
    parts = [(usual * sum(1 / len(log) for log in logs), freedom)]
    for error, count in errors:
        if error is None:
            return Range(None, ratio - 1, None)
        parts.append(((error.share / count) ** 2, error.freedom))
    variance = sum(part for part, _ in parts)
    together = variance**2 / sum(part**2 / own for part, own in parts)
    half = student(1 - ALPHA / 2, max(math.floor(together + 1e-9), 1)) * math.sqrt(variance)
    return Range(ratio * math.exp(-half) - 1, ratio - 1, ratio * math.exp(half) - 1)


def visible_share(share: Range) -> float | None:
    """Half of the interval; None if there is none."""
    return None if share.low is None or share.high is None else (share.high - share.low) / 2
