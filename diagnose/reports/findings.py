"""What a report says of findings and of what was not found, as text: shared by the terminal and Markdown."""

from collections import Counter

from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Confidence, Fix, Kind, OutcomeKind, RankedFinding, ShownRisk
from diagnose.failures import attempt
from diagnose.replay.saving import Basis
from diagnose.reports.sections import place
from diagnose.reports.words import BASES, LOOKS, OUTCOMES, safety
from diagnose.trace.units import clipped, duration, rounded_share, share

FAULTS, OPTIONS, LOOK, LATER, RISKS, MINOR = "FAULTS", "OPTIONS", "WHERE TO LOOK", "LATER", "RISKS", "UNDER 1 %"
HEADINGS = {Kind.FAULT: FAULTS, Kind.OPTION: OPTIONS, Kind.WHERE_TO_LOOK: LOOK}
ABOUT = {
    FAULTS: "saving on top of those above (80 % range), confidence, rule",
    OPTIONS: "trade-offs, not faults; on top of those above",
    LOOK: "time without a known fix",
    LATER: "saves this once all those above are done, and little before",
    RISKS: "cost no time now, may end the run",
}
MOST_CODES = 4  # Codes of rules that could not look for one reason.
MOST_CODE = 3  # Lines of code of a fix in brief.
MOST_TEXT = 300  # Characters of its evidence, and of its fix.


class Entry(Struct, frozen=True):
    """One finding in brief: what it is, what it saves, where, and the change."""

    number: str  # Of its card; empty of a risk, and of what pays later.
    title: str
    code: str  # Of its rule: `diagnose rules show` has its page.
    saves: str  # `−40.2 ms`, `up to −104 ms`, `−43 % per sample`; empty of a risk.
    range: str  # `(36.8–40.6)`; empty where it is as much.
    level: str
    place: str  # The source line; empty if none is known.
    evidence: str  # The number that matters.
    change: tuple[str, ...]  # Lines of code, or one sentence.
    is_code: bool


def entries(diagnosis: Diagnosis) -> list[tuple[str, list[Entry]]]:
    """The findings by heading, in order; headings without any are left out."""
    shown = [(number, one) for number, one in enumerate(_worth(diagnosis), start=1)]
    found = {
        heading: [_entry(str(n), one, diagnosis) for n, one in shown if one.kind is kind]
        for kind, heading in HEADINGS.items()
    }
    found[LATER] = [_entry("", one, diagnosis) for one in diagnosis.findings if one.hidden]
    found[RISKS] = [_risk_entry(one) for one in diagnosis.risks]
    return [(heading, some) for heading, some in found.items() if some]


def _worth(diagnosis: Diagnosis) -> list[RankedFinding]:
    return [finding for finding in diagnosis.findings if not finding.minor]


def _entry(number: str, one: RankedFinding, diagnosis: Diagnosis) -> Entry:
    fix = one.fixes[0] if one.fixes else None
    saves, spread = _saves(one, _step_ns(diagnosis))
    return Entry(
        number=number,
        title=one.title,
        code=one.code,
        saves=saves,
        range=spread,
        level=one.confidence.level.value,
        place=place(one.site) if one.site else "",
        evidence=clipped(one.evidence[0].text, MOST_TEXT) if one.evidence else "",
        change=_change(fix) if not one.per_sample or fix is None else (fix.do,),
        is_code=fix is not None and _is_short(fix) and not one.per_sample,
    )


def _risk_entry(one: ShownRisk) -> Entry:
    fix = one.fixes[0] if one.fixes else None
    return Entry(
        "",
        one.title,
        one.code,
        "",
        "",
        one.confidence.level.value,
        place(one.site) if one.site else "",
        clipped(one.evidence[0].text, MOST_TEXT),
        _change(fix),
        fix is not None and _is_short(fix),
    )


def _is_short(fix: Fix) -> bool:
    return 0 < len(fix.after) <= MOST_TEXT and len(fix.after.splitlines()) <= MOST_CODE


def _change(fix: Fix | None) -> tuple[str, ...]:
    if fix is None:
        return ()
    return tuple(fix.after.splitlines()) if _is_short(fix) else (clipped(fix.do, MOST_TEXT),)


def _saves(one: RankedFinding, step_ns: int) -> tuple[str, str]:
    low_ns, likely_ns, high_ns = one.hidden or one.shown_ns
    if one.per_sample:
        low, high = (rounded_share(ns / max(step_ns, 1)).removesuffix(" %") for ns in (low_ns, high_ns))
        return f"−{rounded_share(likely_ns / max(step_ns, 1))} per sample", f"({low}–{high})" if low != high else ""
    if one.saving.basis.is_bound or one.kind is Kind.WHERE_TO_LOOK:
        return f"up to −{duration(high_ns)}", ""
    return f"−{duration(likely_ns)}", span(low_ns, high_ns, duration(likely_ns).rpartition(" ")[2])


def span(low_ns: int, high_ns: int, unit: str) -> str:
    """A range in brackets, without units where both ends have that one; empty where both ends read the same."""
    low, high = duration(low_ns), duration(high_ns)
    if low == high:
        return ""
    if all(end == "0" or end.endswith(f" {unit}") for end in (low, high)):
        low, high = (end.removesuffix(f" {unit}") for end in (low, high))
    return f"({low}–{high})"


class Card(Struct, frozen=True):
    """One finding."""

    number: int
    title: str
    code: str  # Of its rule: `diagnose rules show` has its page.
    saving: str
    """What it saves: `40.9 ms (26.0 %)`, with "up to" where the replay explains too little. Empty of a risk."""
    kind: Kind
    detail: str  # Range, what it adds to those above, and what the estimate rests on.
    evidence: tuple[str, ...]
    fixes: tuple[tuple[Fix, str], ...]  # Each with what it does to the numbers.
    place: str  # The source line; empty if none is known.
    confidence: str


def cards(diagnosis: Diagnosis) -> list[Card]:
    """The findings worth a card, in order."""
    return [
        attempt(f"a part of finding {number}", _bare(number, one), _card, number, one, diagnosis)
        for number, one in enumerate(_worth(diagnosis), start=1)
    ]


def card(one: RankedFinding, diagnosis: Diagnosis) -> Card:
    """Any one finding, by its place in the order."""
    return _card(one.rank_order, one, diagnosis)


def risk_card(one: ShownRisk, diagnosis: Diagnosis) -> Card:
    """Any one risk."""
    return _risk(1, one, diagnosis)


def risks(diagnosis: Diagnosis) -> list[Card]:
    """What may end the run, in order."""
    return [_risk(number, one, diagnosis) for number, one in enumerate(diagnosis.risks, start=1)]


def minor(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(title, saving) of each minor finding."""
    step_ns = _step_ns(diagnosis)
    some = [finding for finding in diagnosis.findings if finding.minor and not finding.hidden]
    return [(one.title, _short(one, step_ns)) for one in some]


def hidden(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(title, what it saves then and what to do) of each finding that pays only once those with a card are fixed."""
    step_ns = _step_ns(diagnosis)
    return [
        (_titled(finding), _then(finding, finding.hidden, step_ns)) for finding in diagnosis.findings if finding.hidden
    ]


def _titled(one: RankedFinding) -> str:
    return f"{one.title}, at {place(one.site)}" if one.site else one.title


def _then(one: RankedFinding, then: tuple[int, int, int], step_ns: int) -> str:
    now, (low_ns, likely_ns, high_ns) = one.saving, then
    text = f"then {duration(likely_ns)} ({share(likely_ns, step_ns)} of today's step)"
    if low_ns != high_ns:
        text += f", {duration(low_ns)} to {duration(high_ns)}"
    text += f"; by itself {duration(now.likely_ns) if now.likely_ns else 'nothing'}; {BASES[now.basis]}."
    return " ".join([text, *(fix.do for fix in one.fixes[:1]), f"Confidence: {one.confidence.level.value}."])


def _step_ns(diagnosis: Diagnosis) -> int:
    return diagnosis.step_ns or 0


def _short(one: RankedFinding, step_ns: int) -> str:
    _, likely_ns, high_ns = one.shown_ns
    if one.saving.basis.is_bound:
        return f"up to {duration(high_ns)} ({share(high_ns, step_ns)})"
    return f"{duration(likely_ns)} ({share(likely_ns, step_ns)})"


def _bare(number: int, one: RankedFinding) -> Card:
    (low_ns, likely_ns, high_ns), sure = one.shown_ns, one.confidence.level.value
    detail = f"Range {duration(low_ns)} to {duration(high_ns)}; the rest of this finding is left out"
    return Card(number, one.title, one.code, duration(likely_ns), one.kind, detail, (), (), "", sure)


def _card(number: int, one: RankedFinding, diagnosis: Diagnosis) -> Card:
    saving, (low_ns, likely_ns, high_ns) = one.saving, one.shown_ns
    parts = []
    if low_ns != high_ns:
        parts.append(f"range {duration(low_ns)} to {duration(high_ns)}")
    if one.per_sample:
        parts.append("the step itself gets longer")
    elif duration(saving.likely_ns) != duration(likely_ns):
        parts.append(f"alone {duration(saving.likely_ns)}")
    parts.append(BASES[saving.basis])
    if on := _on(one.where.ranks, diagnosis):
        parts.append(on)
    return Card(
        number=number,
        title=one.title,
        code=one.code,
        saving=_short(one, _step_ns(diagnosis)) + " per sample" * one.per_sample,
        kind=one.kind,
        detail=_sentence("; ".join(parts)),
        evidence=tuple(evidence.text for evidence in one.evidence),
        fixes=tuple((fix, _does(one, fix, diagnosis)) for fix in one.fixes),
        place=place(one.site) if one.site else "",
        confidence=_told(one.confidence),
    )


def _does(one: RankedFinding, fix: Fix, diagnosis: Diagnosis) -> str:
    return LOOKS if one.saving.basis is Basis.AT_MOST else safety(diagnosis, fix.safety)


def _risk(number: int, one: ShownRisk, diagnosis: Diagnosis) -> Card:
    return Card(
        number=number,
        title=one.title,
        code=one.code,
        saving="",
        kind=Kind.FAULT,
        detail=_sentence("; ".join(filter(None, ("it costs no time now", _on(one.ranks, diagnosis))))),
        evidence=tuple(evidence.text for evidence in one.evidence),
        fixes=tuple((fix, safety(diagnosis, fix.safety)) for fix in one.fixes),
        place=place(one.site) if one.site else "",
        confidence=_told(one.confidence),
    )


def _told(confidence: Confidence) -> str:
    return f"{confidence.level.value} ({confidence.why})"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _on(ranks: tuple[int, ...], diagnosis: Diagnosis) -> str:
    if len(diagnosis.ranks) <= 1:
        return ""
    if len(ranks) == len(diagnosis.ranks):
        return "on all ranks"
    shown = ", ".join(map(str, ranks[:8]))
    return f"on rank{'s' * (len(ranks) > 1)} {shown}{', ...' * (len(ranks) > 8)}"


def checked(diagnosis: Diagnosis) -> str:
    """How many rules ended how."""
    ended = Counter(outcome.outcome for outcome in diagnosis.outcomes)
    fixable = {finding.rule for finding in diagnosis.findings} | {risk.rule for risk in diagnosis.risks}
    about = sum(outcome.outcome is OutcomeKind.FOUND and outcome.rule not in fixable for outcome in diagnosis.outcomes)
    words = {
        **OUTCOMES,
        OutcomeKind.FOUND: OUTCOMES[OutcomeKind.FOUND] + f" ({about} about the recording)" * bool(about),
    }
    parts = [f"{ended[kind]} {words[kind]}" for kind in OUTCOMES if ended[kind]]
    return f"Checked {len(diagnosis.outcomes)} rules: {', '.join(parts)}." if diagnosis.outcomes else ""


def not_checked(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(what could not be looked at, codes of the rules for which), each once."""
    codes: dict[str, list[str]] = {}
    for outcome in diagnosis.outcomes:
        if outcome.outcome is OutcomeKind.CANNOT_TELL:
            codes.setdefault(outcome.why, []).append(outcome.code)
    return [(what, ", ".join(some[:MOST_CODES]) + ", ..." * (len(some) > MOST_CODES)) for what, some in codes.items()]


def unchecked(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(what could not be looked at, how to record it and for which rules), a way to record once."""
    hints, rules = {one.what: one.how_to_record_it for one in diagnosis.absent}, dict[str, list[str]]()
    for outcome in diagnosis.outcomes:
        if outcome.outcome is OutcomeKind.CANNOT_TELL:
            hints.setdefault(outcome.why, outcome.how_to_record_it)
            rules.setdefault(outcome.why, []).append(outcome.code)
    same = {how: [what for what in hints if hints[what] == how] for how in hints.values()}
    codes = {how: ", ".join(code for what in whats for code in rules.get(what, ())) for how, whats in same.items()}
    return [(", ".join(whats), f"{how} ({codes[how]})" if codes[how] else how) for how, whats in same.items()]


def crashed(diagnosis: Diagnosis) -> list[str]:
    """One sentence for each rule that failed, or for several that failed of the same."""
    rules: dict[tuple[str, str], list[str]] = {}
    for outcome in diagnosis.outcomes:
        if outcome.outcome is OutcomeKind.CRASHED:
            rules.setdefault((outcome.why, outcome.how_to_record_it), []).append(f"{outcome.rule} ({outcome.code})")
    return [
        f"The rule{'s' * (len(some) > 1)} {', '.join(some)} failed: {why}. {how}".strip()
        for (why, how), some in rules.items()
    ]
