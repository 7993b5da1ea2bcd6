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
    """Times of steps without the profiler in ns, by the device's clock where there is one; () if one is not positive.
    Only the last whole cycles count, so that long steps of a cycle have their share; all if there is no whole one."""
    timed = ran.unprofiled
    times = () if timed is None else timed.device_ns or timed.wall_ns
    whole = len(times) // max(ran.cycle, 1) * max(ran.cycle, 1)
    return (times[-whole:] if whole else times) if min(times, default=0) > 0 else ()


def means_of_blocks(times_ns: Sequence[float]) -> list[float]:
    """The mean of each of BLOCKS blocks of consecutive steps, in order; of fewer steps the steps themselves."""
    count = min(BLOCKS, len(times_ns))
    edges = [round(k * len(times_ns) / count) for k in range(count + 1)]
    return [statistics.fmean(times_ns[a:b]) for a, b in itertools.pairwise(edges)]


def blocks_of(times_ns: Sequence[float]) -> Spread | None:
    """The standard deviation of the means of blocks, as a share of the mean step; None of fewer than LEAST_STEPS."""
    if len(times_ns) < LEAST_STEPS:
        return None
    means = means_of_blocks(times_ns)
    return Spread(statistics.stdev(means) / statistics.fmean(times_ns), len(means) - 1)


def error_of(times_ns: Sequence[float]) -> Spread | None:
    """The standard error of the mean of consecutive steps, as a share of it; None of fewer than LEAST_STEPS."""
    blocks = blocks_of(times_ns)
    return None if blocks is None else Spread(blocks.share / math.sqrt(blocks.freedom + 1), blocks.freedom)


def between_runs(measure: Measure, spending: Sequence[AttributedTime], step_ns: float, ranks: int | None) -> Spread:
    """How the mean steps of equal runs of a training usually differ. `spending`: of a recorded step; `step_ns`: without
    the profiler, if that is known; `ranks`: how many, None if not known."""
    if measure is Measure.HOST:
        return RANKS if (ranks or 1) > 1 else CPU
    return of_waits(*waiting_shares(spending, step_ns))


def waiting_shares(spending: Sequence[AttributedTime], step_ns: float) -> tuple[float, float]:
    """Shares of the step in which the GPU waits for its host: for launches, and for named causes such as batches."""
    alone_ns = sum(row.ns for row in spending if _needs_no_host(row))
    waits = [row for row in spending if not _needs_no_host(row)]
    named_ns = sum(row.ns for row in waits if not is_for_launches(row.part.value, row.kind))
    waiting = max(1 - alone_ns / step_ns, 0.0)
    named = waiting * named_ns / max(sum(row.ns for row in waits), 1)
    return waiting - named, named


def is_for_launches(part: str, kind: str) -> bool:
    """Whether idle time ends with the next launch. The same gap may have another of these causes in another run."""
    return part == Part.IDLE.value and kind in _FOR_LAUNCHES


_FOR_LAUNCHES = {*LAUNCHING, TimeCause.OPTIMIZER, TimeCause.PYTHON, TimeCause.BETWEEN_KERNELS, TimeCause.UNKNOWN}


def _needs_no_host(row: AttributedTime) -> bool:
    """Whether the device works without its host: in kernels, work not recorded, copies and fills of its own memory."""
    on_device = row.part is Part.EXPOSED_COPY and ("DtoD" in row.name or row.name.startswith("Memset"))
    return on_device or row.part in (Part.COMPUTE, Part.WORK_NOT_RECORDED)
