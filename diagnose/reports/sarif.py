"""Findings as SARIF 2.1.0, the format of code scanning: results at source lines, with the pages of their rules.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import OutcomeKind, RankedFinding, RulePage
from diagnose.reports import alerts, rule_pages
from diagnose.reports.alerts import Alert
from diagnose.reports.places import Checkout, Place

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"
"""Stands for the top of the checkout, in the paths of results; by this name viewers and GitHub know it."""

FINGERPRINT = "diagnoseFinding/v1"
"""The name of our fingerprint, with the version of how it is made."""

_PLACEHOLDER = re.compile(r"([\\\[\]])")
"""What begins or ends a link in the text of a message (SARIF 3.11.6)."""


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
    checkout = alerts.in_checkout(diagnosis, here)
    fallback, driver = _fallback(diagnosis, checkout), _driver(diagnosis)
    indexes = {one["name"]: index for index, one in enumerate(driver["rules"])}
    found = alerts.of(diagnosis, findings, over, checkout)
    run = {
        "tool": {"driver": driver},
        "invocations": [_invocation(diagnosis, indexes)],
        "originalUriBaseIds": {ROOT: {"description": {"text": "The top of the checkout."}}},
        "results": [_result(one, diagnosis, indexes, fallback) for one in found],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _driver(diagnosis: Diagnosis) -> dict[str, Any]:
    families = rule_pages.families()
    return {
        "name": "diagnose",
        "version": diagnosis.tool_version,
        "rules": [_rule(rule, families.get(rule.rule, rule_pages.OTHERS)) for rule in diagnosis.rules],
    }


def _rule(about: RulePage, family: str) -> dict[str, Any]:
    link = rule_pages.link(about)
    return {
        "id": about.code,
        "name": about.rule,
        "shortDescription": {"text": about.title},
        "fullDescription": {"text": about.summary or about.title},
        "help": {"text": rule_pages.plain(about), "markdown": rule_pages.markdown(about)},
        **({} if link is None else {"helpUri": link}),
        "properties": {"tags": ["performance", family]},
    }


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


def _result(one: Alert, diagnosis: Diagnosis, indexes: dict[str, int], fallback: dict[str, Any]) -> dict[str, Any]:
    location = fallback if one.place is None else _location(one.place)
    if one.site is not None:
        location = {**location, "logicalLocations": [{"name": one.site.function, "kind": "function"}]}
    return {
        "ruleId": one.code,
        **({"ruleIndex": indexes[one.rule]} if one.rule in indexes else {}),
        "level": one.level.value,
        "message": {"text": _escaped(f"{one.title}. {one.text}")},
        "locations": [location],
        "partialFingerprints": {FINGERPRINT: one.fingerprint},
        **_figures(one.finding),
        "properties": {**_properties(one), **({"ranks": list(one.ranks)} if len(diagnosis.ranks) > 1 else {})},
    }


def _figures(finding: RankedFinding | None) -> dict[str, Any]:
    """A finding's priority from 0 to 100: the share of the step that it saves. A risk has none."""
    return {} if finding is None else {"rank": round(min(max(100 * finding.share_of_step, 0.0), 100.0), 3)}


def _properties(one: Alert) -> dict[str, Any]:
    finding = one.finding
    if finding is None:
        return {"confidence": one.confidence.value}
    saving = finding.saving
    return {
        "confidence": one.confidence.value,
        "saving_ns": {"low": saving.low_ns, "likely": saving.likely_ns, "high": saving.high_ns},
        "share_of_step": finding.share_of_step,
        "basis": saving.basis.value,
    }


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
    """Text of a message in which brackets begin no link."""
    return _PLACEHOLDER.sub(r"\\\1", text)
