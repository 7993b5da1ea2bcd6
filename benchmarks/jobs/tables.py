"""The published tables of benchmarks/jobs.json."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.accuracy_tables import LARGE, table
from benchmarks.jobs.judge import Row

RESULTS = Path(__file__).parent.with_suffix(".json")


def published() -> tuple[Row, ...]:
    """What stands in benchmarks/jobs.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=tuple[Row, ...]) if RESULTS.exists() else ()


def summary(rows: Sequence[Row]) -> str:
    """How often the fault is named, and how well its saving is predicted."""
    faulty, quiet = [row for row in rows if not row.healthy], [row for row in rows if row.healthy]
    errors = [one.error for one in faulty if one.error is not None]
    said = [
        *(
            [name, f"{sum((one.place or 99) <= most for one in faulty)} of {len(faulty)}"]
            for name, most in (("the fault is named first", 1), ("among the first three", 3))
        ),
        ["median error of the saving, share of the step", f"{median(errors):.1%}" if errors else "-"],
        ["measured saving lies in the range", f"{sum(one.in_range for one in faulty)} of {len(errors)}"],
        ["healthy jobs with a fault of 5 % or more", f"{sum(one.promised >= LARGE for one in quiet)} of {len(quiet)}"],
    ]
    return table(["jobs of several ranks on the CPU", ""], said)


def cases(rows: Sequence[Row]) -> str:
    """A line for each job."""
    lines = []
    for row in rows:
        lines.append(
            [
                f"{row.title} (`{row.case}`)" if not row.healthy else f"healthy: {row.title} (`{row.case}`)",
                str(row.ranks),
                ", ".join(row.found[:3]) or "none",
                "" if row.healthy else str(row.place or "-"),
                f"{row.bad if row.bad is not None else row.step:.0f} ms",
                "" if row.fixed is None else f"{row.fixed:.0f} ms",
                "" if row.saved is None else f"{row.saved:.0%}",
                _predicted(row),
            ]
        )
    return table(["job", "ranks", "findings", "place", "step", "fixed", "saved", "predicted"], lines)


def _predicted(one: Row) -> str:
    if one.predicted is None:
        return "" if one.healthy else "-"
    low, likely, high = (part / one.step for part in one.predicted)
    return f"{likely:.0%} ({low:.0%} to {high:.0%})"
