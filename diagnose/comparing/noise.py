"""Is the difference more than noise? An interval of the ratio of two mean steps.

How far a run's own mean is off comes from its steps; how equal runs differ, from what bounds the step
(`diagnose.advice.timing`) and from several recordings of a side, if there are any. Both count by their degrees of
freedom.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import cache

from msgspec import Struct

from diagnose.advice.timing import LEAST_STEPS, between_runs, error_of, is_for_launches, means_of_blocks
from diagnose.contracts.baseline import Run
from diagnose.contracts.comparison import Basis, Part, PartKind, Range
from diagnose.statistics import NAMED, Spread, moderated, of_waiting, student, together

ALPHA = 0.05  # What an interval may be wrong.
WIDE = 0.1  # Half of an interval that is wider says nothing that helps (our choice).
DOUBLED = 2.0  # Times as long, from which on a part decides by itself (our choice).
ALIKE = 2.0  # Runs of a side may usually differ so much more than those of the other, to tell by both (our choice).


class Side(Struct, frozen=True):
    """The mean steps of one side's recordings, and how far each may be off."""

    means_ns: tuple[float, ...]
    errors: tuple[Spread | None, ...]  # Their standard errors; None where too few steps were timed.
    between: Spread  # How equal runs usually differ.
    blocks_ns: tuple[float, ...] = ()  # Means of blocks of steps, of all recordings.

    @property
    def mean_ns(self) -> float:
        """The mean over all recordings."""
        return statistics.fmean(self.means_ns)


def basis_of(before: Sequence[Run], after: Sequence[Run]) -> Basis:
    """What the interval comes from: several recordings of a side, else steps without a profiler if both have enough."""
    if len(before) > 1 or len(after) > 1:
        return Basis.RECORDINGS
    return Basis.UNPROFILED_STEPS if are_timed((*before, *after)) else Basis.RECORDED_STEPS


def are_timed(runs: Sequence[Run]) -> bool:
    """Whether all have enough steps without a profiler to compare these."""
    return all(len(run.unprofiled_ns) >= LEAST_STEPS for run in runs)


def side_of(runs: Sequence[Run], unprofiled: bool) -> Side:
    """The side, by its steps without a profiler or by the recorded ones."""
    times = [run.unprofiled_ns if unprofiled else run.times_ns for run in runs]
    usual = [
        between_runs(run.measure, run.spending, statistics.fmean(run.unprofiled_ns or run.times_ns), run.world_size)
        for run in runs
    ]
    between = Spread(statistics.fmean(one.share for one in usual), min(one.freedom for one in usual))
    blocks_ns = tuple(ns for some in times for ns in means_of_blocks(some))
    return Side(tuple(map(statistics.fmean, times)), tuple(map(error_of, times)), between, blocks_ns)


def difference(before: Side, after: Side) -> Range:
    """The difference of the mean steps, as a share of the step before, with its interval of 95 %."""
    ratio = after.mean_ns / before.mean_ns
    parts = list(_between(before, after))
    for side in (before, after):
        for error in side.errors:
            if error is None:
                return Range(None, ratio - 1, None)
            parts.append(((error.share / len(side.errors)) ** 2, error.freedom))
    error = together(parts)
    half = student(1 - ALPHA / 2, error.freedom) * error.share
    return Range(ratio * math.exp(-half) - 1, ratio - 1, ratio * math.exp(half) - 1)


def _between(before: Side, after: Side) -> Iterator[tuple[float, int]]:
    """Variances of the logarithm by how runs differ, and their degrees of freedom.
    Recordings tell by how much more than usual runs differ here: of both sides, if these are alike."""
    shares = [side.between.share for side in (before, after)]
    alike = max(shares) <= ALIKE * min(shares)
    for sides in [(before, after)] if alike else [(before,), (after,)]:
        scaled = [[math.log(mean) / side.between.share for mean in side.means_ns] for side in sides]
        here = moderated(Spread(1.0, min(side.between.freedom for side in sides)), scaled)
        yield here.share**2 * sum(side.between.share**2 / len(side.means_ns) for side in sides), here.freedom


def decided(share: Range, found: Sequence[Part], before: Side, after: Side) -> Range:
    """The interval, narrowed at its end next to zero if parts that are new, gone or doubled explain the difference, by
    more than parts of equal runs usually differ: noise between runs explains no such parts. That end is then what both
    the steps and these parts surely differ by. Unchanged if there are no such parts, or they do not suffice."""
    whole_ns, deciding = after.mean_ns - before.mean_ns, list(_deciding(found, before, after))
    explained_ns = sum(ns for ns, _ in deciding)
    shorter, longer = (before, after) if whole_ns > 0 else (after, before)
    least = least_ratio(shorter.blocks_ns, longer.blocks_ns)
    if share.low is None or share.high is None or least is None or explained_ns * whole_ns <= 0:
        return share
    error_ns = math.hypot(longer.mean_ns - least * shorter.mean_ns, *(own_ns for _, own_ns in deciding))
    near_ns = min(abs(whole_ns), abs(explained_ns)) - error_ns
    if near_ns <= 0:
        return share
    ratio = 1 + near_ns / shorter.mean_ns
    low, high = (ratio - 1, share.high) if whole_ns > 0 else (share.low, 1 / ratio - 1)
    return Range(max(share.low, low), share.likely, min(share.high, high))


def _deciding(found: Sequence[Part], before: Side, after: Side) -> Iterator[tuple[int, float]]:
    """(ns that it adds, by how much that may be off) of each part that is new, gone or doubled by more than noise.
    Not of idle time that ends with a launch: that doubles by chance."""
    for part in found:
        if part.kind in (PartKind.PROFILER, PartKind.NOT_KNOWN) or is_for_launches(part.kind.value, part.of):
            continue
        both = (part.before_ns, before), (part.after_ns, after)
        (less_ns, less), (more_ns, more) = sorted(both, key=lambda one: one[0])
        down_ns = -math.expm1(-_half(part.kind, more_ns, more)) * more_ns
        error_ns = math.hypot(down_ns, _half(part.kind, less_ns, less) * less_ns)
        if more_ns >= DOUBLED * less_ns and more_ns - less_ns > error_ns:
            yield part.ns, error_ns


def _half(kind: PartKind, ns: int, side: Side) -> float:
    """Half the interval of the logarithm of a part's time. On CPUs it is unknown: each part may differ as the step."""
    on_device = dict.fromkeys((PartKind.COMPUTE, PartKind.WORK_NOT_RECORDED), of_waiting(0.0))
    usual = {PartKind.HOST: side.between, **on_device}
    whole = usual.get(kind, Spread(NAMED.share * ns / side.mean_ns, NAMED.freedom))
    per_step = student(1 - ALPHA / 2, whole.freedom) * whole.share / math.sqrt(len(side.means_ns))
    return per_step * side.mean_ns / max(ns, 1)


def least_ratio(before: Sequence[float], after: Sequence[float]) -> float | None:
    """The low end of the 95 % interval of how many times as long `after` is; None of too few.
    It is that ratio of all pairs which the test of Mann and Whitney allows (Hodges and Lehmann, Annals of Mathematical
    Statistics 34 (1963)): no outlier moves it."""
    most = ALPHA / 2 * math.comb(len(before) + len(after), len(before))
    allowed, orders = 0, 0
    while (orders := orders + _orders(allowed, len(before), len(after))) <= most:
        allowed += 1
    return sorted(second / first for first in before for second in after)[allowed - 1] if allowed else None


@cache
def _orders(inversions: int, first: int, second: int) -> int:
    """In how many orders of `first` things of one kind and `second` of another exactly `inversions` pairs of both kinds
    are the wrong way round."""
    if inversions < 0 or min(first, second) < 0:
        return 0
    if not first or not second:
        return int(inversions == 0)
    return _orders(inversions - second, first - 1, second) + _orders(inversions, first, second - 1)


def visible_share(share: Range) -> float | None:
    """Half of the interval; None if there is none."""
    return None if share.low is None or share.high is None else (share.high - share.low) / 2
