"""Whether a fix changes what the training computes, by the losses of its first steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from diagnose.contracts.trials import Losses

FIRST = 10  # Losses that are compared where they are not equal: later ones multiply the differences (our choice).

ROUNDING = 1e-5
"""Difference in the first steps up to which it is rounding, as a share of the greatest loss (trials.md)."""


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
    return all(one.hex() == other.hex() for one, other in zip(some, others, strict=False))


def _difference(some: Sequence[float], others: Sequence[float]) -> float:
    """The greatest of the first, as a share of the greatest loss; infinite where only one is a number.

    A loss that falls to almost nothing has rounding of the size of what it fell from.
    """
    pairs = list(zip(some[:FIRST], others[:FIRST], strict=False))
    unequal = [(one, other) for one, other in pairs if one.hex() != other.hex()]
    if any(not (math.isfinite(one) and math.isfinite(other)) for one, other in unequal):
        return math.inf
    scale = max(abs(loss) for pair in pairs for loss in pair if math.isfinite(loss))
    return max((abs(one - other) / scale for one, other in unequal), default=0.0)
