"""Findings, and what could not be checked, as texts: the terminal, Markdown and the page share them."""

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Fix, Kind, OutcomeKind, RankedFinding, ShownRisk
from diagnose.failures import attempt
from diagnose.replay.saving import Basis
from diagnose.replay.shown import Change, ChangeKind
from diagnose.reports.sections import place
from diagnose.reports.words import BASES, OUTCOMES, capital, safety
from diagnose.trace.units import clipped, duration, number, percent, rounded_share, share

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


def worth(diagnosis: Diagnosis) -> list[tuple[int, RankedFinding]]:
    """(number, finding) of each finding with a card: all but minor ones, numbered from 1 in the Diagnosis' order."""
    return list(enumerate((finding for finding in diagnosis.findings if not finding.minor), start=1))


def entries(diagnosis: Diagnosis) -> list[tuple[str, list[Entry]]]:
    """(heading, entries) in a report's order: findings by kind, LATER, RISKS; headings without any are left out."""
    shown = worth(diagnosis)
    listed = {
        heading: [_entry(str(at), one, diagnosis) for at, one in shown if one.kind is kind]
        for kind, heading in HEADINGS.items()
    }
    listed[LATER] = [_entry("", one, diagnosis) for one in diagnosis.findings if one.hidden]
    listed[RISKS] = [_entry("", one, diagnosis) for one in diagnosis.risks]
    return [(heading, found) for heading, found in listed.items() if found]


def _entry(label: str, one: RankedFinding | ShownRisk, diagnosis: Diagnosis) -> Entry:
    """An entry with the number `label`; its change is the first fix's code if that is short, else its sentence."""
    saves, spread = _saves(one, diagnosis.step_ns or 1) if isinstance(one, RankedFinding) else ("", "")
    fix = one.fixes[0] if one.fixes else Fix("")
    code = tuple(fix.after.splitlines())
    is_code = 0 < len(code) <= MOST_CODE and len(fix.after) <= MOST_TEXT and not getattr(one, "per_sample", False)
    return Entry(
        number=label,
        title=one.title,
        code=one.code,
        saves=saves,
        range=spread,
        level=one.confidence.level.value,
        place=place(one.site) if one.site else "",
        evidence=clipped(one.evidence[0].text, MOST_TEXT) if one.evidence else "",
        change=code if is_code else (clipped(fix.do, MOST_TEXT),) if fix.do else (),
        is_code=is_code,
    )


def _saves(one: RankedFinding, step_ns: int) -> tuple[str, str]:
    """What a finding saves and its range in brackets, as text; the range is empty where there is none to show."""
    low_ns, likely_ns, high_ns = one.hidden or one.shown_ns
    if one.per_sample:
        low, high = (rounded_share(ns / step_ns).removesuffix(" %") for ns in (low_ns, high_ns))
        return f"−{rounded_share(likely_ns / step_ns)} per sample", f"({low}–{high})" if low != high else ""
    if one.saving.basis.is_bound or one.kind is Kind.WHERE_TO_LOOK:
        return f"up to −{duration(high_ns)}", ""
    return f"−{duration(likely_ns)}", _span(low_ns, high_ns, duration(likely_ns).rpartition(" ")[2])


def _span(low_ns: int, high_ns: int, unit: str) -> str:
    """`(low–high)`: without units if both ends have `unit`, the likely value's; empty where both ends read the same."""
    low, high = duration(low_ns), duration(high_ns)
    if low == high:
        return ""
    if all(end == "0" or end.endswith(f" {unit}") for end in (low, high)):
        low, high = (end.removesuffix(f" {unit}") for end in (low, high))
    return f"({low}–{high})"


class Card(Struct, frozen=True):
    """One finding, or risk."""

    number: int
    title: str
    code: str  # Of its rule: `diagnose rules show` has its page.
    saving: str  # `40.9 ms (26.0 %)`, with "up to" where it is an upper bound. Empty of a risk.
    kind: Kind
    detail: str  # Range, what it adds to those above, and what the estimate rests on.
    evidence: tuple[str, ...]
    fixes: tuple[tuple[Fix, str], ...]  # Each with what it does to the numbers.
    place: str  # The source line; empty if none is known.
    confidence: str


def cards(diagnosis: Diagnosis) -> list[Card]:
    """A card per finding that has one, in order; where a part of a card fails, a bare one with title and saving."""
    return [
        attempt(f"a part of finding {at}", _bare(at, one), card, at, one, diagnosis) for at, one in worth(diagnosis)
    ]


def risks(diagnosis: Diagnosis) -> list[Card]:
    """A card per risk (what may end the run and costs no time now), numbered from 1 apart from the findings."""
    return [card(at, one, diagnosis) for at, one in enumerate(diagnosis.risks, start=1)]


def card(at: int, one: RankedFinding | ShownRisk, diagnosis: Diagnosis) -> Card:
    """The card of a finding or a risk, with the number `at`."""
    if isinstance(one, ShownRisk):
        ranks, kind, no_fix, saving, parts = one.ranks, Kind.FAULT, False, "", ["it costs no time now"]
    else:
        ranks, kind, no_fix = one.where.ranks, one.kind, one.saving.basis is Basis.AT_MOST
        saving, parts = _short(one, diagnosis) + " per sample" * one.per_sample, list(_details(one))
    detail = "; ".join(filter(None, (*parts, _on(ranks, diagnosis))))
    return Card(
        number=at,
        title=one.title,
        code=one.code,
        saving=saving,
        kind=kind,
        detail=capital(detail),
        evidence=tuple(evidence.text for evidence in one.evidence),
        fixes=tuple((fix, "where to look" if no_fix else safety(diagnosis, fix.safety)) for fix in one.fixes),
        place=place(one.site) if one.site else "",
        confidence=f"{one.confidence.level.value} ({one.confidence.why})",
    )


def _bare(at: int, one: RankedFinding) -> Card:
    """The card of a finding of which a part failed: its title, likely saving, range and confidence."""
    (low_ns, likely_ns, high_ns), level = one.shown_ns, one.confidence.level.value
    detail = f"Range {duration(low_ns)} to {duration(high_ns)}; the rest of this finding is left out"
    return Card(at, one.title, one.code, duration(likely_ns), one.kind, detail, (), (), "", level)


def _details(one: RankedFinding) -> Iterator[str]:
    """Clauses on a saving: its range, the saving alone where others come first, and how it was found."""
    saving, (low_ns, likely_ns, high_ns) = one.saving, one.shown_ns
    if low_ns != high_ns:
        yield f"range {duration(low_ns)} to {duration(high_ns)}"
    if one.per_sample:
        yield "the step itself gets longer"
    elif duration(saving.likely_ns) != duration(likely_ns):
        yield f"alone {duration(saving.likely_ns)}"
    yield BASES[saving.basis]


def _on(ranks: tuple[int, ...], diagnosis: Diagnosis) -> str:
    """The ranks that have the finding, as a clause; empty for a recording of one rank."""
    if len(diagnosis.ranks) <= 1:
        return ""
    if len(ranks) == len(diagnosis.ranks):
        return "on all ranks"
    shown = ", ".join(map(str, ranks[:8]))
    return f"on rank{'s' * (len(ranks) > 1)} {shown}{', ...' * (len(ranks) > 8)}"


def _short(one: RankedFinding, diagnosis: Diagnosis) -> str:
    """The likely saving as a time and a share of the step; of an upper bound its high end, after "up to"."""
    _, likely_ns, high_ns = one.shown_ns
    bounded, step_ns = one.saving.basis.is_bound, diagnosis.step_ns or 0
    ns = high_ns if bounded else likely_ns
    return f"{'up to ' * bounded}{duration(ns)} ({share(ns, step_ns)})"


def minor(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(title, saving) of each minor finding that is not hidden: hidden ones are listed as LATER."""
    return [(one.title, _short(one, diagnosis)) for one in diagnosis.findings if one.minor and not one.hidden]


def hidden(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(title, what it saves then and what to do) of each finding that pays only once those with a card are fixed."""
    return [
        (f"{one.title}, at {place(one.site)}" if one.site else one.title, _then(one, one.hidden, diagnosis))
        for one in diagnosis.findings
        if one.hidden
    ]


def _then(one: RankedFinding, then: tuple[int, int, int], diagnosis: Diagnosis) -> str:
    """What a fix saves once those above are made (`then`: low, likely, high in ns), and how to make it."""
    now, (low_ns, likely_ns, high_ns) = one.saving, then
    text = f"then {duration(likely_ns)} ({share(likely_ns, diagnosis.step_ns or 0)} of today's step)"
    if low_ns != high_ns:
        text += f", {duration(low_ns)} to {duration(high_ns)}"
    text += f"; by itself {duration(now.likely_ns) if now.likely_ns else 'nothing'}; {BASES[now.basis]}."
    return " ".join([text, *(fix.do for fix in one.fixes[:1]), f"Confidence: {one.confidence.level.value}."])


def checked(diagnosis: Diagnosis) -> str:
    """A sentence on how many rules were checked and how many ended in each way; empty if no rule ran."""
    counts = Counter(outcome.outcome for outcome in diagnosis.outcomes)
    fixable = {finding.rule for finding in diagnosis.findings} | {risk.rule for risk in diagnosis.risks}
    notes = sum(outcome.outcome is OutcomeKind.FOUND and outcome.rule not in fixable for outcome in diagnosis.outcomes)
    words = {
        **OUTCOMES,
        OutcomeKind.FOUND: OUTCOMES[OutcomeKind.FOUND] + f" ({notes} about the recording)" * bool(notes),
    }
    parts = [f"{counts[kind]} {words[kind]}" for kind in OUTCOMES if counts[kind]]
    return f"Checked {len(diagnosis.outcomes)} rules: {', '.join(parts)}." if diagnosis.outcomes else ""


def not_checked(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(what is missing, codes of the rules that need it: MOST_CODES at most) of each thing that is missing."""
    codes: dict[str, list[str]] = {}
    for outcome in diagnosis.outcomes:
        if outcome.outcome is OutcomeKind.CANNOT_TELL:
            codes.setdefault(outcome.why, []).append(outcome.code)
    return [(what, ", ".join(some[:MOST_CODES]) + ", ..." * (len(some) > MOST_CODES)) for what, some in codes.items()]


def unchecked(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(what is missing, how to record it and which rules need it); things with the same way to record are joined."""
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


_DONE = {
    ChangeKind.SHORTEN: "made shorter",
    ChangeKind.REMOVE: "taken away",
    ChangeKind.DETACH: "waited for by nobody any more",
    ChangeKind.MOVE: "run beside the rest",
    ChangeKind.REPLACE: "joined into fewer",
    ChangeKind.RECOST: "computed otherwise",
}


def changes(finding: RankedFinding, diagnosis: Diagnosis) -> list[str]:
    """A sentence per change that the fix makes to the recorded steps; changes that touch nothing are left out."""
    used = max(diagnosis.steps.used, 1) if diagnosis.steps else 1
    return [_change(change, used) for change in finding.changes if change.count]


def _change(one: Change, used: int) -> str:
    """A sentence on one change that a fix makes to the recorded step; `used`: number of steps simulated."""
    if one.kind is ChangeKind.EVEN and one.left is not None:
        ranks = f"{number(one.count)} rank{'s' * (one.count != 1)}"
        return f"{ranks} take{'s' * (one.count == 1)} {percent(one.left[1])} of {duration(one.ns)} a step."
    if one.kind is ChangeKind.RECHUNK:
        return f"Each step has more than {number(one.count)} micro-batches, and each of them a cost of its own."
    what = f"{number(one.count / used)} operations or calls a step, {duration(one.ns)} together, {_DONE[one.kind]}"
    if one.kind in (ChangeKind.REMOVE, ChangeKind.DETACH) or one.left is None:
        return f"{what}."
    low, likely, high = one.left
    if low == likely == high:
        return f"{what}: {percent(likely)} of their time is left."
    return f"{what}: {percent(likely)} of their time is left (low saving: {percent(low)}, high: {percent(high)})."


def formula(finding: RankedFinding, diagnosis: Diagnosis) -> list[str]:
    """The sum that gives the likely saving and its range, a sentence each; empty if nothing was replayed."""
    saving, quality = finding.saving, diagnosis.replay
    if quality is None or saving.replayed_ns is None:
        return []
    step_ns, (low, likely, high) = quality.step_time_ns, saving.replayed_ns
    spread = "" if low == high else f" (low estimate: {duration(low)}, high: {duration(high)})"
    lines = [
        f"The replayed step takes {duration(step_ns)}; with that change, {duration(likely)}{spread}.",
        f"{_exact(step_ns)} - {_exact(likely)} = {_exact(step_ns - likely)} saved.",
    ]
    if diagnosis.step_ns != step_ns:
        lines.append(f"Of the step of {duration(diagnosis.step_ns or 0)} that is {duration(saving.likely_ns)}.")
    doubt = max(abs(quality.error_share), quality.unexplained_share)
    if saving.basis is Basis.BOUNDED:
        lines.append(f"The replay leaves {percent(doubt)} of this recording unexplained: the saving may also be 0.")
    elif saving.basis is Basis.AT_MOST:
        lines.append("That is an upper bound, as no fix is known.")
    return lines


def _exact(ns: int) -> str:
    """ns as ms with three decimals, so that a reader can check the subtraction."""
    return f"{ns / 1e6:,.3f} ms"
