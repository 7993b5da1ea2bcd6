"""A Diagnosis as Markdown that pastes well into an issue or a pull request."""

import html
import re
from collections.abc import Callable, Iterable, Iterator

from diagnose import failures
from diagnose.contracts.comparison import Comparison
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.trials import Report, Trial
from diagnose.contracts.watched_run import WatchedRun
from diagnose.reports import brief, comparison, findings, job_tables, trials, watched_run
from diagnose.reports.brief import Brief
from diagnose.reports.findings import Card, Entry
from diagnose.reports.sections import Section
from diagnose.reports.watched_run import RunCard
from diagnose.reports.words import capital

_ACTIVE = re.compile(r"([\\`*_\[\]<>|~#&])")


def render(diagnosis: Diagnosis, details: bool = False, minor: bool = False) -> str:
    """The report in brief, and with `details` all evidence and tables. Names from the trace are escaped: they are
    untrusted text. `minor`: with findings that save little as well."""
    with failures.collected() as lost:
        found = failures.attempt("the report in brief", brief.NOTHING, brief.of, diagnosis)
        lines = [*failures.section("the whole run", _whole_run, diagnosis), *_head(found)]
        lines += failures.each(_DETAILS, diagnosis) if details or found is brief.NOTHING else _body(found)
        lines += failures.section("smaller findings", _smaller, diagnosis) if minor else []
    return "\n".join([*lines, *_listed("Not in this report", map(str, lost))])


def _head(found: Brief) -> Iterator[str]:
    yield from (f"## {escaped(found.headline)}", "", escaped(found.subject), "")
    yield from (line for text in (found.warning, *found.gain) if text for line in (f"**{escaped(text)}**", ""))


def _body(found: Brief) -> Iterator[str]:
    for name, about, some in found.lists:
        yield from (f"### {name}", "", f"{about}", "", *(line for one in some for line in _entry(one)), "")
    yield from _listed("NOTES", found.notes)


def _listed(title: str, items: Iterable[str]) -> list[str]:
    """A titled list of the items, escaped; no lines without items."""
    lines = [f"- {escaped(item)}" for item in items]
    return [f"### {title}", "", *lines, ""] if lines else []


def _entry(one: Entry) -> Iterator[str]:
    """A finding in brief as an item of a list: title and saving, place, evidence, then its change as code or words."""
    saves = f" **{escaped(one.saves)}**" if one.saves else ""
    number, title = f"{one.number}." if one.number else "-", escaped(f"{one.title} ({one.code})")
    yield f"{number} {title}{saves} {escaped(one.range)} {one.level}"
    yield from (f"   {escaped(text)}" for text in filter(None, (one.place, one.evidence)))
    if one.is_code:
        yield from ("", "   ```python", *(f"   {line}" for line in one.change), "   ```", "")
    else:
        yield from (f"   {escaped(line)}" for line in one.change)


def _whole_run(diagnosis: Diagnosis) -> list[str]:
    return [] if diagnosis.watched is None else [watched(diagnosis.watched, details=True)]


def _fixes(diagnosis: Diagnosis) -> Iterator[str]:
    cards = findings.cards(diagnosis)
    for kind, name in findings.HEADINGS.items():
        yield from _cards(name, [card for card in cards if card.kind is kind])
    yield from _listed(findings.LATER, map(": ".join, findings.hidden(diagnosis)))


def _smaller(diagnosis: Diagnosis) -> list[str]:
    return _listed(findings.MINOR, map(": ".join, findings.minor(diagnosis)))


def _risks(diagnosis: Diagnosis) -> list[str]:
    return _cards(findings.RISKS, findings.risks(diagnosis))


def _trials(diagnosis: Diagnosis) -> list[str]:
    return [] if diagnosis.trials is None else [f"### {trials.TITLE}", "", tried(diagnosis.trials)]


def _sections(diagnosis: Diagnosis) -> Iterator[str]:
    for section in job_tables.sections(diagnosis):
        yield from _table(section)


def _recording(diagnosis: Diagnosis) -> Iterator[str]:
    yield from _listed("Could not look at", map(". ".join, findings.unchecked(diagnosis)))
    notes = [
        f"- **{note.severity.value}**: {escaped(note.what)} {escaped(note.effect)}" for note in diagnosis.integrity
    ]
    notes += [f"- **error**: {escaped(text)}" for text in findings.crashed(diagnosis)]
    if notes:
        yield from ("### About this recording", "", *notes, "")


def _checked(diagnosis: Diagnosis) -> Iterator[str]:
    if checked := findings.checked(diagnosis):
        yield from (escaped(checked), "")


def compared(found: Comparison, details: bool = False) -> str:
    """The report of a comparison, for a pull request: as short as on a terminal, or with its tables and lists."""
    lines = [f"## {escaped(comparison.headline(found))}", ""]
    told = [*map(" ".join, comparison.settings(found)), *found.incomparable]
    lines += [line for sentence in told for line in (f"**{escaped(sentence)}**", "")]
    listed = [*comparison.causes(found), *(() if details else map(" ".join, comparison.brief(found)))]
    lines += [*(f"- {escaped(sentence)}" for sentence in listed), *[""] * bool(listed), escaped(found.why), ""]
    if not details:
        return "\n".join(lines)
    for section in comparison.sections(found):
        lines += _table(section)
    for title, items in comparison.lists(found):
        lines += _listed(title, map(" ".join, items))
    return "\n".join(lines)


def watched(found: WatchedRun, details: bool = False) -> str:
    """The report of a watched run: as short as on a terminal, or with its tables."""
    run = found.ranks[0]
    lines = [f"## {escaped(watched_run.headline(run))}", "", escaped(watched_run.subject(found)), ""]
    if damage := watched_run.damage(run):
        lines += [f"**{escaped(damage)}**", ""]
    cards = watched_run.cards(found)
    shown = cards if details else cards[: watched_run.MOST_IN_FULL]
    if shown:
        lines += [f"### {watched_run.FINDINGS}", "", *(line for one in shown for line in _run_card(one, details)), ""]
    if not details:
        left = watched_run.left_out(found, cards[len(shown) :])
        return "\n".join([*lines, *(f"- {escaped(' '.join(both))}" for both in left)]).rstrip() + "\n"
    lines += _listed(watched_run.OTHERS, watched_run.others(found))
    for section in watched_run.sections(found):
        lines += _table(section)
    return "\n".join(lines).rstrip() + "\n"


def _run_card(card: RunCard, details: bool) -> list[str]:
    saves = f" saves **{escaped(card.saving)}**" if card.saving else ""
    told = [*card.evidence[: None if details else 1], f"→ {card.change}", card.detail if details else ""]
    return [f"1. **{escaped(card.title)}**{saves}", *(f"   {escaped(text)}" for text in told if text)]


def escaped(text: str) -> str:
    """The text escaped for Markdown and HTML, so that it also mentions nobody and links nowhere."""
    return _ACTIVE.sub(r"\\\1", text).replace("@", "@\u200b").replace("://", ":\u200b//")


def tried(report: Report) -> str:
    """What trials have found, for a pull request."""
    lines = [f"**{escaped(trials.conclusion(report))}**", ""]
    if table := trials.all_of(report):
        heads = ["| Fix | Predicted | Measured | Losses | Verdict |", "|---|---|---|---|---|"]
        lines += [*heads, *map(_trial_row, table), ""]
    if report.baseline is not None:
        base = escaped(trials.as_it_is(report.baseline))
        lines += [f"{base}. Speed-ups are step times without and with the fix.", ""]
    for one in table:
        lines += [f"<details><summary>{html.escape(trials.name(one))}</summary>", ""]
        lines += [f"- {what}: {escaped(text)}" for what, text in trials.rows(one)]
        lines += ["", "</details>", ""]
    if report.not_tried:
        others = (f"- {escaped(f'{one.number}. {one.rule}: {one.why}')}." for one in report.not_tried)
        lines += ["Not tried:", "", *others, ""]
    return "\n".join([*lines, *(escaped(note) for note in report.notes)]).rstrip() + "\n"


def _trial_row(one: Trial) -> str:
    predicted, measured = trials.speed_ups(one)
    known = dict(trials.rows(one))
    losses = next((known[what] for what in ("losses", "updates", "outputs") if what in known), "")
    cells = (trials.name(one), predicted, measured, losses, trials.verdict(one))
    return f"| {' | '.join(map(escaped, cells))} |"


def _cards(title: str, cards: list[Card]) -> list[str]:
    return [f"### {title}", "", *(line for card in cards for line in _card(card)), ""] if cards else []


def _card(card: Card) -> list[str]:
    saves = f" saves **{escaped(card.saving)}**" if card.saving else ""
    lines = [f"{card.number}. **{escaped(card.title)}**{saves}"]
    lines += [f"   {escaped(evidence)}" for evidence in card.evidence]
    if card.place:
        lines.append(f"   At {escaped(card.place)}.")
    for fix, safety in card.fixes:
        lines += ["", f"   - {escaped(fix.do)} ({escaped(safety)})"]
        if fix.after:
            lines += ["", "     ```python", *(f"     {line}" for line in fix.after.splitlines()), "     ```"]
    return [*lines, "", f"   {escaped(card.detail)}. Confidence: {escaped(card.confidence)}."]


def _table(section: Section) -> list[str]:
    heads = [capital(head) or " " for head in section.columns]
    numbers = len(heads) - 1 - section.words
    rule = "|---" + "|--:" * numbers + "|---" * section.words + "|"
    lines = [f"### {escaped(section.title)}", "", f"| {' | '.join(heads)} |", rule]
    for row in section.rows:
        label = f"{row.label}, at {row.place}" if row.place else row.label
        lines.append(f"| {' | '.join(map(escaped, (label, *row.cells)))} |")
    return [*lines, "", *([f"{escaped(section.note)}", ""] if section.note else [])]


_DETAILS: dict[str, Callable[[Diagnosis], Iterable[str]]] = {
    "what to fix": _fixes,
    "risks": _risks,
    "what was tried": _trials,
    "tables": _sections,
    "what is known of the recording": _recording,
    "what was checked": _checked,
}
"""Behind the head of a report, in order."""


def shown_in_notebooks() -> type[Diagnosis]:
    """The class Diagnosis, given the method by which notebooks show it here, as contracts import no reports."""
    type.__setattr__(Diagnosis, "_repr_html_", notebook_html)
    return Diagnosis


def notebook_html(diagnosis: Diagnosis) -> str:
    """What a notebook shows: the report in brief."""
    from diagnose.reports import terminal

    report = html.escape(terminal.render(diagnosis, terminal.MOST_WIDTH))
    return f'<pre style="white-space: pre; overflow-x: auto">{report}</pre>'
