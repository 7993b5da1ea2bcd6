"""How mean steps of equal runs differ: on CPUs from the blocks in which truth was measured, on GPUs see `gpus`."""

import math
import statistics
from collections.abc import Callable, Sequence

from benchmarks.noise.results import published
from benchmarks.planted_cases import cases, trials, truths
from benchmarks.trials.results import published as measured
from diagnose.statistics import Spread

MOST_FREEDOM = 20

RUNS = 5  # Of a group of arms, as of blocks.


def healthy() -> list[list[float]]:
    """Logarithms of mean steps of healthy trainings in one process on a CPU, minutes apart: recordings, and arms."""
    recorded, ranks = published(), {trial.case.name: trial.ranks for trial in trials(cases())}
    runs = [[row.unprofiled_ns for row in recorded.of(control)] for control in recorded.controls]
    groups = [[math.log(statistics.fmean(times)) for times in some] for some in runs]
    for control in measured().runs:
        arms = list(map(math.log, control.arms_ns))
        if ranks.get(control.case, 1) == 1:
            groups += [arms[at : at + RUNS] for at in range(0, len(arms) - RUNS + 1, RUNS)]
    return groups


def blocks(several_ranks: bool) -> list[list[float]]:
    """Logarithms of the mean steps of the runs of each way of each planted case on a CPU: five runs each, in turn."""
    return [group for pair in _pairs(several_ranks) for group in pair]


def _pairs(several_ranks: bool) -> list[tuple[list[float], list[float]]]:
    found = []
    for case in cases():
        ranks = {trial.name: trial.ranks for trial in trials([case])}
        for name, truth in truths(case).items():
            if not truth.machine.gpu and (ranks[name.split("+")[0]] > 1) is several_ranks:
                found.append((list(map(math.log, truth.bad_ns)), list(map(math.log, truth.fixed_ns))))
    return found


def fitted(groups: Sequence[Sequence[float]], most_freedom: int = MOST_FREEDOM) -> Spread:
    """The usual spread of the logarithms in groups and its degrees of freedom, by maximum likelihood.

    If true variances vary as an inverse chi-squared distribution does, those of groups over the usual one follow an F
    distribution: Smyth (2004), section 4.
    """
    seen = [(statistics.variance(group), len(group) - 1) for group in groups]
    return max((_best(seen, freedom) for freedom in range(1, most_freedom + 1)), key=lambda one: _likelihood(seen, one))


def _best(seen: Sequence[tuple[float, int]], freedom: int) -> Spread:
    """The likeliest spread of so many degrees of freedom: where the derivative of the likelihood is zero."""

    def rest(usual: float) -> float:
        return sum(own * (own + freedom) * v / (freedom * usual + own * v) - own for v, own in seen)

    return Spread(math.sqrt(solved(rest, 0.0)), freedom)


def _likelihood(seen: Sequence[tuple[float, int]], spread: Spread) -> float:
    d = spread.freedom
    found = 0.0
    for variance, own in seen:
        ratio = own * variance / (d * spread.share**2)
        found += math.lgamma((own + d) / 2) - math.lgamma(d / 2) - math.lgamma(own / 2)
        found += own / 2 * math.log(ratio) - (own + d) / 2 * math.log1p(ratio)
    return found


def freedom_within_cases() -> float:
    """For how many degrees of freedom the spread of a training with a fault counts for that without it, if it is known.

    By the moments of the logarithms of ratios of variances, of groups of five.
    """
    logs = [
        math.log(statistics.variance(bad) / statistics.variance(fixed)) for bad, fixed in _pairs(several_ranks=False)
    ]
    return 2 * solved(trigamma, statistics.variance(logs) / 2 - trigamma(2))


def solved(falling: Callable[[float], float], value: float) -> float:
    """Where a falling function has a value."""
    low, high = 1e-12, 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if falling(middle) > value else (low, middle)
    return low


LARGE = 20.0  # From which on the series of Abramowitz and Stegun 6.4.12 is exact to ten digits.


def trigamma(x: float) -> float:
    """The second derivative of the logarithm of the gamma function."""
    if x < LARGE:
        return trigamma(x + 1) + 1 / x**2
    return 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5)
