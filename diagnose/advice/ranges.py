"""Ranges of savings that hold: the truth falls into them four times of five, by what the saving rests on.

A saving has odds: the time that goes over the time that is left, which is the speed-up less one. Its range is the
likely odds times two factors: the 10 and 90 % quantiles of true over predicted odds, of published pairs of its basis.
So a range lies within the step by itself, and gets small where little is saved or little is left.
A rule's own low and high say nothing of how far its savings are off in these pairs: they widen no range.
"""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.contracts.finding import Level
from diagnose.replay.saving import Basis

Factors = Mapping[Basis, tuple[float, float]]

FACTORS: Factors = {
    Basis.MEASURED: (0.74, 1.32),
    Basis.TIMED_ELSEWHERE: (0.74, 1.30),
    Basis.REPLAYED: (0.60, 4.47),
    Basis.RULE_OF_THUMB: (0.66, 5.38),
}
"""The likely odds times these are low and high. `python -m benchmarks.ranges` computes them; docs/accuracy.md says how
often ranges hold if a case's own pairs are left out."""

NARROW = 0.25
"""Of the saving: a narrower range is of high confidence, if the saving rests on this run alone (our choice)."""


def ranged(
    likely_ns: int,
    high_ns: int,
    step_ns: int,
    basis: Basis,
    doubt: float = 0.0,
    factors: Factors = FACTORS,
    most_ns: int | None = None,
) -> tuple[int, int, int]:
    """Low, likely and high of a saving, ns per step: 0 <= low <= likely <= high <= step.

    `high_ns`: as replayed by the highest estimates, for bounds alone, of which only the upper end says something.
    `most_ns`: of the fix, whatever its basis; None: not known.
    `doubt`: share by which the replay fails to explain the recording; odds may be lower and higher by that, too.
    """
    likely_ns = min(max(likely_ns, 0), step_ns)
    if basis.is_bound:
        return 0, likely_ns, min(max(high_ns, likely_ns), step_ns)
    down, up = factors[basis]
    left_ns, certain = step_ns - likely_ns, 1.0 - min(doubt, 1.0)
    low_ns = round(step_ns * _share(likely_ns * down * certain, left_ns))
    high_ns = round(step_ns * _share(likely_ns * up, left_ns * certain))
    return low_ns, likely_ns, high_ns if most_ns is None else max(min(high_ns, most_ns), likely_ns)


def _share(gone: float, left: float) -> float:
    return gone / (gone + left) if gone else 0.0


def confidence(low_ns: int, likely_ns: int, high_ns: int, basis: Basis) -> Level:
    """How sure a saving can be, by the width of its range and what it rests on."""
    if basis.is_bound:
        return Level.LOW
    here = basis in (Basis.REPLAYED, Basis.MEASURED)
    return Level.HIGH if here and high_ns - low_ns < NARROW * likely_ns else Level.MEDIUM
