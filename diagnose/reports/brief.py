"""A Diagnosis in short, for agents and scripts: what a step waits for, what to change first, what nobody could look at.

The text is bounded, whatever the recording holds, and all that may come from the recording is quoted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diagnose import failures
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.failures import Failure
from diagnose.reports import findings, heading, sections, trials
from diagnose.reports.findings import Card
from diagnose.reports.quoting import NOTE, quoted, size
from diagnose.reports.sections import Row
from diagnose.trace.model import Severity

MOST_BYTES = 7_000  # Of the text: some 2,300 tokens by the bound of `quoting`, as others come beside it (our choice).
ENDING_BYTES = 600  # Kept for the last lines.
MOST_PARTS = 6  # Parts of what a step waits for.
MOST_CARDS = 5  # Findings that are told with evidence and fix.
MOST_LINES = 8  # Of any other list.
MOST_CODE = 6  # Lines of code of a fix.


@dataclass(frozen=True)
class _List:
    """Items of some lines each, below a title."""

    title: str
    items: list[list[str]]
    name: str  # What several of them are called.
    most: int = MOST_LINES


def render(diagnosis: Diagnosis) -> str:
    """The summary, ending in a newline."""
    with failures.collected() as lost:
        return _rendered(diagnosis, lost)


def _rendered(diagnosis: Diagnosis, lost: list[Failure]) -> str:
    text = Bounded(MOST_BYTES - ENDING_BYTES)
    text.add([heading.headline(diagnosis), NOTE, f"Recorded: {quoted(heading.subject(diagnosis))}"])
    if said := findings.lost(diagnosis):
        text.add([quoted(said, 600)])
    if incomplete := findings.incomplete(diagnosis):
        text.add([incomplete])
    text.add(["", *failures.section("what the step waits for", _waits, diagnosis)])
    left = []
    for one in failures.each(_LISTS, diagnosis):
        shown = text.add_items(one.title, one.items[: one.most])
        if shown < len(one.items):
            left.append(f"{len(one.items) - shown} of {len(one.items)} {one.name}")
    ending = [findings.checked(diagnosis)] if diagnosis.outcomes else []
    if left:
        ending.append(f"Left out here: {', '.join(left)}.")
    if lost:
        ending.append(" ".join([*(one.what for one in lost[:MOST_LINES]), failures.REPORT]))
    ending.append("All of it: diagnose analyze PATH; as data: diagnose analyze PATH --format json.")
    return "\n".join([*text.lines, "", *ending]) + "\n"


class Bounded:
    """Lines that hold at most so many bytes together."""

    def __init__(self, most: int) -> None:
        self.lines: list[str] = []
        self._left = most

    def add(self, lines: Iterable[str]) -> bool:
        """Add all of them, or none: whether there was room."""
        some = list(lines)
        needed = sum(size(line) + 1 for line in some)
        if needed > self._left:
            return False
        self._left -= needed
        self.lines += some
        return True

    def add_items(self, title: str, items: Iterable[list[str]]) -> int:
        """Add items below a title until one has no room. Returns how many were added."""
        added = 0
        for item in items:
            if not self.add([*(["", title] if not added else []), *item]):
                break
            added += 1
        return added


def _first(diagnosis: Diagnosis) -> Iterator[_List]:
    cards, worth = findings.cards(diagnosis), [finding for finding in diagnosis.findings if not finding.minor]
    told = [list(_card(card, one)) for card, one in zip(cards, worth, strict=True)]
    yield _List("What to fix:", told[:MOST_CARDS], "findings")


def _further(diagnosis: Diagnosis) -> Iterator[_List]:
    yield _List("Then:", [[_line(card)] for card in findings.cards(diagnosis)[MOST_CARDS:]], "further findings")


def _tried(diagnosis: Diagnosis) -> Iterator[_List]:
    tried = [] if diagnosis.trials is None else trials.all_of(diagnosis.trials)
    yield _List(f"{trials.TITLE}:", [[f"  {quoted(trials.brief(one))}"] for one in tried], "trials")


def _unchecked(diagnosis: Diagnosis) -> Iterator[_List]:
    unchecked = [[f"  {quoted(what)}: {quoted(how)}"] for what, how in findings.unchecked(diagnosis)]
    yield _List("Could not look at:", unchecked, "things that could not be looked at")


def _minor(diagnosis: Diagnosis) -> Iterator[_List]:
    minor = [
        [f"  {finding.rank_order}. {finding.rule} ({finding.code}): {_now(finding)}"]
        for finding in diagnosis.findings
        if finding.minor
    ]
    yield _List("Minor:", minor, "minor findings")


def _waits(diagnosis: Diagnosis) -> list[str]:
    """What a step waits for, largest first."""
    section = sections.waits(diagnosis)
    if section is None:
        return ["The critical path is not known: the recording could not be replayed."]
    *rows, whole = section.rows
    parts = sorted(rows, key=lambda row: -row.part)
    others = len(parts[MOST_PARTS:])
    return [
        f"{section.title.partition(',')[0]} (of {whole.cells[0]}):",
        *(f"  {_part(row)}" for row in parts[:MOST_PARTS]),
        *[f"  and {others} smaller part{'s' * (others > 1)}"] * bool(others),
    ]


def _part(row: Row) -> str:
    at = f" at {quoted(row.place, 120)}" if row.place else ""
    return f"{' '.join(f'({cell})' if cell.endswith('%') else cell for cell in row.cells)} {quoted(row.label, 120)}{at}"


def _now(one: RankedFinding) -> str:
    return "pays once the others are fixed" if one.hidden else f"{one.share_of_step:.1%} of the step"


def _card(card: Card, one: RankedFinding) -> Iterator[str]:
    yield f"{card.number}. {one.rule} ({card.code}) saves {card.saving}"
    yield f"   {quoted(card.title)}"
    yield f"   {card.detail}. Confidence: {one.confidence.level.value}."
    if card.place:
        yield f"   at {quoted(card.place)}"
    yield from (f"   evidence {quoted(text)}" for text in card.evidence[:1])
    for fix, safety in card.fixes[:1]:
        yield f"   fix {quoted(fix.do)} ({safety})"
        yield from (f"   code {_code(line)}" for line in fix.after.splitlines()[:MOST_CODE])


def _code(line: str) -> str:
    """A line of code in quotes, behind its indentation."""
    return " " * min(len(line) - len(line.lstrip()), 16) + quoted(line)


def _line(card: Card) -> str:
    at = f" at {quoted(card.place, 120)}" if card.place else ""
    return f"{card.number}. {quoted(card.title, 120)} ({card.code}) saves {card.saving}{at}"


def _risks(diagnosis: Diagnosis) -> Iterator[_List]:
    items = [
        [f"  {card.code} {quoted(card.title)}", *(f"    fix {quoted(fix.do)}" for fix, _ in card.fixes[:1])]
        for card in findings.risks(diagnosis)
    ]
    yield _List(f"{findings.RISKS}, which cost no time now:", items, "risks")


def _notes(diagnosis: Diagnosis) -> Iterator[_List]:
    """What is wrong with the recording, the worst first."""
    items = [[f"  error: {quoted(failed)}"] for failed in findings.crashed(diagnosis)]
    for note in sorted(diagnosis.integrity, key=lambda one: -list(Severity).index(one.severity)):
        items.append([f"  {note.severity.value}: {quoted(f'{note.what} {note.effect}')}"])
    yield _List("About this recording:", items, "notes on the recording")


_LISTS = {
    "what to fix": _first,
    "further findings": _further,
    "risks": _risks,
    "what was tried": _tried,
    "what could not be looked at": _unchecked,
    "notes on the recording": _notes,
    "minor findings": _minor,
}
"""What the summary tells, the most important first."""
