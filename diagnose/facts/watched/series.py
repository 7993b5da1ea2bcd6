"""Stretches of a run in order, and whether what is measured in them rises, slowly or at once."""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Missing
from diagnose.facts.run.growth import RARE_TIME, RISE, trend
from diagnose.facts.watched.log import OTHER_CODE, PARTS, RunFacts, groups, quantile_ns, run_fact
from diagnose.facts.watched.steps import steady
from diagnose.trace.run_log import RunLog, Window

GROUPS, MOMENTS, LEAST_GROUPS = 24, 48, 7
"""Into how many a run is put together to see whether something grows, to see when it changed, and at least (our
choice): so few hardly depend on each other, as neighbouring steps do. Of six no order is as rare as RARE_TIME (1 in
720), of seven one is (1 in 5,040)."""

LEAST_APART = 12
"""Values that hang together are averaged in pairs, down to so many: a rise of 12 in order is no chance (our choice)."""
LEAST_TO_CHANGE = 17  # Of fewer values no order is as rare as RARE_TIME wherever they may have changed.
TOO_FEW = "the log needs at least {} windows of one second or longer"
T = TypeVar("T")
FloatArray = npt.NDArray[np.float64]

END = 0.25  # Share of the groups that stand for the beginning and the end of what grows, three at least (our choice).


class Stretch(Struct, frozen=True):
    """Some steps in a row."""

    first_step: int
    steps: int
    began_ns: int
    ended_ns: int
    step_ns: float  # Of a usual step: without what outliers take beyond it.
    pause_ns: float  # What the mean step takes beyond the median one, with pauses between steps.
    parts_ns: dict[str, float]  # Of the mean step, by PARTS and OTHER_CODE.
    windows: tuple[Window, ...]  # Of the log; none where steps are known one by one.


class Risen(Struct, frozen=True):
    """Values that rise with their position."""

    begin: float  # Of a line through them, but not below the least of them.
    first: float  # Middle of those at the beginning (see `ends`).
    last: float  # Middle of those at the end.
    each: float  # From one to the next.
    chance: float  # That values in an order of no meaning would rise as much.


class Changed(Struct, frozen=True):
    """Values that are more from one position on."""

    at: int  # The first position that has more.
    before: float  # Median before it.
    after: float  # Median from it on.
    chance: float  # That values in an order of no meaning would differ as much.


@run_fact
def stretches(run: RunFacts) -> tuple[list[Stretch], list[Stretch]]:
    """The run but a slow first epoch, in 24 stretches at most, and in 48. Missing if these are fewer than 7."""
    return _stretches(run, GROUPS), _stretches(run, MOMENTS)


def _stretches(run: RunFacts, most: int) -> list[Stretch]:
    """At most so many stretches of windows; where these are too few, those of the first steps."""
    found = [_stretch(group) for group in groups([one for one in steady(run) if one.timed], most)]
    found = found if len(found) >= LEAST_GROUPS else of_first_steps(run.logs[0])
    if len(found) < LEAST_GROUPS:
        raise Missing(TOO_FEW.format(LEAST_GROUPS))
    return found


def of_first_steps(log: RunLog) -> list[Stretch]:
    """The first steps, which are known one by one, put together: for runs that have no more."""
    rows, found = log.first_steps, list[Stretch]()
    size = max(len(rows) // GROUPS, 1)
    for at in range(0, len(rows) - size + 1, size):
        some = rows[at : at + size]
        parts: dict[str, float] = {name: median(row.get(name, 0) for row in some) for name in PARTS}
        step = median(row.get("step", 0) for row in some)
        pause = max(fmean(row.get("step", 0) for row in some) - step, 0.0)
        parts[OTHER_CODE] = max(step - sum(parts.values()), 0)
        found.append(Stretch(1 + at, size, 0, 0, step, pause, parts, ()))
    return found


def _stretch(windows: Sequence[Window]) -> Stretch:
    """The windows, which have timed steps and follow each other, as one stretch."""
    steps = sum(window.timed for window in windows)
    sums = {name: sum(window.of(name).sum_ns for window in windows) for name in ("step", *PARTS)}
    usual = (sums["step"] - sum(window.excess_ns for window in windows)) / steps
    parts = {name: sums[name] / steps for name in PARTS}
    rest = max(sums["step"] / steps - sum(parts.values()), 0.0)
    ends = windows[0].began_ns, windows[-1].ended_ns
    pause = max(sums["step"] / steps - (quantile_ns((one.of("step") for one in windows), 0.5) or usual), 0.0)
    pause += sum(window.of("outside").sum_ns for window in windows) / steps
    return Stretch(
        windows[0].first_step, steps, *ends, max(usual, 0.0), pause, {**parts, OTHER_CODE: rest}, tuple(windows)
    )


def risen(values: Sequence[float], rise: float = RISE) -> Risen | None:
    """Values that rise all along: Kendall's test, Theil and Sen's slope, and each third is more than the one before.

    None if they do not, if they rise by less than the share `rise`, and of fewer than LEAST_GROUPS values.
    """
    if len(values) < LEAST_GROUPS:
        return None
    found = tested = trend(values)
    if not _by_thirds(values):
        return None
    apart = values
    while len(apart) >= 2 * LEAST_APART and _hang_together(np.array(apart) - tested.each * np.arange(len(apart))):
        apart = _in_pairs(apart)
        tested = trend(apart)
    if tested.chance > RARE_TIME:
        return None
    first, last = (fmean(some) if len(some) < 3 else median(some) for some in ends(values))
    begin = max(median(values) - found.each * (len(values) - 1) / 2, min(values))
    return Risen(begin, first, last, found.each, tested.chance) if last >= (1 + rise) * first else None


def changed(values: Sequence[float]) -> Changed | None:
    """Values that are more from one position on: where two medians fit best, tested by ranks (Mann and Whitney 1947).

    The chance is that of the best of all positions at most (Bonferroni). It takes LEAST_TO_CHANGE values.
    """
    if len(values) < LEAST_GROUPS:
        return None
    at = _best_split(values)
    before, after = median(values[:at]), median(values[at:])
    if after < (1 + RISE) * before:
        return None
    apart, split = values, at
    while _hang_together([one - median(some) for some in (apart[:split], apart[split:]) for one in some]):
        apart = _in_pairs(apart)
        if len(apart) < LEAST_GROUPS:
            return None
        split = _best_split(apart)
    lost = sum(one >= other for one in apart[:split] for other in apart[split:])
    chance = min(_rank_sum_chance(split, len(apart) - split, lost) * (len(apart) - 1), 1.0)
    return Changed(at, before, after, chance) if chance <= RARE_TIME else None


def grows(values: Sequence[float]) -> bool:
    """Whether a line fits rising values better than a change at one position, or they show no such change."""
    change = changed(values)
    if change is None:
        return True
    line, at = np.array(values) - trend(values).each * np.arange(len(values)), change.at
    return float(np.abs(line - np.median(line)).sum()) <= _misfit(values[:at]) + _misfit(values[at:])


def ends(values: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """END of the values, at least three, from the beginning and as many from the end."""
    size = max(round(END * len(values)), 3)
    return values[:size], values[-size:]


def _hang_together(rests: Sequence[float] | FloatArray) -> bool:
    """Whether neighbours of what a fit leaves are alike, as where another process comes and goes: then fewer values
    tell as much. By the correlation of neighbours, beyond twice its deviation where there is none (Bartlett 1946)."""
    around = np.asarray(rests, dtype=np.float64) - np.mean(rests)
    power = float(around @ around)
    return power > 0 and float(around[1:] @ around[:-1]) / power > 2 / math.sqrt(len(around))


def _in_pairs(values: Sequence[float]) -> list[float]:
    return [fmean(values[at : at + 2]) for at in range(len(values) % 2, len(values), 2)]


def _best_split(values: Sequence[float]) -> int:
    return min(range(2, len(values) - 1), key=lambda split: _misfit(values[:split]) + _misfit(values[split:]))


def _misfit(values: Sequence[float]) -> float:
    middle = median(values)
    return sum(abs(one - middle) for one in values)


def _rank_sum_chance(first: int, second: int, lost: int) -> float:
    """Chance that at most `lost` of first * second pairs are in the wrong order, by the exact distribution of U.

    Its counts are the coefficients of a Gaussian binomial: the product of (1 - q^(second + i)) / (1 - q^i) for i = 1,
    ..., first.
    """
    counts = np.zeros(first * second + 1)
    counts[0] = 1
    for i in range(1, first + 1):
        moved = second + i
        if moved < len(counts):
            counts[moved:] -= counts[:-moved].copy()
        for at in range(i):
            counts[at::i] = np.cumsum(counts[at::i])
    return float(counts[: lost + 1].sum() / math.comb(first + second, first))


def _by_thirds(values: Sequence[float]) -> bool:
    """Whether the mean rises from third to third, each time by over a fifth of the rise from the first to the last."""
    third = len(values) // 3
    first, middle, last = fmean(values[:third]), fmean(values[third:-third]), fmean(values[-third:])
    return first < middle < last and last - middle > (last - first) / 5 and middle - first > (last - first) / 5
