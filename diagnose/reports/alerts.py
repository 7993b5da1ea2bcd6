"""Findings and risks as other tools take them: a level, a sentence and a place. For SARIF, JUnit and annotations."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Level, RankedFinding, ShownRisk
from diagnose.reports import findings as cards
from diagnose.reports.findings import Card
from diagnose.reports.places import Checkout, Place
from diagnose.trace.frames import Site
from diagnose.trace.units import clipped

MOST_TITLE = 200
"""Characters of a title: names from the trace may be of any length (our choice)."""

MOST_TEXT = 4_000
"""The same of what is said below it."""

ADVICE = "Fix: "


class AlertLevel(str, Enum):
    """How much it matters, by the names of SARIF."""

    ERROR = "error"
    """The build fails for it."""
    WARNING = "warning"
    """It saves 1 % of the step or more, or may end the run, and the confidence is medium or high."""
    NOTE = "note"
    """The rest: it saves less, or the confidence is low."""


@dataclass(frozen=True)
class Alert:
    """A finding or a risk."""

    rule: str
    code: str
    title: str
    level: AlertLevel
    text: str
    """What it saves, the evidence, the fix and the confidence."""
    confidence: Level
    ranks: tuple[int, ...]
    site: Site | None
    place: Place | None
    """Of the site; None if that is not known, or not in the checkout."""
    fingerprint: str
    """The same in the next run, though lines above it were added, and though it saves more or less then."""
    finding: RankedFinding | None = None
    """None of a risk."""


def of(
    diagnosis: Diagnosis,
    findings: Sequence[RankedFinding] | None = None,
    over: Collection[RankedFinding] = (),
    checkout: Checkout | None = None,
) -> list[Alert]:
    """The findings, or those of a Diagnosis with its risks, in order. The build fails for those that are `over`."""
    known = checkout or Checkout(diagnosis.provenance.manifest)
    seen = Counter[str]()
    shown = diagnosis.findings if findings is None else findings
    risks = diagnosis.risks if findings is None else ()
    found = [_of_finding(one, diagnosis, over, known, seen) for one in shown]
    return found + [_of_risk(risk, diagnosis, known, seen) for risk in risks]


def in_checkout(diagnosis: Diagnosis, here: Path | None) -> Checkout:
    """The checkout that a Diagnosis is looked up in; `here` is the working folder."""
    return Checkout(diagnosis.provenance.manifest, here)


def _of_finding(
    one: RankedFinding, diagnosis: Diagnosis, over: Collection[RankedFinding], checkout: Checkout, seen: Counter[str]
) -> Alert:
    place = None if one.site is None else checkout.place(one.site)
    fails, matters = one in over, one.sure and not one.minor
    card = cards.card(one, diagnosis)
    return Alert(
        rule=one.rule,
        code=one.code,
        title=clipped(one.title, MOST_TITLE),
        level=AlertLevel.ERROR if fails else AlertLevel.WARNING if matters else AlertLevel.NOTE,
        text=_text(card, f"Saves {card.saving}."),
        confidence=one.confidence.level,
        ranks=one.where.ranks,
        site=one.site,
        place=place,
        fingerprint=_fingerprint(one.rule, one.site, place, seen),
        finding=one,
    )


def _of_risk(one: ShownRisk, diagnosis: Diagnosis, checkout: Checkout, seen: Counter[str]) -> Alert:
    place = None if one.site is None else checkout.place(one.site)
    return Alert(
        rule=one.rule,
        code=one.code,
        title=clipped(one.title, MOST_TITLE),
        level=AlertLevel.NOTE if one.confidence.level is Level.LOW else AlertLevel.WARNING,
        text=_text(cards.risk_card(one, diagnosis), ""),
        confidence=one.confidence.level,
        ranks=one.ranks,
        site=one.site,
        place=place,
        fingerprint=_fingerprint(one.rule, one.site, place, seen),
    )


def _text(card: Card, saving: str) -> str:
    at = f"At {card.place}." if card.place else ""
    fixes = [f"{ADVICE}{fix.do}" for fix, _ in card.fixes[:1]]
    parts = [saving, f"{card.detail}.", *card.evidence, at, *fixes, f"Confidence: {card.confidence}."]
    return clipped(" ".join(filter(None, parts)), MOST_TEXT)


def _fingerprint(rule: str, site: Site | None, place: Place | None, seen: Counter[str]) -> str:
    """Of the rule, the file, the function and the line's text; of equal ones also which of them it is."""
    file = "" if site is None else site.file if place is None else place.path
    parts = (rule, file, "" if site is None else site.function, "" if place is None else place.text)
    code = hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:32]
    seen[code] += 1
    return f"{code}:{seen[code]}"
