"""Do steps without the profiler show what made recorded ones long?"""

from __future__ import annotations

import statistics

from diagnose.trace.manifest import RankManifest

STANDS_OUT = 4
"""Times the distance from the median step down to the quarter of the shortest, which is 0.67 standard deviations of
what varies normally, and which long steps leave as it is (our choice)."""

ENOUGH = 10  # Steps without the profiler that tell that something does not happen in them (our choice).


def seen_again(manifest: RankManifest | None, dur_ns: int) -> tuple[int, int]:
    """Steps timed without the profiler that took longer than the median one by at least half of this; and how many
    were timed. None did if steps differ so much anyway that it would not stand out."""
    timed = manifest.unprofiled.wall_ns if manifest and manifest.unprofiled else ()
    if len(timed) < 2:
        return 0, len(timed)
    usual = statistics.median(timed)
    return sum(_stands_out(timed, dur_ns) and one >= usual + dur_ns / 2 for one in timed), len(timed)


def never_again(manifest: RankManifest | None, dur_ns: int) -> bool:
    """Whether enough steps were timed without the profiler, and what takes so long would stand out and is in none.

    It is for what few recorded steps have: what is in all of them makes the median step as long.
    """
    seen, many = seen_again(manifest, dur_ns)
    timed = manifest.unprofiled.wall_ns if manifest and manifest.unprofiled else ()
    return many >= ENOUGH and not seen and _stands_out(timed, dur_ns)


def _stands_out(timed: tuple[int, ...], dur_ns: int) -> bool:
    return dur_ns / 2 > STANDS_OUT * (statistics.median(timed) - statistics.quantiles(timed, n=4)[0])
