"""What a recording says of limits, by intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from diagnose.advice.timing import error_of, without_profiler
from diagnose.contracts.budget import Judged, Kept, Limits, What
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.facts.core.steps import Measure
from diagnose.statistics import student
from diagnose.trace.manifest import Manifest, RankManifest

SURE = 0.95
"""Of the interval of a mean."""


def judge(limits: Limits, manifest: Manifest | None, diagnosis: Diagnosis | None) -> list[Judged]:
    """Each limit. `diagnosis`: None where nothing was recorded that could be analysed."""
    rank = _rank(manifest, 0 if diagnosis is None else diagnosis.rank)
    found = list[Judged]()
    if limits.step_ns is not None:
        found.append(_judged(What.STEP, limits.step_ns, *_step(rank, diagnosis)))
    if limits.idle_share is not None:
        found.append(_judged(What.IDLE, limits.idle_share, *_idle(diagnosis)))
    return found


def _rank(manifest: Manifest | None, number: int) -> RankManifest | None:
    return next((rank for rank in manifest.ranks if rank.rank == number), None) if manifest else None


def _judged(what: What, limit: float, low: float | None, high: float | None, how: str) -> Judged:
    kept = Kept.CANNOT_TELL
    if low is not None and low > limit:
        kept = Kept.OVER
    elif high is not None and high <= limit:
        kept = Kept.WITHIN
    return Judged(what, limit, kept, low, high, how)


def _step(rank: RankManifest | None, diagnosis: Diagnosis | None) -> tuple[float | None, float | None, str]:
    """The interval of the mean step without the profiler; of recorded steps, which it slows, only the upper bound."""
    times = () if rank is None else without_profiler(rank)
    if (found := interval(times)) is not None:
        return *found, f"{len(times)} steps without the profiler"
    steps = None if diagnosis is None else diagnosis.steps
    if steps is None or steps.measure is Measure.WINDOW:
        return None, None, "the training made too few steps to be timed"
    return None, float(steps.step_time_ns.max), "no step was timed without the profiler, which slows steps"


def interval(times: Sequence[float]) -> tuple[float, float] | None:
    """Of the mean of consecutive steps, by Student's t; None of too few of them."""
    error, mean = error_of(times), statistics.fmean(times) if times else 0.0
    if error is None:
        return None
    half = student((1 + SURE) / 2, error.freedom) * error.share * mean
    return mean - half, mean + half


def _idle(diagnosis: Diagnosis | None) -> tuple[float | None, float | None, str]:
    """The idle share of the recorded step at most; at least what is left once all that recording adds is idle time."""
    parts = None if diagnosis is None else diagnosis.breakdown
    if diagnosis is None or parts is None or parts.measure is Measure.WINDOW or not parts.step_ns:
        return None, None, "no step with work of a GPU was recorded"
    high = parts.idle_ns / parts.step_ns
    alone_ns = None if diagnosis.steps is None else diagnosis.steps.unprofiled_step_time_ns
    if not alone_ns:
        return None, high, "no step was timed without the profiler, which lengthens idle time"
    added_ns = max(parts.step_ns - alone_ns, 0)
    return (
        max(parts.idle_ns - added_ns, 0) / alone_ns,
        high,
        f"what recording adds, {added_ns / 1e6:.3g} ms, is left out",
    )
