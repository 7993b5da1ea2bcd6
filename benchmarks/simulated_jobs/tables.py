"""The published tables of benchmarks/simulated_jobs.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.accuracy_tables import table
from benchmarks.simulated.tables import beside
from benchmarks.simulated_jobs.judge import Row

RESULTS = Path(__file__).parent.with_suffix(".json")


def published() -> tuple[Row, ...]:
    """What stands in benchmarks/simulated_jobs.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=tuple[Row, ...])


def each(rows: Sequence[Row]) -> str:
    """A line for each job with a fault that counts, and each healthy one with a false promise."""
    lines = []
    for row in rows:
        if row.counts or row.is_false:
            true = "none" if row.saving is None else f"{row.saving / row.step:.0%}"
            lines.append([f"`{row.case}`", str(row.ranks), true, *beside(row)])
    return table(["simulated job", "ranks", "true saving", "predicted", "findings"], lines)
