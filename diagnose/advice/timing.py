"""How long a step of a run takes by its own clocks, and how far that mean may be off.

Steps of one run tell how far its own mean is off. They do not tell how far another run of the same script would be
off: memory lies elsewhere, cores and clocks are others. A step that a GPU fills differs by tenths of a percent; the
longer the GPU waits for its host, the more. On a CPU it depends on whether processes wait for each other.
"""

import itertools
import math
import statistics
from collections.abc import Sequence

from diagnose.facts.core.breakdown import LAUNCHING, TimeCause
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.time_attribution import AttributedTime, Part
from diagnose.statistics import CPU, RANKS, Spread, of_waits
from diagnose.trace.manifest import RankManifest

BLOCKS = 6
"""Of consecutive steps. Their means are all but independent, however steps depend on each other, and differ if the run
drifts (batch means: Law and Kelton, Operations Research 32 (1984)). Six leave five degrees of freedom (our choice)."""

LEAST_STEPS = 3  # Fewer say nothing of noise.


def without_profiler(ran: RankManifest) -> tuple[int, ...]:
    """Times of steps without the profiler, by the device's clock where there is one; () if they are no times.

    They are the last whole cycles, so that long steps weigh what they weigh.
    """
    timed = ran.unprofiled
    times = () if timed is None else timed.device_ns or timed.wall_ns
    whole = len(times) // max(ran.cycle, 1) * max(ran.cycle, 1)
    return (times[-whole:] if whole else times) if min(times, default=0) > 0 else ()


def means_of_blocks(times_ns: Sequence[float]) -> list[float]:
    """Of BLOCKS blocks of consecutive steps, or of each step if these are fewer."""
    count = min(BLOCKS, len(times_ns))
    edges = [round(k * len(times_ns) / count) for k in range(count + 1)]
    return [statistics.fmean(times_ns[a:b]) for a, b in itertools.pairwise(edges)]


def blocks_of(times_ns: Sequence[float]) -> Spread | None:
    """How means of blocks differ; None of fewer steps than LEAST_STEPS."""
    if len(times_ns) < LEAST_STEPS:
        return None
    means = means_of_blocks(times_ns)
    return Spread(statistics.stdev(means) / statistics.fmean(times_ns), len(means) - 1)


def error_of(times_ns: Sequence[float]) -> Spread | None:
    """The error of the mean of consecutive steps; None of fewer than LEAST_STEPS."""
    blocks = blocks_of(times_ns)
    return None if blocks is None else Spread(blocks.share / math.sqrt(blocks.freedom + 1), blocks.freedom)


def between_runs(measure: Measure, spending: Sequence[AttributedTime], step_ns: float, ranks: int | None) -> Spread:
    """How equal runs of a training usually differ.

    `spending`: of a recorded step; `step_ns`: without the profiler, if that is known; `ranks`: None if not known.
    """
    if measure is Measure.HOST:
        return RANKS if (ranks or 1) > 1 else CPU
    return of_waits(*waiting_shares(spending, step_ns))


def waiting_shares(spending: Sequence[AttributedTime], step_ns: float) -> tuple[float, float]:
    """Of the step in which the GPU waits for its host: for launches, and for batches, copies, results and the like."""
    alone_ns = sum(row.ns for row in spending if _needs_no_host(row))
    waits = [row for row in spending if not _needs_no_host(row)]
    named_ns = sum(row.ns for row in waits if not is_for_launches(row.part.value, row.kind))
    waiting = max(1 - alone_ns / step_ns, 0.0)
    named = waiting * named_ns / max(sum(row.ns for row in waits), 1)
    return waiting - named, named


def is_for_launches(part: str, kind: str) -> bool:
    """Whether an idle part goes on until the next launch; from run to run the same gap goes to another such cause."""
    return part == Part.IDLE.value and kind in _FOR_LAUNCHES


_FOR_LAUNCHES = {*LAUNCHING, TimeCause.OPTIMIZER, TimeCause.PYTHON, TimeCause.BETWEEN_KERNELS, TimeCause.UNKNOWN}


def _needs_no_host(row: AttributedTime) -> bool:
    """Whether the device goes on by itself: in kernels, and in copies and fills of its own memory."""
    on_device = row.part is Part.EXPOSED_COPY and ("DtoD" in row.name or row.name.startswith("Memset"))
    return on_device or row.part in (Part.COMPUTE, Part.WORK_NOT_RECORDED)
