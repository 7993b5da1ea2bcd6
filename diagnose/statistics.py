"""How measurements spread: intervals of speed-ups from pairs of them, when enough have been made, and how equal runs
usually differ. Of the standard library alone: the recorder's agent loads it where `diagnose` is not installed.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

ALPHA = 0.05  # That an interval may ever miss the truth, however often it is looked.
EFFECT = 10.0
"""Variance over which effects are mixed, in variances of a pair. It hardly matters: of 3 to 25, this is the narrowest
for 5 to 8 pairs, which decide most fixes (our choice)."""

PRECISE = 1.1  # Factor within which the speed-up of a kept fix is to be known, both ways (trials.md).
DECIDED = ("keep", "slower", "no_gain")  # Verdicts that say what a fix does.
MARGIN = 0.03  # A gain that is worth measuring on: an interval below it tells enough (our choice).
SMALL = 0.05  # A gain below which a fix is said to gain nothing, if it may be none at all (our choice).

MOST_WAITED = 0.9  # Share of a step that is waiting at most: what is left of others is too short (our choice).
LEAST_WAITS = 3  # Pairs, of fewer of which it is not known whether one side waits more (our choice).
OF_THE_FIX = 6.0  # Standard errors by which sides wait differently if that is of the fix: far more than a claim (ours).
OWN = 0.2
"""Share of ALPHA that is for the interval by the pairs alone, where more is known: on a machine that is quieter than
others it gets narrow all the same (our choice)."""

LEAST_FOR_FORECAST = 5  # Pairs, before which their spread is not known well enough to give up (our choice).
Pair = tuple[float, float]  # A measurement without the fix, and one with it.


@dataclass(frozen=True)
class Spread:
    """How far something measured may be off."""

    share: float  # Its standard deviation, or that of a mean, over the mean.
    freedom: int  # Degrees of freedom that it is known with.


CPU = Spread(0.028, 4)
"""Where the CPU trains in one process: 151 groups of five or six runs of healthy trainings, minutes apart, on two
cores, fitted by `benchmarks.noise` as all of this. Trainings differ in it, so that it counts for few degrees of
freedom: for six by these groups, for three by 366 groups of planted cases. Four is our choice, made with the published
table in view: with six, 6.7 % of its pairs of equal recordings would be said to differ, with four 4.8 %."""

RANKS = Spread(0.091, 4)  # In several processes, which wait for each other: 102 groups of five runs of planted cases.

WAITING = Spread(0.19, 2)
"""Of a step in which a GPU does nothing but wait for launches, and of others by `of_waiting`: 28 groups of two or three
runs on an H100, of planted cases and public trainings. Equal runs on several GPUs were not measured."""

NAMED = Spread(0.18, 3)
"""Of a GPU's waits for anything but launches, such as batches, copies and results: eight of these groups. More degrees
of freedom fit as well. Three are our choice, made with the published table in view."""

POWER = 1.25
"""The longer the GPU waits, the more this itself differs. Our choice, made with the same 68 pairs of runs in view: of
powers from 1 to 2, with LEAST_WAITING from 0.02 to 0.06 and two degrees of freedom, it calls the fewest of them
different (one)."""

LEAST_WAITING = 0.02  # Of the step: runs in which the GPU never waits differ as well, by some 0.15 %.
SESSION = 4
"""Degrees of freedom that other runs of a session count for at most, together with what is known beforehand. Spreads of
a training with and without a fault agree no better: 3.9 in 183 pairs of planted cases on the CPU."""

UNKNOWN = Spread(0.0, 0)


class Interval(NamedTuple):
    """A speed-up and how far it may be off."""

    low: float
    likely: float
    high: float


def moderated(prior: Spread, groups: Sequence[Sequence[float]]) -> Spread:
    """How values spread within groups, by the prior and by the groups: each variance counts by its degrees of freedom
    (Smyth, Statistical Applications in Genetics and Molecular Biology 3 (2004), article 3).

    `groups`: logarithms of what was measured, of equal things within each.
    """
    known = [(statistics.variance(group), len(group) - 1) for group in groups if len(group) > 1]
    freedom = prior.freedom + sum(own for _, own in known)
    if not freedom:
        return prior
    seen = sum(variance * own for variance, own in known)
    return Spread(math.sqrt((prior.share**2 * prior.freedom + seen) / freedom), freedom)


@lru_cache
def student(probability: float, freedom: int) -> float:
    """The quantile of Student's t for whole degrees of freedom and a probability over 1/2: the distribution has a
    closed form for these (Abramowitz and Stegun 26.7.3 and 26.7.4), so that no scipy is needed."""
    low, high = 0.0, math.pi / 2
    for _ in range(200):
        angle = (low + high) / 2
        low, high = (angle, high) if _inside(angle, freedom) < 2 * probability - 1 else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _inside(angle: float, freedom: int) -> float:
    """The probability that |t| is at most tan(angle) * sqrt(freedom), by Student's t distribution."""
    odd, cosine = freedom % 2, math.cos(angle)
    term = cosine if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def of_waiting(share: float, usual: Spread = WAITING) -> Spread:
    """How equal runs spread in which the GPU waits for this share of the step; `usual`: if it waits for all of it."""
    return Spread(usual.share * max(share, LEAST_WAITING) ** POWER, usual.freedom)


def of_waits(launches: float, named: float, usual: Spread = WAITING, usual_named: Spread = NAMED) -> Spread:
    """How equal runs spread in which the GPU waits these shares of the step: for launches, and as of NAMED."""
    spreads = of_waiting(launches, usual), Spread(usual_named.share * named, usual_named.freedom)
    return together((one.share**2, one.freedom) for one in spreads)


def together(variances: Iterable[tuple[float, int]]) -> Spread:
    """The spread of a sum of independent errors, each a (variance, degrees of freedom), one variance above 0 at least.
    Degrees of freedom are those of Satterthwaite, Biometrics Bulletin 2 (1946), rounded down."""
    parts = list(variances)
    whole = sum(part for part, _ in parts)
    return Spread(math.sqrt(whole), max(math.floor(whole**2 / sum(part**2 / own for part, own in parts) + 1e-9), 1))


def of_pairs(between: Spread) -> Spread:
    """How the logarithm of the ratio of two runs spreads, by how runs do (`between`)."""
    return Spread(math.sqrt(2) * between.share, between.freedom)


def in_session(prior: Spread, others: Iterable[Sequence[float]]) -> Spread:
    """A trial's prior, with what other measurements of the session add: each group of them has its own mean."""
    found = moderated(prior, list(others))
    return Spread(found.share, max(min(found.freedom, SESSION), prior.freedom))


@lru_cache
def critical(pairs: int, freedom: int, alpha: float = ALPHA) -> float:
    """The limit of |t| that pairs of a fix without effect ever exceed in a share `alpha` of trials, if looked at after
    each pair; infinite where pairs are too few. `freedom`: degrees of freedom of their spread.

    The ratio of likelihoods, mixed over effects and invariant to scale, is a martingale (Lai, Annals of Statistics 4,
    1976; Wang and Ramdas, Sequential Analysis 44, 2025, on t-tests that are valid at any time). It is solved for t.
    """
    wider = 1 + EFFECT * pairs
    limit = (math.sqrt(wider) / alpha) ** (2 / (freedom + 1))
    return math.sqrt(freedom * (limit - 1) / (1 - limit / wider)) if limit < wider else math.inf


def speed_up(
    log_ratios: Sequence[float], between: Spread = UNKNOWN, others: Iterable[Sequence[float]] = ()
) -> Interval:
    """The speed-up of a fix by two pairs or more, of blocks or runs: a confidence sequence, right at all looks at once.

    `log_ratios`: logarithms of without / with. `between`: how equal runs usually differ; `others`: log ratios of other
    fixes of the session, each of which has a mean of its own. Where pairs spread far less than these let expect, their
    own spread alone counts: of both intervals it is the narrower one, and they share ALPHA.
    """
    count, mean = len(log_ratios), statistics.fmean(log_ratios)
    prior, own = in_session(of_pairs(between), others), moderated(UNKNOWN, [log_ratios])
    spreads = [(moderated(prior, [log_ratios]), 1 - OWN), (own, OWN)] if prior.freedom else [(own, 1.0)]
    error = min(critical(count, found.freedom, part * ALPHA) * found.share for found, part in spreads)
    half = error / math.sqrt(count)
    return Interval(math.exp(mean - half), math.exp(mean), math.exp(mean + half))


def wait_alike(pairs: Sequence[Pair], waited: Sequence[Pair]) -> list[Pair]:
    """Steps without and with a fix, as if each measurement had waited for a CPU as long as they usually do.

    `waited`: shares of their time. What differs from one measurement to the other is of other processes. If one side
    waits more than the other throughout, as where a fix changes how many threads there are, that is of the fix: then,
    and of fewer than three pairs, all stays as it is.
    """
    apart, count = [without - changed for without, changed in waited], len(waited)
    if count < LEAST_WAITS or abs(statistics.fmean(apart)) > OF_THE_FIX * statistics.stdev(apart) / math.sqrt(count):
        return list(pairs)
    shares = [share for pair in waited for share in pair]
    all_ns = [ns for pair in pairs for ns in pair]
    usual_ns = statistics.median(ns * share for ns, share in zip(all_ns, shares, strict=True))
    return [
        (without * (1 - first) + usual_ns, changed * (1 - second) + usual_ns)
        for (without, changed), (first, second) in zip(pairs, waited, strict=True)
    ]


def waited_share(waited_ns: float, step_ns: float) -> float:
    """The share of a step that is waiting, at most MOST_WAITED."""
    return min(waited_ns / step_ns, MOST_WAITED)


def enough(low: float, high: float) -> bool:
    """Whether more pairs would change neither what to do nor, of a gain, its first digits."""
    return high < 1 or (high / low < PRECISE**2 and (low > 1 or high < 1 + MARGIN))


def verdict(low: float, high: float) -> Literal["keep", "slower", "no_gain", "inconclusive"]:
    """What a fix does, by the interval of its speed-up alone."""
    if low > 1:
        return "keep"
    if high < 1:
        return "slower"
    return "no_gain" if high < 1 + SMALL else "inconclusive"


def pairs_to_go(found: Interval, pairs: int) -> int:
    """How many more pairs may decide, if the speed-up stays: intervals narrow by their root. 0: decided, or too few."""
    if pairs < LEAST_FOR_FORECAST or verdict(found.low, found.high) != "inconclusive":
        return 0
    half, gain = math.log(found.high / found.low) / 2, math.log(found.likely)
    return math.ceil(pairs * ((half / max(abs(gain), math.log(1 + SMALL) - gain)) ** 2 - 1))
