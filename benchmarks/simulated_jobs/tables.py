"""The published tables of benchmarks/simulated_jobs.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.simulated_jobs.judge import Row

RESULTS = Path(__file__).parent.with_suffix(".json")


def published() -> tuple[Row, ...]:
    """What stands in benchmarks/simulated_jobs.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=tuple[Row, ...])


def families(rows: Sequence[Row]) -> str:
    """A line for each family, and one for all."""
    names = list(dict.fromkeys(one.family for one in rows))
    lines = [_line(name, [one for one in rows if one.family == name]) for name in names]
    lines.append(_line("**all**", rows))
    head = ["simulated jobs: family", "named first", "in three", "median error", "truth in the range", "false promises"]
    return _table([head, *lines])


def _line(name: str, rows: Sequence[Row]) -> list[str]:
    faulty = [one for one in rows if one.counts]
    errors = [one.error for one in faulty if one.error is not None]
    quiet = [one for one in rows if one.saving is None]
    first, three = (
        f"{sum((one.place or 99) <= most for one in faulty)} of {len(faulty)}" if faulty else "-" for most in (1, 3)
    )
    error = f"{median(errors):.1%}" if errors else "-"
    covered = f"{sum(one.in_range for one in faulty)} of {len(errors)}" if errors else "-"
    false = f"{sum(one.is_false for one in quiet)} of {len(quiet)}" if quiet else "-"
    return [name, first, three, error, covered, false]


def each(rows: Sequence[Row]) -> str:
    """A line for each job with a fault that counts, and each healthy one with a false promise."""
    lines = [["simulated job", "ranks", "true saving", "predicted", "findings"]]
    for one in rows:
        if one.counts or one.is_false:
            true = "none" if one.saving is None else f"{one.saving / one.step:.0%}"
            said = f"{one.predicted[1] / one.step:.0%}" if one.predicted else "-"
            found = ", ".join(f"`{code}`" for code in one.found[:3]) or "none"
            lines.append([f"`{one.case}`", str(one.ranks), true, said, found])
    return _table(lines)


def _table(rows: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["--:"] * (len(rows[0]) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))
