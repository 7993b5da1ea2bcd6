"""The published tables of benchmarks/simulated_jobs.json."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.accuracy_tables import table
from benchmarks.simulated_jobs.judge import Row

RESULTS = Path(__file__).parent.with_suffix(".json")


def published() -> tuple[Row, ...]:
    """What stands in benchmarks/simulated_jobs.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=tuple[Row, ...])


def families(rows: Sequence[Row]) -> str:
    """A line for each family, and one for all."""
    names = list(dict.fromkeys(row.family for row in rows))
    lines = [_line(name, [row for row in rows if row.family == name]) for name in names]
    lines.append(_line("**all**", rows))
    head = ["simulated jobs: family", "named first", "in three", "median error", "truth in the range", "false promises"]
    return table(head, lines)


def _line(name: str, rows: Sequence[Row]) -> list[str]:
    faulty = [row for row in rows if row.counts]
    errors = [one.error for one in faulty if one.error is not None]
    quiet = [row for row in rows if row.saving is None]
    named = [
        f"{sum((one.place or 99) <= most for one in faulty)} of {len(faulty)}" if faulty else "-" for most in (1, 3)
    ]
    error = f"{median(errors):.1%}" if errors else "-"
    covered = f"{sum(one.in_range for one in faulty)} of {len(errors)}" if errors else "-"
    false = f"{sum(one.is_false for one in quiet)} of {len(quiet)}" if quiet else "-"
    return [name, *named, error, covered, false]


def each(rows: Sequence[Row]) -> str:
    """A line for each job with a fault that counts, and each healthy one with a false promise."""
    lines = []
    for row in rows:
        if row.counts or row.is_false:
            true = "none" if row.saving is None else f"{row.saving / row.step:.0%}"
            lines.append([f"`{row.case}`", str(row.ranks), true, *_beside(row)])
    return table(["simulated job", "ranks", "true saving", "predicted", "findings"], lines)


def _beside(one: Row) -> list[str]:
    said = f"{one.predicted[1] / one.step:.0%}" if one.predicted else "-"
    return [said, ", ".join(f"`{rule}`" for rule in one.found[:3]) or "none"]
