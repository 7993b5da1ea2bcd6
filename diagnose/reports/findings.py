"""What a report says of findings and of what was not found, as text: shared by the terminal and Markdown."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Confidence, Fix, OutcomeKind, RankedFinding, ShownRisk, Together
from diagnose.facts.core.steps import Measure
from diagnose.failures import attempt
from diagnose.replay.saving import DOUBTFUL, Basis
from diagnose.reports.sections import place
from diagnose.reports.words import BASES, LOOKS, OUTCOMES, safety
from diagnose.trace.units import duration, share

ORDER = "Ordered by incremental saving, weighted by confidence."  # Over several findings.
HIDDEN = "Once those are fixed"  # Over findings that pay only then.
RISKS = "Risks"  # Over what costs no time, and may end the run.


@dataclass(frozen=True)
class Card:
    """One finding."""

    number: int
    title: str
    code: str  # Of its rule: `diagnose rules show` has its page.
    saving: str
    """What it saves: `40.9 ms (26.0 %)`, with "up to" where the replay explains too little. Empty of a risk."""
    detail: str  # Range, what it adds to those above, and what the estimate rests on.
    evidence: tuple[str, ...]
    fixes: tuple[tuple[Fix, str], ...]  # Each with what it does to the numbers.
    place: str  # The source line; empty if none is known.
    confidence: str


def cards(diagnosis: Diagnosis) -> list[Card]:
    """The findings worth a card, in order."""
    shown = [finding for finding in diagnosis.findings if not finding.minor]
    return [
        attempt(f"a part of finding {number}", _bare(number, one), _card, number, one, diagnosis)
        for number, one in enumerate(shown, start=1)
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
    """A finding without all that may have failed."""
    (low_ns, likely_ns, high_ns), sure = one.shown_ns, one.confidence.level.value
    detail = f"Range {duration(low_ns)} to {duration(high_ns)}; the rest of this finding is left out"
    return Card(number, one.title, one.code, duration(likely_ns), detail, (), (), "", sure)


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
    """On which ranks, in words; empty if there is one only."""
    if len(diagnosis.ranks) <= 1:
        return ""
    if len(ranks) == len(diagnosis.ranks):
        return "on all ranks"
    shown = ", ".join(map(str, ranks[:8]))
    return f"on rank{'s' * (len(ranks) > 1)} {shown}{', ...' * (len(ranks) > 8)}"


def left_ns(diagnosis: Diagnosis) -> int:
    """What a step would take once all that has a card is fixed, also what is only possible."""
    saved = diagnosis.replay.all_together if diagnosis.replay else None
    return _step_ns(diagnosis) - (saved.likely_ns if saved else 0)


def sure_left_ns(diagnosis: Diagnosis) -> int:
    """The same of those alone whose confidence is high or medium."""
    saved = _together(diagnosis)
    return _step_ns(diagnosis) - (saved.likely_ns if saved else 0)


def _together(diagnosis: Diagnosis) -> Together | None:
    return diagnosis.replay.together if diagnosis.replay else None


def possible(diagnosis: Diagnosis) -> int:
    """How many findings that shorten the step are of low confidence."""
    return sum(not one.sure for one in _shortening(diagnosis))


def _shortening(diagnosis: Diagnosis) -> list[RankedFinding]:
    """Those with a card whose fixes shorten the step."""
    return [finding for finding in diagnosis.findings if finding.shortens]


def left_told(diagnosis: Diagnosis, left: int) -> str:
    """A step that is left, in words: `about 117 ms`."""
    bounded = any(finding.saving.basis is Basis.BOUNDED for finding in diagnosis.findings if not finding.minor)
    return f"{duration(left)} at best" if bounded else f"about {duration(left)}"


def _fixed(diagnosis: Diagnosis) -> str:
    """What a step would take once its findings are fixed: those that are sure, then those that are possible."""
    count, unsure, step_ns = len(_shortening(diagnosis)), possible(diagnosis), _step_ns(diagnosis)
    shorter = " that shorten a step" * any(finding.per_sample and not finding.minor for finding in diagnosis.findings)
    if not count:
        more = "The fix below lets a step do more; no" if any(one.per_sample for one in diagnosis.findings) else "No"
        return f"{more} fix that the rules know would save 1 % of the step itself."
    before, best = f"{_which_step(diagnosis)} from {duration(step_ns)} to", left_told(diagnosis, left_ns(diagnosis))
    if count == unsure:
        fixes = (
            "The fix below has low confidence. It"
            if count == 1
            else f"{'Both' if count == 2 else f'All {count}'} fixes below{shorter} have low confidence. Together they"
        )
        return f"{fixes} might bring {before} {best}."
    left = sure_left_ns(diagnosis)
    after = f"{left_told(diagnosis, left)} (-{share(step_ns - left, step_ns)}{_between(diagnosis, step_ns)})"
    if unsure:
        sure = count - unsure
        has = "one has" if sure == 1 else f"{sure} have"
        fixes = f"Of the {count} fixes below{shorter} {has} medium or high confidence."
        fixes += " It" if sure == 1 else " Together they"
        return f"{fixes} would bring {before} {after}. With those of low confidence: {best}."
    fixes = f"The fix below{shorter} would" if count == 1 else f"The {count} fixes below{shorter} would together"
    return f"{fixes} bring {before} {after}."


def _which_step(diagnosis: Diagnosis) -> str:
    steps = diagnosis.steps
    if steps is not None and steps.unprofiled_step_time_ns is not None:
        return "the step"
    return "the recorded window" if steps is not None and steps.measure is Measure.WINDOW else "the mean step"


def _between(diagnosis: Diagnosis, step_ns: int) -> str:
    """The range of what is left once all that is sure is fixed; empty if it is none."""
    saved = _together(diagnosis)
    if saved is None or saved.low_ns == saved.high_ns:
        return ""
    shown = duration(step_ns - saved.high_ns), duration(step_ns - saved.low_ns)
    return f"; {' to '.join(shown)}" if shown[0] != shown[1] else ""


def lost(diagnosis: Diagnosis) -> str:
    """How much of a step is lost, in one or two sentences; empty if nothing could be replayed."""
    if not diagnosis.outcomes:
        return ""
    if diagnosis.replay is None:
        return "Nothing could be replayed, so that no fix has a price, and none is listed." * diagnosis.conclusive
    if not any(not finding.minor for finding in diagnosis.findings):
        blind = sum(outcome.outcome is OutcomeKind.CANNOT_TELL for outcome in diagnosis.outcomes)
        text = "No fix that the rules know would save 1 % of a step."
        if blind:
            text += f" But {blind} of {len(diagnosis.outcomes)} rules could not look; the reasons stand below."
        text += _longest_function(diagnosis)
    else:
        text = _fixed(diagnosis)
    steps = diagnosis.steps
    if steps is not None and steps.unprofiled_step_time_ns is not None:
        text += f" Times of the CPU below are as recorded, in steps of {duration(steps.step_time_ns.mean)}."
    quality = diagnosis.replay
    doubt = max(abs(quality.error_share), quality.unexplained_share)
    if doubt >= DOUBTFUL and any(not finding.minor for finding in diagnosis.findings):
        text += f" The replay leaves {doubt:.0%} of this recording unexplained, so savings are less sure."
    return text


def _longest_function(diagnosis: Diagnosis) -> str:
    """Where to look for what no rule knows, as a further sentence; empty without call stacks."""
    if diagnosis.steps is None:
        return ""
    for function in diagnosis.functions or ():
        if function.site is not None:
            part = share(max(function.host_ns, function.device_ns or 0), diagnosis.steps.step_time_ns.mean)
            return f" Most of your own code's time is at {place(function.site)}, with {part} of a step."
    return ""


def incomplete(diagnosis: Diagnosis) -> str:
    """That rules failed, as a sentence for the first lines; empty if none did."""
    failed = sum(outcome.outcome is OutcomeKind.CRASHED for outcome in diagnosis.outcomes)
    if not failed:
        return ""
    several, look = ("rules", "they look") if failed > 1 else ("rule", "it looks")
    return f"{failed} {several} failed by a bug in diagnose: what {look} for is not in this report."


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


def unchecked(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(what could not be looked at, how to record it and for which rules), each once."""
    rules: dict[tuple[str, str], list[str]] = {(one.what, one.how_to_record_it): [] for one in diagnosis.absent}
    for outcome in diagnosis.outcomes:
        if outcome.outcome is OutcomeKind.CANNOT_TELL:
            rules.setdefault((outcome.why, outcome.how_to_record_it), []).append(outcome.code)
    return [(what, f"{how} ({', '.join(codes)})" if codes else how) for (what, how), codes in rules.items()]


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
