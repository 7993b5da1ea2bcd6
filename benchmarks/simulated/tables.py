"""The published tables of benchmarks/simulated.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.accuracy_tables import table
from benchmarks.simulated.judge import Row, Said

RESULTS = Path(__file__).parent.with_suffix(".json")


def published() -> tuple[Row, ...]:
    """What stands in benchmarks/simulated.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=tuple[Row, ...])


def families(rows: Sequence[Said], what: str = "simulated") -> str:
    """A line for each family, and one for all."""
    names = list(dict.fromkeys(row.family for row in rows))
    lines = [_line(name, [row for row in rows if row.family == name]) for name in names]
    lines.append(_line("**all**", rows))
    head = [f"{what}: family", "named first", "in three", "median error", "truth in the range", "false promises"]
    return table(head, lines)


def _line(name: str, rows: Sequence[Said]) -> list[str]:
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


def missed(rows: Sequence[Row]) -> str:
    """Faults that are not among the first three, and healthy runs with a false promise."""
    lines = []
    for row in rows:
        if (row.counts and (row.place or 99) > 3) or row.is_false:
            lines.append([f"`{row.case}`", row.size, f"{(row.saving or 0.0) / row.step:.0%}", *beside(row)])
    return table(["simulated: case", "size", "true saving", "predicted", "findings"], lines, texts=2)


def beside(one: Said) -> list[str]:
    """What was predicted, and the findings."""
    said = f"{one.predicted[1] / one.step:.0%}" if one.predicted else "-"
    return [said, ", ".join(f"`{rule}`" for rule in one.found[:3]) or "none"]
