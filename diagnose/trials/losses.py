"""Whether a fix changes what the training computes, by the losses of its first steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from diagnose.findings.trials import Losses

FIRST = 10
"""Losses that are compared where they are not equal: later ones multiply the differences (our choice)."""

ROUNDING = 1e-5
"""Relative difference in the first steps up to which it is rounding (trials.md)."""


def compared(without: Sequence[float], again: Sequence[float], changed: Sequence[float]) -> Losses | None:
    """The losses of two arms as the script is, and of one with the fix; None if one has none."""
    if not without or not again or not changed:
        return None
    if _equal(without, again) and _equal(without, changed):
        return "same"
    own = _difference(without, again)
    if own > ROUNDING:
        return "not_deterministic"
    return "rounding" if _difference(without, changed) <= max(ROUNDING, own) else "differ"


def _equal(some: Sequence[float], others: Sequence[float]) -> bool:
    """Bit by bit, as far as both go."""
    return all(one.hex() == other.hex() for one, other in zip(some, others, strict=False))


def _difference(some: Sequence[float], others: Sequence[float]) -> float:
    """The greatest relative one of the first; infinite where only one is a number."""
    return max(map(_relative, some[:FIRST], others[:FIRST]))


def _relative(one: float, other: float) -> float:
    if one.hex() == other.hex():
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))
