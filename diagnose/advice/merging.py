"""One fix is one finding: what has the same fix at the same line is said once, as is one setting that a rule names."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from diagnose.contracts.finding import Finding, Level, RuleName
from diagnose.replay.saving import Basis

Found = tuple[RuleName, Finding]


def merged(found: Sequence[Found]) -> list[Found]:
    """The findings, each with the others that its first fix is for, as far as these are priced alike.

    Of several rules it is that of the finding with the longest time. Without a line only those of one rule are merged.
    """
    groups: dict[Hashable, list[Found]] = {}
    for place, one in enumerate(found):
        fix = _fix(*one)
        groups.setdefault(place if fix is None else fix, []).append(one)
    ordered = [sorted(some, key=lambda one: -_ns(one[1])) for some in groups.values()]
    return [(some[0][0], _one([finding for _, finding in some])) for some in ordered]


def _ns(finding: Finding) -> float:
    """What it is about takes; 0 where that is no time."""
    first = finding.evidence[0]
    return first.value or 0.0 if first.unit == "ns" else 0.0


def _fix(page: RuleName, finding: Finding) -> Hashable:
    """What fixes it, and where; None of advice without a line."""
    if not finding.fixes or not (finding.site or finding.fixes[0].trial):
        return None
    first = finding.fixes[0]
    what = first.trial or (first.do, first.before, first.after)
    return what, finding.site or page.code, finding.per_sample, finding.unless_above


def _one(some: Sequence[Finding]) -> Finding:
    """Of all the evidence, edits and fixes, each once; as sure as the least sure of them."""
    first = some[0]
    if len(some) == 1:
        return first
    return replace(
        first,
        evidence=tuple(dict.fromkeys(one for finding in some for one in finding.evidence)),
        edits=tuple(edit for finding in some for edit in finding.edits),
        fixes=tuple(dict.fromkeys(fix for finding in some for fix in finding.fixes)),
        confidence=max((one.confidence for one in some), key=lambda one: list(Level).index(one.level)),
        basis=max((one.basis for one in some), key=list(Basis).index),
        host_bound=all(one.host_bound for one in some),
    )
