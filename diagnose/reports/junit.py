"""Findings as JUnit XML, for what shows tests: a test case for each rule that ran.

A rule failures only if one of its findings failures the build. It is skipped if it could not look: that is no pass.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from diagnose import failures
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Outcome, OutcomeKind, RankedFinding
from diagnose.failures import attempt
from diagnose.reports import alerts, heading, rule_pages
from diagnose.reports.alerts import Alert, AlertLevel

_FORBIDDEN = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 does not allow (production 2), and carriage returns, which its readers change."""


def render(
    diagnosis: Diagnosis,
    findings: Sequence[RankedFinding] | None = None,
    over: Collection[RankedFinding] = (),
    here: Path | None = None,
) -> str:
    """The rules that ran with the findings, or those of a Diagnosis with its risks. `over`: those that fail the build.

    Source files are looked for in the checkout that `here` is in, the working folder.
    """
    with failures.collected() as lost:
        found = alerts.of(diagnosis, findings, over, alerts.in_checkout(diagnosis, here))
        families = attempt("families of rules", {}, rule_pages.families)
        suite = _suite(diagnosis, found, families)
    for one in lost:
        _add(_case(suite, "diagnose.report", one.part), "error", str(one), "")
    _count(suite)
    root = ET.Element("testsuites", {**suite.attrib})
    root.append(suite)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(diagnosis: Diagnosis, found: Sequence[Alert], families: Mapping[str, str]) -> ET.Element:
    suite = ET.Element("testsuite", name="diagnose")
    if not diagnosis.conclusive:
        case = _case(suite, "diagnose.recording", "measured")
        _add(case, "error", heading.headline(diagnosis), "")
    for outcome in diagnosis.outcomes:
        own = [one for one in found if one.rule == outcome.rule]
        family = families.get(outcome.rule, rule_pages.OTHERS)
        case = _case(suite, f"diagnose.{family}", f"{outcome.code} {outcome.rule}")
        attempt(f"what {outcome.rule} found", None, _judge, case, outcome, own)
    return suite


def _case(suite: ET.Element, family: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=_allowed(family), name=_allowed(name))


def _judge(case: ET.Element, outcome: Outcome, own: Sequence[Alert]) -> None:
    """What a rule found, or why it found nothing."""
    placed = next((one.place for one in own if one.place is not None), None)
    if placed is not None:
        case.set("file", _allowed(placed.path))
        case.set("line", str(placed.line))
    if outcome.outcome is OutcomeKind.CANNOT_TELL:
        _add(case, "skipped", f"could not look: {outcome.why}. {outcome.how_to_record_it}".rstrip(), "")
    elif outcome.outcome is OutcomeKind.CRASHED:
        _add(case, "error", f"the rule failed: {outcome.why}", "")
    failures = [one for one in own if one.level is AlertLevel.ERROR]
    for failure in failures[:1]:
        _add(case, "failure", failure.title, "\n".join(map(_told, failures))).set("type", failure.code)
    others = [_told(one) for one in own if one not in failures]
    if outcome.outcome is OutcomeKind.NOT_APPLICABLE:
        others.append(f"does not apply: {outcome.why}")
    elif outcome.outcome is OutcomeKind.CLEAN or (outcome.outcome is OutcomeKind.FOUND and not own):
        others.append(outcome.why)
    if others:
        ET.SubElement(case, "system-out").text = _allowed("\n".join(others))


def _told(one: Alert) -> str:
    return f"{one.title}. {one.text}"


def _add(case: ET.Element, what: str, message: str, text: str) -> ET.Element:
    child = ET.SubElement(case, what, message=_allowed(message))
    child.text = _allowed(text) or None
    return child


def _count(suite: ET.Element) -> None:
    suite.set("tests", str(len(suite)))
    for name, what in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{what}"))))


def _allowed(text: str) -> str:
    return _FORBIDDEN.sub("", text)
