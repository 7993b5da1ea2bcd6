"""What trials have shown, as texts of the page."""

from __future__ import annotations

from msgspec import Struct

from diagnose.contracts.trials import Report
from diagnose.reports import trials


class TriedFix(Struct, frozen=True):
    """A fix, or several together."""

    name: str
    verdict: str
    rows: tuple[tuple[str, str], ...]  # (what, value) of all that is known.


class Tried(Struct, frozen=True):
    """All of a section."""

    title: str
    conclusion: str
    as_it_is: str
    fixes: tuple[TriedFix, ...]
    others: tuple[str, ...]  # Fixes that were not tried, and why.
    notes: tuple[str, ...]


def view(report: Report) -> Tried:
    """What the page shows of it beside the figure."""
    return Tried(
        title=trials.TITLE,
        conclusion=trials.conclusion(report),
        as_it_is="" if report.baseline is None else f"{trials.as_it_is(report.baseline)}.",
        fixes=tuple(
            TriedFix(trials.name(one), trials.verdict(one), tuple(trials.rows(one))) for one in trials.all_of(report)
        ),
        others=tuple(f"{one.number}. {one.rule}: {one.why}." for one in report.not_tried),
        notes=report.notes,
    )
