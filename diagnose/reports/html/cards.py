"""Findings as the page shows them: saving, evidence, fix, and why it is said."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding, RulePage
from diagnose.facts.core.steps import Measure
from diagnose.fixes.setting import Safety
from diagnose.reports import findings, reasons
from diagnose.reports.findings import Card
from diagnose.rulekit.page import SECTIONS
from diagnose.trace.units import duration, number


class Shown(Struct, frozen=True):
    """A finding with all that its card unfolds to."""

    card: Card
    finding: RankedFinding
    heading: str  # Of its kind, and what savings below it are.
    about: str
    range: str  # `18.2 ms to 24.0 ms of 96.0 ms, once those above are fixed`.
    alone: str  # `alone 25.1 ms`; empty where that is as much.
    low: float
    likely: float
    high: float  # Shares of the step in percent, for a bar.
    changes: tuple[str, ...]
    formula: tuple[str, ...]
    page: RulePage | None
    sections: tuple[tuple[str, str], ...]  # (heading, text) of the rule's page.
    places: str  # How many places on the timeline it can go to; empty if none.


SAFE = (Safety.SAME_NUMBERS, Safety.ROUNDING)  # Fixes that need no look at the loss.


def shown(diagnosis: Diagnosis) -> Iterator[Shown]:
    """The findings worth a card, in order."""
    pages = {rule.rule: rule for rule in diagnosis.rules}
    step_ns = diagnosis.step_ns or 0
    per = "" if diagnosis.steps is None or diagnosis.steps.measure is Measure.WINDOW else " a step"
    major = [finding for finding in diagnosis.findings if not finding.minor]
    for card, one in zip(findings.cards(diagnosis), major, strict=True):
        saving, (low_ns, likely_ns, high_ns) = one.saving, one.shown_ns
        alone = duration(saving.likely_ns) if duration(saving.likely_ns) != duration(likely_ns) else ""
        page = pages.get(one.rule)
        yield Shown(
            card=card,
            finding=one,
            heading=findings.HEADINGS[one.kind],
            about=findings.ABOUT[findings.HEADINGS[one.kind]],
            range=f"{_range(low_ns, high_ns)} of {duration(step_ns)}{per}, once those above are fixed",
            alone=alone and f"alone {alone}",
            low=100 * low_ns / max(step_ns, 1),
            likely=100 * likely_ns / max(step_ns, 1),
            high=100 * high_ns / max(step_ns, 1),
            changes=tuple(reasons.changes(one, diagnosis)),
            formula=tuple(reasons.formula(one, diagnosis)),
            page=page,
            sections=sections(page),
            places=_places(one),
        )


def sections(page: RulePage | None) -> tuple[tuple[str, str], ...]:
    """The headings of a rule's page with their text, in order."""
    return () if page is None else tuple((head, page.sections[head]) for head in SECTIONS if head in page.sections)


def _range(low_ns: int, high_ns: int) -> str:
    return duration(high_ns) if low_ns == high_ns else f"{duration(low_ns)} to {duration(high_ns)}"


def _places(one: RankedFinding) -> str:
    if not one.spots:
        return ""
    most = f", the longest {len(one.spots)}" * (len(one.spots) < one.spot_count)
    return f"{number(one.spot_count)} place{'s' * (one.spot_count > 1)}{most}"
