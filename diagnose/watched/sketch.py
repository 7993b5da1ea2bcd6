"""Quantiles of times that windows keep as counts by bucket."""

from collections import Counter
from collections.abc import Iterable

from diagnose.trace.run_log import Column

PER_OCTAVE = 16  # Buckets between a time and its double, as the log has it.


def quantile_ns(columns: Iterable[Column], share: float) -> int | None:
    """The time that so large a share of steps does not exceed, off by 2.2 % at most; None where no sketch is kept.

    >>> quantile_ns([Column(3, 30, 8, 12, ((48, 1), (53, 2)))], 0.5)
    10
    """
    counts, least, most = Counter[int](), 1 << 62, 0
    for column in columns:
        for bucket, count in column.buckets:
            counts[bucket] += count
        if column.buckets:
            least, most = min(least, column.least_ns), max(most, column.most_ns)
    wanted, seen = share * counts.total(), 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= wanted:
            middle = 2.0 ** ((min(bucket, 1000) + 0.5) / PER_OCTAVE)
            return int(min(max(middle, least), most))
    return None
