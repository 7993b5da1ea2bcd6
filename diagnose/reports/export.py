"""What `diagnose export` has written, as text."""

from __future__ import annotations

from diagnose.contracts.export import Absent, Export
from diagnose.trace import units


def render(export: Export) -> str:
    """Tables with their rows, and what is not there, with how to record it."""
    wide = max((len(table.table) for table in export.tables), default=0)
    lines = [f"{len(export.tables)} tables of {units.ranks(export.ranks)}:"]
    lines += [f"  {table.table:<{wide}}  {_counted(table.rows, 'row')}" for table in export.tables]
    if export.absent:
        lines += ["", "Not recorded:"]
        lines += [f"  {line}" for line in _missing(export)]
    return "\n".join(lines) + "\n"


def _missing(export: Export) -> list[str]:
    """A line for each thing that is missing, with the tables that need it."""
    grouped: dict[tuple[str, str, tuple[int, ...]], list[Absent]] = {}
    for one in export.absent:
        grouped.setdefault((one.what, one.how_to_record_it, one.ranks), []).append(one)
    return [
        f"{', '.join(table.table for table in tables)}{_of(ranks, export)}: {what}. {how}"
        for (what, how, ranks), tables in grouped.items()
    ]


def _of(ranks: tuple[int, ...], export: Export) -> str:
    return "" if ranks == export.ranks else f" of {units.ranks(ranks)}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
