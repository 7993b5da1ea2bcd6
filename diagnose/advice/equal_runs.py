"""How mean steps of equal runs usually differ: by what bounds the step.

Steps of one run tell how far its own mean is off. They do not tell how far another run of the same script would be
off: memory lies elsewhere, cores and clocks are others. A step that a GPU fills differs by tenths of a percent; the
longer the GPU waits for its host, the more. On a CPU it depends on whether processes wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from diagnose.advice.student import Spread, moderated
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.time_attribution import AttributedTime, Part

CPU = Spread(0.028, 4)
"""Where the CPU trains in one process: 151 groups of five or six runs of healthy trainings, minutes apart, on two
cores, fitted by `benchmarks.noise` as all of this. Trainings differ in it, so that it counts for few degrees of
freedom: for six by these groups, for three by 366 groups of planted cases. Four is our choice, made with the published
table in view: with six, 6.7 % of its pairs of equal recordings would be said to differ, with four 4.8 %."""

RANKS = Spread(0.091, 4)
"""Where it trains in several processes, which wait for each other: 102 groups of five runs of planted cases."""

WAITING = Spread(0.19, 2)
"""Of a step in which a GPU does nothing but wait for its host, and of others by `of_waiting`: 28 groups of two or three
runs on an H100, of planted cases and public trainings. Equal runs on several GPUs were not measured."""

POWER = 1.25
"""The longer the GPU waits, the more this itself differs. Our choice, made with the same 68 pairs of runs in view: of
powers from 1 to 2, with LEAST_WAITING from 0.02 to 0.06 and two degrees of freedom, it calls the fewest of them
different (one)."""

LEAST_WAITING = 0.02
"""Of the step: runs in which the GPU never waits differ as well, by some 0.15 %."""

SESSION = 4
"""Degrees of freedom that other runs of a session count for at most, together with what is known beforehand. Spreads of
a training with and without a fault agree no better: 3.9 in 183 pairs of planted cases on the CPU."""


def between_runs(measure: Measure, spending: Sequence[AttributedTime], step_ns: float, ranks: int | None) -> Spread:
    """How equal runs of a training usually differ.

    `spending`: of a recorded step; `step_ns`: without the profiler, if that is known; `ranks`: None if not known.
    """
    if measure is Measure.HOST:
        return RANKS if (ranks or 1) > 1 else CPU
    return of_waiting(waiting_share(spending, step_ns))


def waiting_share(spending: Sequence[AttributedTime], step_ns: float) -> float:
    """Of the step in which the GPU waits for its host: for dispatch, Python, synchronisations, copies or batches."""
    alone_ns = sum(row.ns for row in spending if _needs_no_host(row))
    return max(1 - alone_ns / step_ns, 0.0)


def of_waiting(share: float, usual: Spread = WAITING) -> Spread:
    """How runs differ in which the GPU waits for this share of the step."""
    return Spread(usual.share * max(share, LEAST_WAITING) ** POWER, usual.freedom)


def _needs_no_host(row: AttributedTime) -> bool:
    """Whether the device goes on by itself: in kernels, and in copies and fills of its own memory."""
    on_device = row.part is Part.EXPOSED_COPY and ("DtoD" in row.name or row.name.startswith("Memset"))
    return on_device or row.part in (Part.COMPUTE, Part.WORK_NOT_RECORDED)


def of_pairs(between: Spread) -> Spread:
    """How logarithms of ratios of two runs spread, by how runs do."""
    return Spread(math.sqrt(2) * between.share, between.freedom)


def in_session(prior: Spread, others: Iterable[Sequence[float]]) -> Spread:
    """What is known before a trial: also by other measurements of the session, each group of which has its own mean."""
    found = moderated(prior, list(others))
    return Spread(found.share, max(min(found.freedom, SESSION), prior.freedom))
