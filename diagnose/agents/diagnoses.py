"""Answers about a diagnosis: in short, its findings, and all that is known of one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from diagnose.agents.answers import Answer, Data, Item, page, whole
from diagnose.agents.kept import Analysed
from diagnose.agents.refusals import Refused
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Fix, RankedFinding
from diagnose.reports import brief, findings, reasons
from diagnose.reports.quoting import plain, quoted
from diagnose.reports.sections import place
from diagnose.reports.words import safety
from diagnose.timeline.window import lane_name
from diagnose.trace.units import duration, percent

MOST_FINDINGS = 12
"""In the data of the short answer."""

MOST_SPOTS = 8
"""Places of a finding on the timeline."""

MOST_RANKS = 32


def overview(one: Analysed, said: Sequence[str] = (), more: Data | None = None) -> Answer:
    """What `diagnose analyze --brief` prints, with the handle to more; before it what else is said."""
    told, handle = one.diagnosis, f'diagnosis="{one.handle}"'
    first = told.findings[0].rank_order if told.findings else 1
    lines = [
        *said,
        f"Diagnosis {one.handle}. More: findings({handle}), evidence({handle}, finding={first}), timeline({handle}).",
        brief.render(told).rstrip(),
    ]
    data: Data = {
        "diagnosis": one.handle,
        "path": plain(one.path),
        "conclusive": told.conclusive,
        "step_ns": told.step_ns,
        "recorded_step_ns": told.steps.step_time_ns.mean if told.steps else None,
        "breakdown": _breakdown(told),
        "findings": [_short(finding) for finding in told.findings[:MOST_FINDINGS]],
        "counts": {
            "findings": len(told.findings),
            "minor": sum(finding.minor for finding in told.findings),
            "risks": len(told.risks),
            "could_not_look": len(list(findings.unchecked(told))),
        },
    }
    return whole(lines, {**data, **(more or {})})


def _breakdown(told: Diagnosis) -> dict[str, int] | None:
    """Of the recorded step, in ns."""
    known = told.breakdown
    if known is None:
        return None
    names = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
    return {name: getattr(known, name) for name in names}


def _short(finding: RankedFinding) -> Data:
    return {
        "finding": finding.rank_order,
        "rule": finding.rule,
        "likely_ns": finding.saving.likely_ns,
        "confidence": finding.confidence.level.value,
        "minor": finding.minor,
    }


def all_findings(one: Analysed, start: int) -> Answer:
    """The findings from number `start` on (0 is the first), then the risks."""
    told = one.diagnosis
    lines = [f"Findings of diagnosis {one.handle}, {quoted(one.path)}."]
    items = [*(_finding(finding, told) for finding in told.findings), *_risks(told)]
    if not items:
        lines.append("There are none." if told.conclusive else "Nothing in this recording could be measured.")
    data: Data = {"diagnosis": one.handle, "step_ns": told.step_ns, "total": len(items)}
    return page(lines, data, "findings", iter(items), start)


def _finding(one: RankedFinding, told: Diagnosis) -> Item:
    saving, fix = one.saving, one.fixes[0] if one.fixes else None
    lines = [
        *_title(one),
        *(f"   evidence {quoted(evidence.text)}" for evidence in one.evidence[:1]),
        *([f"   fix {quoted(fix.do)} ({safety(told, fix.safety)})"] if fix else []),
    ]
    data: Data = {
        **_short(one),
        "code": one.code,
        "title": plain(one.title),
        "low_ns": saving.low_ns,
        "high_ns": saving.high_ns,
        "after_above_ns": saving.after_above_ns,
        "share_of_step": round(one.share_of_step, 4),
        "basis": saving.basis.value,
        "at": plain(place(one.site)) if one.site else None,
        "ranks": list(one.where.ranks[:MOST_RANKS]),
        "evidence": plain(one.evidence[0].text) if one.evidence else None,
        "fix": plain(fix.do) if fix else None,
        "safety": fix.safety.value if fix else None,
    }
    return Item(tuple(lines), data)


def _title(one: RankedFinding) -> Iterator[str]:
    low, likely, high = map(duration, (one.saving.low_ns, one.saving.likely_ns, one.saving.high_ns))
    kind = " minor;" if one.minor else ""
    yield (
        f"{one.rank_order}. {one.rule} ({one.code}):{kind} saves {likely} ({percent(one.share_of_step)} of the step),"
        f" {low} to {high}. Confidence: {one.confidence.level.value}."
    )
    yield f"   {quoted(one.title)}"
    if one.site:
        yield f"   at {quoted(place(one.site))}"


def _risks(told: Diagnosis) -> Iterator[Item]:
    for risk in told.risks:
        fix = risk.fixes[0] if risk.fixes else None
        lines = [
            f"Risk {risk.rule} ({risk.code}): costs no time now. Confidence: {risk.confidence.level.value}.",
            f"   {quoted(risk.title)}",
            *(f"   evidence {quoted(evidence.text)}" for evidence in risk.evidence[:1]),
            *([f"   fix {quoted(fix.do)}"] if fix else []),
        ]
        data = {
            "risk": risk.rule,
            "code": risk.code,
            "title": plain(risk.title),
            "at": plain(place(risk.site)) if risk.site else None,
            "evidence": plain(risk.evidence[0].text) if risk.evidence else None,
            "fix": plain(fix.do) if fix else None,
        }
        yield Item(tuple(lines), data)


def evidence(one: Analysed, number: int, start: int) -> Answer:
    """All that is known of a finding: evidence, fixes, the sum behind its saving, its places. Raises Refused."""
    told = one.diagnosis
    found = [finding for finding in told.findings if finding.rank_order == number]
    if not found:
        numbers = f"1 to {len(told.findings)}" if told.findings else "none"
        raise Refused(f"Diagnosis {one.handle} has no finding {number}. There are: {numbers}.")
    (finding,) = found
    items = [
        *(
            Item((f"evidence {quoted(part.text, 600)}",), _row("evidence", part.text, value=part.value, unit=part.unit))
            for part in finding.evidence
        ),
        _text("confidence", finding.confidence.why),
        *(item for fix in finding.fixes for item in _fix(fix, told)),
        *(_text("replayed", text) for text in reasons.changes(finding, told)),
        *(_text("sum", text) for text in reasons.formula(finding, told)),
        *_spots(finding, one),
        *_page(finding, told),
    ]
    data: Data = {"diagnosis": one.handle, **_short(finding), "code": finding.code}
    return page(_title(finding), data, "parts", iter(items), start)


def _row(kind: str, text: str, **more: Any) -> Data:
    return {"kind": kind, "text": plain(text, 600), **more}


def _text(kind: str, text: str) -> Item:
    return Item((f"{kind} {quoted(text, 600)}",), _row(kind, text))


def _fix(fix: Fix, told: Diagnosis) -> Iterator[Item]:
    """The change, then its lines of code."""
    does = safety(told, fix.safety)
    trial = None if fix.trial is None else plain(fix.trial)
    yield Item((f"fix {quoted(fix.do, 600)} ({does})",), _row("fix", fix.do, safety=fix.safety.value, trial=trial))
    for kind, code in (("before", fix.before), ("after", fix.after)):
        for line in code.splitlines():
            indent = " " * min(len(line) - len(line.lstrip()), 32)
            yield Item((f"{kind} {indent}{quoted(line)}",), {"kind": kind, "text": indent + plain(line)})


def _spots(finding: RankedFinding, one: Analysed) -> Iterator[Item]:
    """Where on the timeline it lies: the longest places."""
    shown = one.diagnosis.timeline
    if shown is None:
        return
    for spot in finding.spots[:MOST_SPOTS]:
        end_ns = spot.start_ns + spot.dur_ns
        window = f'timeline(diagnosis="{one.handle}", start_ns={spot.start_ns}, end_ns={end_ns})'
        text = f"place {duration(spot.dur_ns)} in {quoted(lane_name(shown, spot.lane), 80)}: {window}"
        yield Item((text,), {"kind": "place", "lane": spot.lane, "start_ns": spot.start_ns, "end_ns": end_ns})


def _page(finding: RankedFinding, told: Diagnosis) -> Iterator[Item]:
    """What the rule says of itself."""
    for rule in (one for one in told.rules if one.rule == finding.rule):
        yield _text("rule", rule.summary)
        for head, text in rule.sections.items():
            yield from (_text("rule", f"{head}: {part}") for part in text.split("\n\n") if part.strip())
