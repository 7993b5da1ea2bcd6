"""Whether a run's pace changed while it was recorded: its host slowed down, or got faster."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.trace.manifest import RankManifest, Timed
from diagnose.trace.model import Ground, IntegrityNote, Severity
from diagnose.trace.units import duration

CHANGED = 0.05
"""Share by which median steps differ; equal runs on one GPU machine differ by 0.1 to 8 %, by what bounds them."""


def notes(rank: RankManifest) -> Iterator[IntegrityNote]:
    """On steps without the profiler, before the recordings and after: none if half of either lie about the others'."""
    before, after = _quartiles(rank.unprofiled), _quartiles(rank.unprofiled_after)
    if before is None or after is None:
        return
    faster, slower = sorted((before, after), key=lambda one: one[1])
    if slower[1] > (1 + CHANGED) * faster[1] and slower[0] > faster[1] and slower[1] > faster[2]:
        yield IntegrityNote(
            f"Without the profiler steps took {duration(before[1])} before the recordings, {duration(after[1])} after.",
            "The pace changed meanwhile: what rests on the host's times may be off by as much. Record again.",
            Severity.WARNING,
            (Ground.HOST_TIMES,),
        )


def _quartiles(timed: Timed | None) -> tuple[int, int, int] | None:
    """Of the steps' times by the process's clock; None without any."""
    if timed is None or not timed.wall_ns:
        return None
    low, middle, high = np.percentile(timed.wall_ns, (25, 50, 75))
    return round(low), round(middle), round(high)
