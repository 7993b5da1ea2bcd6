"""Findings as SARIF 2.1.0, the format of code scanning: results at source lines, with the pages of their rules.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Level, OutcomeKind, RankedFinding, RulePage, ShownRisk
from diagnose.reports import findings as cards
from diagnose.reports.findings import Card
from diagnose.reports.places import Checkout, Place
from diagnose.rulekit import page
from diagnose.rulekit.page import SECTIONS
from diagnose.trace.frames import Site
from diagnose.trace.units import clipped

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"
"""Stands for the top of the checkout, in the paths of results; by this name viewers and GitHub know it."""

FINGERPRINT = "diagnoseFinding/v1"  # The name of our fingerprint, with the version of how it is made.

MOST_TITLE, MOST_TEXT = 200, 4_000
"""Characters of a title, and of what is said below it: names from the trace may be of any length (our choice)."""

_PLACEHOLDER = re.compile(r"([\\\[\]])")  # What begins or ends a link in the text of a message (SARIF 3.11.6).


def render(
    diagnosis: Diagnosis,
    findings: Sequence[RankedFinding] | None = None,
    over: Collection[RankedFinding] = (),
    here: Path | None = None,
) -> str:
    """The findings, or those of a Diagnosis with its risks, as one run.

    The build fails for those that are `over`: their level is error. Source files are looked for in the checkout that
    `here` is in, the working folder.
    """
    checkout = Checkout(diagnosis.provenance.manifest, here)
    told = (diagnosis.findings, diagnosis.risks) if findings is None else (findings, ())
    shown: list[RankedFinding | ShownRisk] = [*told[0], *told[1]]
    fallback, driver = _fallback(diagnosis, checkout), _driver(diagnosis)
    indexes = {one["name"]: index for index, one in enumerate(driver["rules"])}
    run = {
        "tool": {"driver": driver},
        "invocations": [_invocation(diagnosis, indexes)],
        "originalUriBaseIds": {ROOT: {"description": {"text": "The top of the checkout."}}},
        "results": _told_apart([_result(one, one in over, diagnosis, checkout, indexes, fallback) for one in shown]),
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _driver(diagnosis: Diagnosis) -> dict[str, Any]:
    families = {path.stem: path.parent.name for path in page.files(page.built_in_rules())}
    return {
        "name": "diagnose",
        "version": diagnosis.tool_version,
        "rules": [_rule(rule, families.get(rule.rule, "rules")) for rule in diagnosis.rules],
    }


def _rule(about: RulePage, family: str) -> dict[str, Any]:
    link = next((word for word in about.sections.get("Sources", "").split() if word.startswith("https://")), None)
    return {
        "id": about.code,
        "name": about.rule,
        "shortDescription": {"text": about.title},
        "fullDescription": {"text": about.summary or about.title},
        "help": {"text": _plain(about), "markdown": _markdown(about)},
        **({} if link is None else {"helpUri": link}),
        "properties": {"tags": ["performance", family]},
    }


def _markdown(about: RulePage) -> str:
    parts = [f"**{about.title}** (`{about.rule}`, {about.code})", about.summary]
    parts += [f"*{head}*\n\n{about.sections[head]}" for head in SECTIONS if about.sections.get(head)]
    if about.thresholds:
        rows = [f"| `{threshold.name}` | {threshold.value:g} | {threshold.reason} |" for threshold in about.thresholds]
        parts.append("\n".join(["| threshold | value | of what, and why |", "|---|--:|---|", *rows]))
    return "\n\n".join(filter(None, parts))


def _plain(about: RulePage) -> str:
    parts = [about.summary]
    parts += [f"{head}\n{about.sections[head]}" for head in SECTIONS if about.sections.get(head)]
    parts += [f"{threshold.name} = {threshold.value:g}: {threshold.reason}" for threshold in about.thresholds]
    return "\n\n".join(filter(None, parts)) or about.title


def _invocation(diagnosis: Diagnosis, indexes: dict[str, int]) -> dict[str, Any]:
    """A rule that failed, or a recording in which nothing could be measured, is no success."""
    crashed = any(outcome.outcome is OutcomeKind.CRASHED for outcome in diagnosis.outcomes)
    return {
        "executionSuccessful": diagnosis.conclusive and not crashed,
        "toolExecutionNotifications": [*_of_rules(diagnosis, indexes), *_of_recording(diagnosis)],
    }


def _of_rules(diagnosis: Diagnosis, indexes: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Rules that could not look, or failed: neither found anything, and neither is a pass."""
    for outcome in diagnosis.outcomes:
        if outcome.outcome is OutcomeKind.CANNOT_TELL:
            level, text = "note", f"{outcome.rule} could not look: {outcome.why}. {outcome.how_to_record_it}".rstrip()
        elif outcome.outcome is OutcomeKind.CRASHED:
            level, text = "error", f"{outcome.rule} failed: {outcome.why}"
        else:
            continue
        rule = {"id": outcome.code, **({"index": indexes[outcome.rule]} if outcome.rule in indexes else {})}
        yield {"level": level, "message": {"text": _escaped(text)}, "associatedRule": rule}


def _of_recording(diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    for note in diagnosis.integrity:
        yield {"level": note.severity.value, "message": {"text": _escaped(f"{note.what} {note.effect}")}}
    told = {(outcome.why, outcome.how_to_record_it) for outcome in diagnosis.outcomes}
    for absent in diagnosis.absent:
        if (absent.what, absent.how_to_record_it) not in told:
            text = f"Not recorded: {absent.what}. {absent.how_to_record_it}"
            yield {"level": "note", "message": {"text": _escaped(text)}}


def _result(
    one: RankedFinding | ShownRisk,
    fails: bool,
    diagnosis: Diagnosis,
    checkout: Checkout,
    indexes: dict[str, int],
    fallback: dict[str, Any],
) -> dict[str, Any]:
    place = None if one.site is None else checkout.place(one.site)
    location = fallback if place is None else _location(place)
    if one.site is not None:
        location = {**location, "logicalLocations": [{"name": one.site.function, "kind": "function"}]}
    if isinstance(one, ShownRisk):
        card, ranks, matters, priority, figures = cards.risk_card(one, diagnosis), one.ranks, True, {}, {}
    else:
        card, ranks, matters, figures = cards.card(one, diagnosis), one.where.ranks, not one.minor, _figures(one)
        priority = {"rank": round(min(max(100 * one.share_of_step, 0.0), 100.0), 3)}
    matters = matters and one.confidence.level is not Level.LOW
    return {
        "ruleId": one.code,
        **({"ruleIndex": indexes[one.rule]} if one.rule in indexes else {}),
        "level": "error" if fails else "warning" if matters else "note",
        "message": {"text": _escaped(f"{clipped(one.title, MOST_TITLE)}. {_text(card)}")},
        "locations": [location],
        "partialFingerprints": {FINGERPRINT: _fingerprint(one.rule, one.site, place)},
        **priority,
        "properties": {
            "confidence": one.confidence.level.value,
            **figures,
            **({"ranks": list(ranks)} if len(diagnosis.ranks) > 1 else {}),
        },
    }


def _figures(finding: RankedFinding) -> dict[str, Any]:
    low_ns, likely_ns, high_ns = finding.shown_ns
    return {
        "kind": finding.kind.value,
        "saving_ns": {"low": low_ns, "likely": likely_ns, "high": high_ns},
        "share_of_step": finding.share_of_step,
        "basis": finding.saving.basis.value,
    }


def _text(card: Card) -> str:
    saving = f"Saves {card.saving}." if card.saving else ""
    at = f"At {card.place}." if card.place else ""
    fixes = [f"Fix: {fix.do}" for fix, _ in card.fixes[:1]]
    parts = [saving, f"{card.detail}.", *card.evidence, at, *fixes, f"Confidence: {card.confidence}."]
    return clipped(" ".join(filter(None, parts)), MOST_TEXT)


def _fingerprint(rule: str, site: Site | None, place: Place | None) -> str:
    """Of the rule, the file, the function and the line's text: the same in the next run, though lines above it were
    added, and though it saves more or less then."""
    file = "" if site is None else site.file if place is None else place.path
    parts = (rule, file, "" if site is None else site.function, "" if place is None else place.text)
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:32]


def _told_apart(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results; of equal fingerprints each also says which of them it is."""
    seen = Counter[str]()
    for result in results:
        code = result["partialFingerprints"][FINGERPRINT]
        seen[code] += 1
        result["partialFingerprints"][FINGERPRINT] = f"{code}:{seen[code]}"
    return results


def _location(place: Place) -> dict[str, Any]:
    region = {"region": {"startLine": place.line}} if place.line else {}
    return {"physicalLocation": {"artifactLocation": {"uri": quote(place.path), "uriBaseId": ROOT}, **region}}


def _fallback(diagnosis: Diagnosis, checkout: Checkout) -> dict[str, Any]:
    """Of what lies in no file of the checkout: the script, else the trace."""
    if checkout.script is not None:
        return _location(checkout.script)
    shown = [source.path for source in diagnosis.provenance.sources if source.rank == diagnosis.rank]
    path = next(iter(shown), "")
    inside = checkout.relative(path) if "://" not in path else None
    if inside:
        return _location(Place(inside))
    return {"physicalLocation": {"artifactLocation": {"uri": quote(PurePath(path).name or "recording")}}}


def _escaped(text: str) -> str:
    return _PLACEHOLDER.sub(r"\\\1", text)
