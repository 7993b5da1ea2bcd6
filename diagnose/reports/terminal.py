"""A Diagnosis on a terminal. Names from the trace are shown as text, never as markup."""

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from diagnose import failures
from diagnose.contracts.comparison import Comparison
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.watched_run import WatchedRun
from diagnose.reports import brief, comparison, findings, job_tables, shapes, trials, watched_run
from diagnose.reports.brief import Brief
from diagnose.reports.findings import Card, Entry
from diagnose.reports.heading import Segment
from diagnose.reports.watched_run import RunCard
from diagnose.trace import units
from diagnose.trace.model import Severity

MOST_WIDTH = 100
MOST_LINES, MOST_JOB_LINES = 40, 50  # Of a report in brief.
FEW_NOTES = 4  # That are shown beside findings in full.
MOST_OF_RUN = 22  # Lines of a watched run, without details.
MOST_LEGEND, LEGEND = 4, 0.01  # Parts of the bar that are named, and of what share on.
STYLES = {findings.FAULTS: "bold red", findings.OPTIONS: "bold yellow", findings.LOOK: "bold cyan"}
STYLES |= {findings.LATER: "bold cyan", findings.RISKS: "bold red"}
SAVES_WIDTH, PLACE_WIDTH = 26, 68  # Of a place the end is kept: a file's name and line.
CARD_MARGIN = 9  # Columns beside the code of a card.
_SEVERITY_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def render(
    diagnosis: Diagnosis, width: int = 80, color: bool = False, details: bool = False, minor: bool = False
) -> str:
    """The report as text of at most `width` columns (MOST_WIDTH at most), with ANSI colours if asked. In brief it has
    at most MOST_LINES lines, or MOST_JOB_LINES for a job; `details`: with all evidence, tables and notes. `minor`:
    with findings under 1 % of the step as well."""
    width = min(width, MOST_WIDTH)
    with failures.collected() as lost:
        found = failures.attempt("the report in brief", brief.NOTHING, brief.of, diagnosis)
        parts = failures.section("the whole run", _whole_run, diagnosis, width, details)
        head = _head(found, width)
        smaller = failures.section("smaller findings", _smaller, diagnosis) if minor else []
        if details or found is brief.NOTHING:
            parts += [*head, *failures.each(_DETAILS, diagnosis, width), *smaller, *_next(found, width, details)]
        else:
            most, then = MOST_LINES if diagnosis.job is None else MOST_JOB_LINES, _next(found, width)
            parts += [*head, *_body(found, width, most - len(head) - len(then)), *smaller, *then]
    left_out = shapes.bullets("Not in this report", [(f"{one.what} ", one.effect, "bold red") for one in lost])
    return shapes.printed([*parts, *left_out], width, color)


def _head(found: Brief, width: int) -> list[Text]:
    """What ran, the step with what bounds it, its bar, and what fixing the faults gives."""
    lines = [*_wrapped(found.subject, width, style="dim"), Text()]
    lines += [*_wrapped(found.headline, width, "  ", "bold"), *_bar(found.bar, width)]
    lines += _wrapped(found.warning, width, "  ", "bold red")
    lines += [Text()] * bool(found.gain)
    return [*lines, *(line for sentence in found.gain for line in _wrapped(sentence, width, "  ", "bold"))]


def _wrapped(text: str, width: int, indent: str = "", style: str = "", hang: str = "") -> list[Text]:
    """Lines of at most `width` columns: each begins with `indent`, those after the first with `hang` as well."""
    after = indent + text[: len(text) - len(text.lstrip())] + hang
    whole = text.replace(" %", "\xa0%")
    lines = textwrap.wrap(whole, width, initial_indent=indent, subsequent_indent=after, break_on_hyphens=False)
    return [Text(line.replace("\xa0", " "), style=style) for line in lines]


def _bar(parts: Sequence[Segment], width: int) -> list[Text]:
    """The step as a bar of `width // 2` characters, with a legend beside it, or below if it does not fit."""
    whole = sum(part.ns for part in parts)
    if not whole:
        return []
    drawn, ends = "", 0
    for part in parts:
        ends += part.ns
        drawn += part.fill * (round(width // 2 * ends / whole) - len(drawn))
    named = [(part.label, part.ns) for part in parts if part.ns >= LEGEND * whole][:MOST_LEGEND]
    others = [("other", rest)] if (rest := whole - sum(ns for _, ns in named)) >= LEGEND * whole else []
    legend = "   ".join(f"{label} {units.rounded_share(ns / whole)}" for label, ns in [*named, *others])
    line = Text.assemble("  ", (drawn, "cyan"))
    if len(line) + len(legend) + 3 <= width:
        return [line.append(f"   {legend}", style="dim")]
    return [line, *_wrapped(legend, width, "  ", "dim")]


def _body(found: Brief, width: int, most: int) -> list[Text]:
    """Findings and notes in `most` lines; at least one of each: notes are cut first, then details, then findings."""
    count, notes = sum(len(some) for _, _, some in found.lists), len(found.notes)
    few, fewest = min(notes, FEW_NOTES), min(notes, 1)
    tries = [(count, count, kept, True) for kept in range(notes, few, -1)]
    tries += [(in_full, count, few, True) for in_full in range(count, 0, -1)]
    tries += [(1, shown, fewest, False) for shown in range(count, 0, -1)]
    made = (_lines(found, width, *one) for one in tries or [(0, 0, notes, False)])
    return next((lines for lines in made if len(lines) <= most), _lines(found, width, 0, 1, 1, False))


def _lines(found: Brief, width: int, in_full: int, shown: int, notes: int, changes: bool) -> list[Text]:
    """The first `shown` findings, the first `in_full` of them in full, and the first `notes` notes. `changes`: faults
    that are not in full still show their fix, if it is one line."""
    lines, at = list[Text](), 0
    for name, about, some in found.lists:
        if at < shown:
            gap = max(width - len(name) - len(about), 2)
            lines += [Text(), Text.assemble((name, STYLES[name]), " " * gap, (about, "dim"))[:width]]
        for one in some[: max(shown - at, 0)]:
            lines += _entry(one, width, name, at < in_full, changes)
            at += 1
    omitted = sum(len(some) for _, _, some in found.lists) - at
    lines += [Text(f"  {omitted} more: --details", style="dim")] * bool(omitted)
    if notes:
        lines += [Text(), Text("NOTES", style="bold cyan")]
        lines += [line for note in found.notes[:notes] for line in _wrapped(note, width, "  ", hang="  ")]
    return lines


def _entry(one: Entry, width: int, heading: str, in_full: bool, changes: bool) -> list[Text]:
    """A finding: a line with what it saves; in full also its place, evidence (not of options and LATER) and change."""
    saves = f"{one.saves} {one.range}".strip()
    right = "  ".join(filter(None, (saves.ljust(SAVES_WIDTH), one.level.ljust(6), one.code.ljust(4)))).rstrip()
    title = units.clipped(one.title, width - 5)
    left = f"  {one.number:<2} {title}"
    gap = width - len(left) - len(right)
    lines = [Text.assemble((left, "bold"), " " * max(gap, 0))]
    if gap >= 2:
        lines[0].append(right, style="green" if heading == findings.FAULTS else "")
    else:
        lines.append(Text(" " * max(width - len(right), 5) + right))
    if not in_full and (heading != findings.FAULTS or not changes or len(one.change) > 1):
        return lines
    if in_full and one.place:
        lines.append(Text("     " + units.clipped_left(one.place, width - 5), style="cyan"))
    if in_full and heading in (findings.FAULTS, findings.LOOK, findings.RISKS):
        lines += _wrapped(one.evidence, width, "     ")
    hang = "    " if one.is_code else ""
    return [*lines, *(part for line in one.change for part in _wrapped(line, width, "   > ", "magenta", hang))]


def _next(found: Brief, width: int, details: bool = False) -> list[Text]:
    """Lines with the commands to run next, `…` for a path that does not fit. `details`: without --details."""
    offered = [one for one in found.next if not (details and "--details" in one[0])]
    commands = [command + (path if len(command + path) + 7 <= width else "…") for command, path, _ in offered]
    room, lines = max(map(len, commands), default=0), [Text()] * bool(offered)
    for at, (command, (_, _, what)) in enumerate(zip(commands, offered, strict=True)):
        line = f"{'Next:' if at == 0 else '':<6} {command}"
        lines.append(Text(f"{line:<{7 + room}}   {what}" if 10 + room + len(what) <= width else line))
    return lines


def _fixes(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    cards = findings.cards(diagnosis)
    for kind, name in findings.HEADINGS.items():
        yield from _cards(name, [card for card in cards if card.kind is kind], len(cards), width)
    yield from shapes.bullets(findings.LATER, [(f"{title}: ", then, "") for title, then in findings.hidden(diagnosis)])


def _cards(title: str, some: list[Card], of: int, width: int) -> Iterator[RenderableType]:
    """A titled list of cards; nothing of none. `of`: the number of the last card, below which is no blank line."""
    if some:
        yield shapes.title(title)
        yield from (_card(card, of, width) for card in some)


def _smaller(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    return shapes.bullets(findings.MINOR, [(f"{title}: ", saving, "") for title, saving in findings.minor(diagnosis)])


def _risks(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    risks = findings.risks(diagnosis)
    return _cards(findings.RISKS, risks, len(risks), width)


def _sections(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    return (shapes.section(shown, width) for shown in job_tables.sections(diagnosis))


def _recording(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    yield from shapes.bullets(
        "Could not look at", [(f"{what}. ", how, "") for what, how in findings.unchecked(diagnosis)]
    )
    notes = [(f"{note.what} ", note.effect, _SEVERITY_STYLE[note.severity]) for note in diagnosis.integrity]
    notes += [(text, "", "bold red") for text in findings.crashed(diagnosis)]
    yield from shapes.bullets("About this recording", notes)


def _checked(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    if checked := findings.checked(diagnosis):
        yield Text(f"\n{checked}", style="bold")


def _run(found: WatchedRun, width: int) -> Iterator[RenderableType]:
    yield from (Text(text, style=style) for text, style in _run_head(found))
    if cards := watched_run.cards(found):
        yield shapes.title(watched_run.FINDINGS)
        yield from (_run_card(at, card, len(cards)) for at, card in enumerate(cards, start=1))
    yield from shapes.bullets(watched_run.OTHERS, [(sentence, "", "") for sentence in watched_run.others(found)])
    yield from (shapes.section(shown, width) for shown in watched_run.sections(found))


def _run_head(found: WatchedRun) -> list[tuple[str, str]]:
    """Lines on top of a watched run's report, each with its style."""
    run = found.ranks[0]
    head = [(watched_run.headline(run), "bold"), (watched_run.subject(found), "dim")]
    return [*head, *[(damage, "yellow") for damage in [watched_run.damage(run)] if damage]]


def _whole_run(diagnosis: Diagnosis, width: int, details: bool) -> Iterator[RenderableType]:
    if diagnosis.watched is not None:
        yield from _run(diagnosis.watched, width) if details else _run_in_brief(diagnosis.watched, width)
        yield shapes.title("The recorded steps")


def _tried(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    report = diagnosis.trials
    if report is None:
        return
    yield shapes.title(trials.TITLE)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head in ("fix", "predicted", "measured", ""):
        table.add_column(head, header_style="dim")
    for one in trials.all_of(report):
        table.add_row(*map(Text, (trials.name(one), *trials.speed_ups(one), trials.verdict(one))))
    yield shapes.indented(table)
    yield shapes.indented(Text(trials.conclusion(report)))


def _card(card: Card, of: int, width: int) -> RenderableType:
    """A finding or risk: its title with what it saves, the evidence, the fix, and how sure both are."""
    lines: list[RenderableType] = [Text(evidence) for evidence in card.evidence]
    if card.place:
        lines.append(Text(f"at {units.clipped_left(card.place, PLACE_WIDTH)}", style="cyan"))
    for fix, safety in card.fixes:
        lines.append(Text.assemble(("→ ", "green"), fix.do, (f" ({safety})", "dim")))
        lines += [Text(f"  {line}", style="magenta") for line in shapes.code(fix.after, width - CARD_MARGIN)]
    lines.append(Text(f"{card.detail}. Confidence: {card.confidence}.", style="dim"))
    title = shapes.saving_title(Text.assemble((card.title, "bold"), (f" ({card.code})", "dim")), card.saving)
    return shapes.numbered(card.number, [title, *lines], of)


def _run_card(at: int, card: RunCard, of: int) -> RenderableType:
    lines = [shapes.saving_title(Text(card.title, style="bold"), card.saving), *map(Text, card.evidence)]
    lines.append(Text.assemble(("→ ", "green"), card.change))
    return shapes.numbered(at, [*lines, *[Text(card.detail, style="dim")] * bool(card.detail)], of)


_DETAILS = {
    "what to fix": _fixes,
    "risks": _risks,
    "what was tried": _tried,
    "tables": _sections,
    "what is known of the recording": _recording,
    "what was checked": _checked,
}
"""Behind the head of a report, in order."""


def compared(found: Comparison, width: int = 80, color: bool = False, details: bool = False) -> str:
    """The report of a comparison, as `render`: at most 15 lines, or with all its tables and lists."""
    width = min(width, MOST_WIDTH)
    parts: list[RenderableType] = [Text(comparison.headline(found), style="bold")]
    parts += [shapes.line(label, rest) for label, rest in comparison.settings(found)]
    first, *others = found.incomparable or ("",)
    parts += [Text.assemble(shapes.line(text), style="yellow") for text in (first, " ".join(others)) if text]
    parts += [shapes.line(f"  {sentence}") for sentence in comparison.causes(found)]
    if details:
        parts.append(Text(found.why, style="dim"))
        parts += [shapes.section(shown, width) for shown in comparison.sections(found)]
        for title, items in comparison.lists(found):
            parts += shapes.bullets(title, [(f"{first} ", rest, "") for first, rest in items])
    else:
        parts += [shapes.line(label, rest) for label, rest in comparison.brief(found)]
        parts += [Text(found.why, style="dim"), shapes.following(*comparison.NEXT)]
    return shapes.printed(parts, width, color)


def watched(found: WatchedRun, width: int = 80, color: bool = False, details: bool = False) -> str:
    """The report of a watched run, as `render`: at most MOST_OF_RUN lines, or with all its tables."""
    width = min(width, MOST_WIDTH)
    return shapes.printed(_run(found, width) if details else _run_in_brief(found, width), width, color)


def _run_in_brief(found: WatchedRun, width: int) -> Iterator[RenderableType]:
    """A watched run in at most MOST_OF_RUN lines: as many findings as fit, then the titles of those left out."""
    cards = watched_run.cards(found)
    lines = [Text(line, style=style) for text, style in _run_head(found) for line in textwrap.wrap(text, width)]
    shown = 0
    for shown, card in enumerate(cards[: watched_run.MOST_IN_FULL], start=1):
        more = list(_brief_run_card(shown, card, width))
        if len(lines) + len(more) > MOST_OF_RUN - 5:  # What was left out, and what comes next.
            shown -= 1
            break
        lines += [Text(), *more] if shown == 1 else more
    yield from lines
    yield Text()
    yield from (shapes.line(label, rest) for label, rest in watched_run.left_out(found, cards[shown:]))
    yield shapes.following(*watched_run.NEXT)


def _brief_run_card(at: int, card: RunCard, width: int) -> Iterator[Text]:
    """A finding of a watched run in brief: its title, the first evidence and the change, in five lines at most."""
    title = units.clipped(f"{at}. {card.title}", width - len(card.saving) - len("  saves ") * bool(card.saving))
    yield shapes.saving_title(Text(title, style="bold"), card.saving)
    for first, text in (("   ", card.evidence[0]), ("   > ", card.change)):
        part = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * len(first), max_lines=2)
        yield from map(Text, part)
