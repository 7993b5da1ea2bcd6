"""The ledger as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from diagnose.contracts.ledger import LedgerReport, RuleTrials
from diagnose.reports.trials import VERDICTS, WIDTH

HEADS = ("rule", "trials", "measured", "compared", "in range", "median", "verdicts")

COLUMNS = (
    "Compared: trials precise enough to tell the predicted gain from none.",
    "In range: the measured speed-up lies within the predicted range.",
    "Median: measured gain divided by predicted gain (logarithms of speed-ups).",
)
"""What they are, a sentence each."""


def render(report: LedgerReport) -> str:
    """All of it, ending in a newline."""
    lines = list[str]()
    for device, some in groupby(report.rules, key=lambda one: one.device):
        lines += [f"On {device or 'an unknown device'}:", *_table(list(some)), ""]
    if report.rules:
        lines += [*COLUMNS, ""]
    lines += _about(report)
    parts = [part for line in lines for part in _wrapped(line)]
    if report.file is not None:
        parts.append(f"The file: {report.file}")
    return "\n".join(parts) + "\n"


def _wrapped(line: str) -> list[str]:
    return [line] if not line or line.startswith("  ") else textwrap.wrap(line, WIDTH)


def _table(some: Sequence[RuleTrials]) -> Iterator[str]:
    rows = [HEADS, *(_row(one) for one in some)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(HEADS))]
    for row in rows:
        first, *numbers, words = row
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=False))]
        yield "  " + "  ".join([*cells, words]).rstrip()


def _row(one: RuleTrials) -> tuple[str, ...]:
    return (
        one.rule,
        *map(str, (one.trials, one.measured, one.compared, one.held)),
        "-" if one.ratio_median is None else f"{one.ratio_median:.2f}",
        ", ".join(f"{count} {VERDICTS.get(verdict, verdict)}" for verdict, count in one.verdicts.items()),
    )


def _about(report: LedgerReport) -> Iterator[str]:
    if report.file is None:
        yield "The ledger is off (DIAGNOSE_NO_LEDGER), or you have no home folder."
        return
    if not report.entries:
        yield "The ledger is empty. Run `diagnose try` to fill it."
    if report.skipped:
        yield f"Unreadable lines, or from another version of diagnose: {report.skipped}."
