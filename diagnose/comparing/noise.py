"""Is the difference more than noise? An interval of the ratio of two mean steps.

How far a run's own mean is off comes from its steps; how equal runs differ, from what bounds the step
(`diagnose.advice.timing`) and from several recordings of a side, if there are any. Both count by their degrees of
freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diagnose.advice.timing import LEAST_STEPS, between_runs, error_of
from diagnose.contracts.baseline import Run
from diagnose.contracts.comparison import Basis, Range
from diagnose.statistics import Spread, moderated, student

ALPHA = 0.05  # What an interval may be wrong.
WIDE = 0.1  # Half of an interval that is wider says nothing that helps (our choice).

ALIKE = 2.0
"""Times as far as those of the other side may runs of a side usually differ, to tell how these do (our choice)."""


@dataclass(frozen=True)
class Side:
    """The mean steps of one side's recordings, and how far each may be off."""

    means_ns: tuple[float, ...]
    errors: tuple[Spread | None, ...]  # Their standard errors; None where too few steps were timed.
    between: Spread  # How equal runs usually differ.

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


def side_of(runs: Sequence[Run], unprofiled: bool) -> Side:
    """The side, by its steps without a profiler or by the recorded ones."""
    times = [run.unprofiled_ns if unprofiled else run.times_ns for run in runs]
    usual = [between_of(run) for run in runs]
    between = Spread(statistics.fmean(one.share for one in usual), min(one.freedom for one in usual))
    return Side(tuple(map(statistics.fmean, times)), tuple(map(error_of, times)), between)


def between_of(run: Run) -> Spread:
    """How equal runs of it usually differ."""
    step_ns = statistics.fmean(run.unprofiled_ns or run.times_ns)
    return between_runs(run.measure, run.spending, step_ns, run.world_size)


def difference(before: Side, after: Side) -> Range:
    """The difference of the mean steps, as a share of the step before, with its interval of 95 %.

    Degrees of freedom are those of Satterthwaite, Biometrics Bulletin 2 (1946), rounded down.
    """
    ratio = after.mean_ns / before.mean_ns
    parts = list(_between(before, after))
    for side in (before, after):
        for error in side.errors:
            if error is None:
                return Range(None, ratio - 1, None)
            parts.append(((error.share / len(side.errors)) ** 2, error.freedom))
    variance = sum(part for part, _ in parts)
    together = variance**2 / sum(part**2 / own for part, own in parts)
    half = student(1 - ALPHA / 2, max(math.floor(together + 1e-9), 1)) * math.sqrt(variance)
    return Range(ratio * math.exp(-half) - 1, ratio - 1, ratio * math.exp(half) - 1)


def _between(before: Side, after: Side) -> Iterator[tuple[float, int]]:
    """Variances of the logarithm by how runs differ, and their degrees of freedom.

    Recordings tell by how much more than usual runs differ here: of both sides, if these are alike.
    """
    shares = [side.between.share for side in (before, after)]
    alike = max(shares) <= ALIKE * min(shares)
    for sides in [(before, after)] if alike else [(before,), (after,)]:
        scaled = [[math.log(mean) / side.between.share for mean in side.means_ns] for side in sides]
        here = moderated(Spread(1.0, min(side.between.freedom for side in sides)), scaled)
        yield here.share**2 * sum(side.between.share**2 / len(side.means_ns) for side in sides), here.freedom


def visible_share(share: Range) -> float | None:
    """Half of the interval; None if there is none."""
    return None if share.low is None or share.high is None else (share.high - share.low) / 2
