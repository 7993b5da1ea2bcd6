"""How predictions of a rule have compared with measurements."""

from __future__ import annotations

import msgspec

from diagnose.contracts.trials import Range


class TrackRecord(msgspec.Struct, frozen=True):
    """Of a rule's predictions, on one device."""

    trials: int
    measured: int
    """Trials in which the step was timed with the fix."""
    compared: int
    """Different predictions that a trial has measured well enough to tell the predicted gain from none."""
    held: int
    """Of these: the measured speed-up lies within the predicted range."""
    ratio_median: float | None
    """Measured over predicted gain, as logarithms of speed-ups; None if nothing was compared."""
    ratio: Range | None
    """The mean with its interval of 99 %; None if fewer than two were compared."""
    factor: Range | None
    """What savings are corrected by: the ratio, of at least 0. None: no bias is shown, or too few were compared."""
