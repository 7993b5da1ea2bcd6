"""Do ranges of savings hold? `python -m benchmarks.ranges` prints the factors of diagnose/advice/pricing.py and tables.

It asks all published pairs of a predicted and a measured saving whose basis is known: planted cases, trainings by
others, ops that were measured, and the H100's. The range of a case is made by factors of other cases.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks import accuracy, changed_ops, h100
from benchmarks.accuracy_tables import table
from benchmarks.verdicts import Figure
from diagnose.advice.pricing import Factors, ranged
from diagnose.replay.saving import Basis

BASES = (Basis.MEASURED, Basis.TIMED_ELSEWHERE, Basis.REPLAYED, Basis.RULE_OF_THUMB)  # Bounds have no likely value.
BEYOND = (0.1, 0.9)  # Quantiles of what is true: four of five lie between them.
STEP_NS = 10**9  # Of every pair, as all are shares of a step.


@dataclass(frozen=True)
class Pair:
    """A predicted and a measured saving, as shares of the step."""

    case: str
    on_gpu: bool
    basis: Basis
    low: float
    likely: float
    high: float
    true: float

    @property
    def odds(self) -> float:
        """True over predicted odds."""
        return self.true / (1.0 - self.true) * (1.0 - self.likely) / self.likely

    def holds(self, low: float, high: float) -> bool:
        """Whether the truth is in a range."""
        return low <= self.true <= high


def pairs() -> list[Pair]:
    """All that are published."""
    found = list[Pair | None]()
    for row in accuracy.published().rows:
        found.append(_pair(row.case, row.trial.startswith("gpu_"), row.predicted, row.measured))
    for other in accuracy.others():
        found.append(_pair(other.case, False, other.predicted, other.measured))
    for one in changed_ops.published().rows:
        if one.counts and one.by_measuring.measured:
            found.append(_pair(one.name.partition(",")[0], False, one.by_measuring.speedup, one.true))
    on_gpus = h100.published()
    found += [_pair(one.case, True, one.predicted, one.measured) for some in on_gpus for one in some.pairs]
    return [*(one for one in found if one is not None), *(pair for some in on_gpus for pair in _rungs(some))]


def _pair(case: str, on_gpu: bool, said: Figure | None, true: Figure | None) -> Pair | None:
    if said is None or said.basis not in BASES or true is None:
        return None
    low, likely, high, measured = (1.0 - 1.0 / times for times in (said.low, said.likely, said.high, true.likely))
    return Pair(case, on_gpu, said.basis, low, likely, high, measured)


def _rungs(found: h100.OnGpu) -> Iterator[Pair]:
    """Of each recording of the ladder the optimisation that was made next: others were measured after these."""
    for rung in found.rungs:
        fix, _ = h100.LADDER[h100.RUNGS[rung.recording]]
        if rung.fix == fix and rung.basis in BASES and rung.low_ms is not None:
            times_ms = (rung.low_ms, rung.likely_ms or 0.0, rung.high_ms or 0.0, rung.measured_ms)
            yield Pair(rung.fix, True, rung.basis, *(ms / rung.step_ms for ms in times_ms))


def factors(some: Sequence[Pair]) -> Factors:
    """Quantiles of true over predicted odds by basis, of as many pairs and one more; the likely odds lie between."""
    found = dict[Basis, tuple[float, float]]()
    for basis in BASES:
        if odds := [pair.odds for pair in some if pair.basis is basis]:
            low, high = np.quantile(odds, BEYOND, method="weibull").tolist()
            found[basis] = (round(min(low, 1.0), 2), round(max(high, 1.0), 2))
    return found


Ranged = list[tuple[Pair, tuple[float, float]]]


def left_out(some: Sequence[Pair]) -> Ranged:
    """Each with the range that the pairs of other cases give its likely saving."""
    found = Ranged()
    for pair in some:
        ns = round(pair.likely * STEP_NS)
        others = factors([other for other in some if other.case != pair.case])
        low, _, high = ranged(ns, ns, STEP_NS, pair.basis, factors=others)
        found.append((pair, (low / STEP_NS, high / STEP_NS)))
    return found


def coverage(some: Ranged) -> float:
    """Share of the pairs whose truth is in that range."""
    return float(np.mean([pair.holds(*limits) for pair, limits in some]))


def shown() -> str:
    """A row for each basis, for the H100, and for all: whether ranges hold, their width, how far savings are off."""
    every = left_out(pairs())
    made = factors([pair for pair, _ in every])
    groups = {basis.value.replace("_", " "): [one for one in every if one[0].basis is basis] for basis in BASES}
    groups |= {"on the H100": [one for one in every if one[0].on_gpu], "all": every}
    times = [f"{low:.2f} to {high:.2f}" for low, high in (made[basis] for basis in BASES)] + ["", ""]
    rows = [[name, odds, *_cells(some)] for (name, some), odds in zip(groups.items(), times, strict=True)]
    head = ["basis", "odds times", "pairs", "reported range holds", "range by basis holds", "its width, of the saving"]
    return table([*head, "error of the step left, of the step", "90 %", "error of the speed-up", "90 %"], rows)


def _cells(some: Ranged) -> list[str]:
    reported = sum(pair.holds(pair.low, pair.high) for pair, _ in some)
    widths = [(high - low) / pair.likely for pair, (low, high) in some]
    left = np.abs([pair.likely - pair.true for pair, _ in some])
    times = np.abs([(1.0 - pair.true) / (1.0 - pair.likely) - 1.0 for pair, _ in some])
    off = [f"{np.quantile(values, at):.0%}" for values in (left, times) for at in (0.5, 0.9)]
    holds = f"{coverage(some):.0%}"
    return [str(len(some)), f"{reported / len(some):.0%}", holds, f"{np.median(widths):.0%}", *off]


def main() -> None:
    """Print the factors and the tables."""
    for basis, (low, high) in factors(pairs()).items():
        print(f"    Basis.{basis.name}: ({low:.2f}, {high:.2f}),")
    print(shown())


if __name__ == "__main__":
    main()
