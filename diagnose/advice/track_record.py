"""How predictions of a rule have compared with measurements, and what that corrects.

Gains are logarithms of speed-ups: they add up over fixes, and a fix that gains nothing has 0. The ratio of a trial is
the measured gain over the predicted one. Its own logarithm would leave out, or blow up, what gained nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from diagnose.contracts.ledger import LONGEST, Entry
from diagnose.contracts.ledger_report import RuleTrials
from diagnose.contracts.track_record import TrackRecord
from diagnose.contracts.trials import Range
from diagnose.replay.saving import Saving
from diagnose.statistics import student
from diagnose.trace.manifest import Manifest

TIMED = frozenset({"keep", "no_gain", "slower", "inconclusive"})
"""Verdicts after which a measurement is of the fix, and of a training that still computes the same."""

LEAST = 5
"""Predictions that have been compared before they correct anything (trials.md)."""

SURE = 0.99
"""Of the interval that has to exclude 1: it is looked at after every trial, of some eighty rules (our choice)."""


def track_record(entries: Sequence[Entry]) -> TrackRecord:
    """Of the trials of one rule on one device, the oldest first."""
    compared = list({entry.predicted: entry for entry in entries if _tells(entry)}.values())
    ratios = [_gain(one.measured) / _gain(one.predicted) for one in compared]
    ratio = _interval(ratios) if len(ratios) > 1 else None
    biased = ratio is not None and len(ratios) >= LEAST and not ratio.low <= 1 <= ratio.high
    return TrackRecord(
        trials=len(entries),
        measured=sum(entry.measured is not None for entry in entries),
        compared=len(compared),
        held=sum(_held(one) for one in compared),
        ratio_median=statistics.median(ratios) if ratios else None,
        ratio=ratio,
        factor=Range(*(max(end, 0.0) for end in (ratio.low, ratio.likely, ratio.high))) if ratio and biased else None,
    )


def by_rule(entries: Iterable[Entry], device: str | None) -> dict[str, TrackRecord]:
    """The track record of each rule on a device, whatever the versions of torch and of this tool were."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.device is not None and entry.device == device:
            found.setdefault(entry.rule, []).append(entry)
    return {rule: track_record(some) for rule, some in found.items()}


def corrected(saving: Saving, step_ns: int, factor: Range) -> Saving:
    """The saving if the gain is `factor` times what was predicted; it is never below 0, nor more than the step.

    What is left of the step is raised to that power. So nothing stays nothing, and the order of savings stays.
    """
    low, likely, high = (
        step_ns - round(step_ns * _left(ns / step_ns) ** power)
        for ns, power in (
            (saving.low_ns, factor.low),
            (saving.likely_ns, factor.likely),
            (saving.high_ns, factor.high),
        )
    )
    return replace(saving, low_ns=low, likely_ns=likely, high_ns=high)


def blended(some: Iterable[tuple[float, Range]]) -> Range:
    """The mean of factors by weight; 1 without any weight."""
    weighed = list(some)
    whole = sum(weight for weight, _ in weighed)
    if not whole:
        return Range(1.0, 1.0, 1.0)
    low, likely, high = (
        sum(weight * getattr(factor, end) for weight, factor in weighed) / whole for end in ("low", "likely", "high")
    )
    return Range(low, likely, high)


def _left(share: float) -> float:
    return min(max(1.0 - share, 0.0), 1.0)


def _gain(speedup: Range | None) -> float:
    return math.log(speedup.likely) if speedup is not None else math.nan


def _tells(one: Entry) -> bool:
    """Whether its measurement can tell the predicted gain from none.

    This does not ask what was measured: to leave out what gained little would make predictions look better.
    """
    if one.predicted is None or one.measured is None or one.verdict not in TIMED:
        return False
    return math.log(one.measured.high / one.measured.low) / 2 < _gain(one.predicted)


def _held(one: Entry) -> bool:
    """Whether the likely measured speed-up lies within the predicted range: a wide measurement helps nobody."""
    assert one.predicted is not None
    assert one.measured is not None
    return one.predicted.low <= one.measured.likely <= one.predicted.high


def _interval(ratios: Sequence[float]) -> Range:
    mean, count = statistics.fmean(ratios), len(ratios)
    half = student((1 + SURE) / 2, count - 1) * statistics.stdev(ratios) / math.sqrt(count)
    return Range(mean - half, mean, mean + half)


def rules_of(entries: Sequence[Entry]) -> tuple[RuleTrials, ...]:
    """How predictions have compared with trials, by device and rule."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.device or "", entry.rule), []).append(entry)
    return tuple(
        RuleTrials(device or None, rule, track_record(some), dict(Counter(one.verdict for one in some).most_common()))
        for (device, rule), some in sorted(found.items())
    )


def device_of(manifest: Manifest) -> str | None:
    """Model of the GPU that the training used, else of the CPU."""
    names = [device.name for device in manifest.devices if device.name] or [manifest.host.cpu or ""]
    return named(names[0])


def named(text: str | None) -> str | None:
    """A name as an entry holds it; None if nothing is left."""
    return "".join(letter for letter in text or "" if letter.isprintable())[:LONGEST].strip() or None
