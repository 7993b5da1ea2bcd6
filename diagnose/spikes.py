"""What rules on long steps say alike: whether steps without the profiler were as long."""

from __future__ import annotations

import statistics

from diagnose.trace.manifest import RankManifest


def seen_again(manifest: RankManifest | None, dur_ns: int) -> tuple[int, int]:
    """Steps timed without the profiler that took longer than the median one by at least half of this; and how many
    were timed. None did if steps differ so much anyway that it would not stand out."""
    timed = manifest.unprofiled.wall_ns if manifest and manifest.unprofiled else ()
    if len(timed) < 2:
        return 0, len(timed)
    usual, low = statistics.median(timed), statistics.quantiles(timed, n=4)[0]
    stands_out = dur_ns / 2 > STANDS_OUT * (usual - low)
    return sum(stands_out and one >= usual + dur_ns / 2 for one in timed), len(timed)


STANDS_OUT = 4
"""Times the distance from the median step down to the quarter of the shortest, which is 0.67 standard deviations of
what varies normally, and which long steps leave as it is (our choice)."""
