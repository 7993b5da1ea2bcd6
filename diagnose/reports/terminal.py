"""A Diagnosis on a terminal. Names from the trace are shown as text, never as markup."""

import io
import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diagnose import failures
from diagnose.contracts.comparison import Comparison
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.watched_run import WatchedRun
from diagnose.failures import Failure
from diagnose.reports import brief, comparison, findings, sections, trials, watched_run
from diagnose.reports.brief import Brief
from diagnose.reports.findings import Card, Entry
from diagnose.reports.heading import Segment
from diagnose.reports.sections import Section
from diagnose.reports.watched_run import RunCard
from diagnose.trace import units
from diagnose.trace.model import Severity

MOST_WIDTH = 100
MOST_LINES, MOST_JOB_LINES = 40, 50  # Of a report in brief.
FEW_NOTES = 4  # That are shown beside findings in full.
SAVES_WIDTH = 26
MOST_LEGEND, LEGEND = 4, 0.01  # Parts of the bar that are named, and of what share on.
STYLES = {findings.FAULTS: "bold red", findings.OPTIONS: "bold yellow", findings.LOOK: "bold cyan"}
STYLES |= {findings.LATER: "bold cyan", findings.RISKS: "bold red"}
MOST_OF_RUN = 22  # Lines of a watched run, without details.
BAR_WIDTH = 12
WORDS_WIDTH = 36
PLACE_WIDTH = 68  # Its end is kept: a file's name and line.
CARD_MARGIN = 9  # Columns beside the code of a card.
_SEVERITY_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def render(
    diagnosis: Diagnosis, width: int = 80, color: bool = False, details: bool = False, minor: bool = False
) -> str:
    """The report as text of at most `width` columns (MOST_WIDTH at most), with ANSI colours if asked.

    In brief it has at most MOST_LINES lines, that of a job MOST_JOB_LINES. `details`: with all evidence, tables and
    notes. `minor`: with findings that save little as well.
    """
    width = min(width, MOST_WIDTH)
    with failures.collected() as lost:
        found = failures.attempt("the report in brief", brief.NOTHING, brief.of, diagnosis)
        parts = list(failures.section("the whole run", _whole_run, diagnosis, width, details))
        head = _head(found, width)
        smaller = list(failures.section("smaller findings", _smaller, diagnosis, width)) if minor else []
        if details or found is brief.NOTHING:
            parts += [*head, *failures.each(_DETAILS, diagnosis, width), *smaller, *_next(found, width, details)]
        else:
            most, then = MOST_LINES if diagnosis.job is None else MOST_JOB_LINES, _next(found, width)
            parts += [*head, *_body(found, width, most - len(head) - len(then)), *smaller, *then]
    return _printed(Group(*parts, *([_left_out(lost)] if lost else [])), width, color)


def _head(found: Brief, width: int) -> list[Text]:
    """What ran, the step with what bounds it, its bar, and what fixing the faults gives."""
    lines = [*_wrapped(found.subject, width, style="dim"), Text()]
    lines += [*_wrapped(found.headline, width, "  ", "bold"), *_bar(found.bar, width)]
    lines += _wrapped(found.warning, width, "  ", "bold red")
    lines += [Text()] * bool(found.gain)
    return [*lines, *(line for sentence in found.gain for line in _wrapped(sentence, width, "  ", "bold"))]


def _wrapped(text: str, width: int, indent: str = "", style: str = "", hang: str = "") -> list[Text]:
    """The text in lines, those after the first indented by `hang` more."""
    after = indent + text[: len(text) - len(text.lstrip())] + hang
    whole = text.replace(" %", "\xa0%")
    lines = textwrap.wrap(whole, width, initial_indent=indent, subsequent_indent=after, break_on_hyphens=False)
    return [Text(line.replace("\xa0", " "), style=style) for line in lines]


def _bar(parts: Sequence[Segment], width: int) -> list[Text]:
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
    """Findings and notes, in at most so many lines: the last notes go first, then last findings."""
    count, notes = sum(len(some) for _, _, some in found.lists), len(found.notes)
    few, fewest = min(notes, FEW_NOTES), min(notes, 1)
    tries = [(count, count, left, True) for left in range(notes, few, -1)]
    tries += [(in_full, count, few, True) for in_full in range(count, 0, -1)]
    tries += [(1, shown, fewest, False) for shown in range(count, 0, -1)]
    made = (_lines(found, width, *one) for one in tries or [(0, 0, notes, False)])
    return next((lines for lines in made if len(lines) <= most), _lines(found, width, 0, 1, 1, False))


def _lines(found: Brief, width: int, in_full: int, shown: int, notes: int, changes: bool) -> list[Text]:
    """With so many findings in full, so many shown at all, and so many notes. `changes`: of other faults, too."""
    lines, at = list[Text](), 0
    for name, about, some in found.lists:
        if at < shown:
            gap = max(width - len(name) - len(about), 2)
            lines += [Text(), Text.assemble((name, STYLES[name]), " " * gap, (about, "dim"))[:width]]
        for one in some[: max(shown - at, 0)]:
            lines += _entry(one, width, name, at < in_full, changes)
            at += 1
    left = sum(len(some) for _, _, some in found.lists) - at
    lines += [Text(f"  {left} more: --details", style="dim")] * bool(left)
    if notes:
        lines += [Text(), Text("NOTES", style="bold cyan")]
        lines += [line for note in found.notes[:notes] for line in _wrapped(note, width, "  ", hang="  ")]
    return lines


def _entry(one: Entry, width: int, name: str, in_full: bool, changes: bool) -> list[Text]:
    """A finding: one line with what it saves; in full also where, the evidence, and the change."""
    saves = f"{one.saves} {one.range}".strip()
    right = "  ".join(filter(None, (saves.ljust(SAVES_WIDTH), one.level.ljust(6), one.code.ljust(4)))).rstrip()
    title = units.clipped(one.title, width - 5)
    left = f"  {one.number:<2} {title}"
    gap = width - len(left) - len(right)
    lines = [Text.assemble((left, "bold"), " " * max(gap, 0))]
    if gap >= 2:
        lines[0].append(right, style="green" if name == findings.FAULTS else "")
    else:
        lines.append(Text(" " * max(width - len(right), 5) + right))
    if not in_full and (name != findings.FAULTS or not changes or len(one.change) > 1):
        return lines
    if in_full and one.place:
        lines.append(Text("     " + units.clipped_left(one.place, width - 5), style="cyan"))
    if in_full and name in (findings.FAULTS, findings.LOOK, findings.RISKS):
        lines += _wrapped(one.evidence, width, "     ")
    hang = "    " if one.is_code else ""
    return [*lines, *(part for line in one.change for part in _wrapped(line, width, "   > ", "magenta", hang))]


def _next(found: Brief, width: int, details: bool = False) -> list[Text]:
    """The commands, with an ellipsis for a path that does not fit on the line; not for what is already there."""
    some = [one for one in found.next if not (details and "--details" in one[0])]
    commands = [command + (path if len(command + path) + 7 <= width else "…") for command, path, _ in some]
    room, lines = max(map(len, commands), default=0), [Text()] * bool(some)
    for at, (command, (_, _, what)) in enumerate(zip(commands, some, strict=True)):
        line = f"{'Next:' if at == 0 else '':<6} {command}"
        lines.append(Text(f"{line:<{7 + room}}   {what}" if 10 + room + len(what) <= width else line))
    return lines


def _printed(report: RenderableType, width: int, color: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=color, no_color=not color, highlight=False)
    console.print(report)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _fixes(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    cards = findings.cards(diagnosis)
    for kind, name in findings.HEADINGS.items():
        if some := [card for card in cards if card.kind is kind]:
            yield _title(name)
            yield from (_card(card, len(cards), width) for card in some)
    if hidden := findings.hidden(diagnosis):
        yield _bullets(findings.LATER, [(f"{title}: ", then, "") for title, then in hidden])


def _smaller(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    if minor := findings.minor(diagnosis):
        yield _bullets(findings.MINOR, [(f"{title}: ", saving, "") for title, saving in minor])


def _risks(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    if risks := findings.risks(diagnosis):
        yield _title(findings.RISKS)
        yield from (_card(card, len(risks), width) for card in risks)


def _sections(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    yield from (_section(section, width) for section in sections.sections(diagnosis))


def _recording(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    if unchecked := findings.unchecked(diagnosis):
        yield _bullets("Could not look at", [(f"{what}. ", how, "") for what, how in unchecked])
    notes = [(f"{note.what} ", note.effect, _SEVERITY_STYLE[note.severity]) for note in diagnosis.integrity]
    notes += [(text, "", "bold red") for text in findings.crashed(diagnosis)]
    if notes:
        yield _bullets("About this recording", notes)


def _checked(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    if checked := findings.checked(diagnosis):
        yield Text(f"\n{checked}", style="bold")


def _left_out(lost: list[Failure]) -> RenderableType:
    return _bullets("Not in this report", [(f"{one.what} ", one.effect, "bold red") for one in lost])


def _run(found: WatchedRun, width: int) -> Iterator[RenderableType]:
    run = found.ranks[0]
    yield Text(watched_run.headline(run), style="bold")
    yield Text(watched_run.subject(found), style="dim")
    if damage := watched_run.damage(run):
        yield Text(damage, style="yellow")
    if cards := watched_run.cards(found):
        yield _title(watched_run.FINDINGS)
        yield from (_run_card(at, card, len(cards)) for at, card in enumerate(cards, start=1))
    if told := watched_run.others(found):
        yield _bullets(watched_run.OTHERS, [(sentence, "", "") for sentence in told])
    yield from (_section(section, width) for section in watched_run.sections(found))


def _whole_run(diagnosis: Diagnosis, width: int, details: bool) -> Iterator[RenderableType]:
    if diagnosis.watched is not None:
        yield from _run(diagnosis.watched, width) if details else _run_in_brief(diagnosis.watched, width)
        yield _title("The recorded steps")


def _tried(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    report = diagnosis.trials
    if report is None:
        return
    yield _title(trials.TITLE)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head in ("fix", "predicted", "measured", ""):
        table.add_column(head, header_style="dim")
    for one in trials.all_of(report):
        table.add_row(*map(Text, (trials.name(one), *trials.speed_ups(one), trials.verdict(one))))
    yield Padding(table, (0, 0, 0, 2))
    yield Padding(Text(trials.conclusion(report)), (0, 0, 0, 2))


def _code(text: str, width: int) -> Iterator[str]:
    """Lines of code; the comment of one that is too long goes on a line before it, so that none breaks."""
    for line in text.splitlines():
        code, _, comment = line.partition("  # ")
        if comment and code.strip() and len(line) > width:
            indent = code[: len(code) - len(code.lstrip())]
            yield from (f"{indent}# {part}" for part in textwrap.wrap(comment, max(width - len(indent) - 2, 20)))
            yield code
        else:
            yield line


def _card(card: Card, cards: int, width: int) -> RenderableType:
    """One of several findings: its title with what it saves, the evidence, the fix, and how sure both are.

    A risk saves nothing.
    """
    title = _saving_title(Text.assemble((card.title, "bold"), (f" ({card.code})", "dim")), card.saving)
    lines: list[RenderableType] = [title]
    lines += [Text(evidence) for evidence in card.evidence]
    if card.place:
        lines.append(Text(f"at {units.clipped_left(card.place, PLACE_WIDTH)}", style="cyan"))
    for fix, safety in card.fixes:
        lines.append(Text.assemble(("→ ", "green"), fix.do, (f" ({safety})", "dim")))
        lines += [Text(f"  {line}", style="magenta") for line in _code(fix.after, width - CARD_MARGIN)]
    lines.append(Text(f"{card.detail}. Confidence: {card.confidence}.", style="dim"))
    return _numbered(card.number, lines, cards)


def _run_card(at: int, card: RunCard, cards: int) -> RenderableType:
    lines: list[RenderableType] = [_saving_title(Text(card.title, style="bold"), card.saving)]
    lines += [Text(evidence) for evidence in card.evidence]
    lines.append(Text.assemble(("→ ", "green"), card.change))
    if card.detail:
        lines.append(Text(card.detail, style="dim"))
    return _numbered(at, lines, cards)


def _saving_title(title: Text, saving: str) -> Text:
    if saving:
        title.append_text(Text.assemble(("  saves ", "dim"), (saving, "bold green")))
    return title


def _numbered(number: int, lines: list[RenderableType], of: int) -> RenderableType:
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row(f"{number}.", Group(*lines))
    return Padding(table, (0, 0, 1 if number < of else 0, 2))


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold cyan")


def _section(section: Section, width: int) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=any(section.columns), header_style="dim", expand=False)
    single = len(section.columns) == 2 and not any(section.columns)
    bars = not single and not section.words and any(row.part for row in section.rows) and len(section.columns) <= 4
    table.add_column("", overflow="fold" if single else "ellipsis", no_wrap=not single, ratio=None)
    for k, head in enumerate(section.columns[1:], 2):
        wraps = single or (section.words and k == len(section.columns))
        table.add_column(head, justify="left" if wraps else "right", no_wrap=not wraps)
    if bars:
        table.add_column("", no_wrap=True, style="cyan")
    room = _label_room(section, width, bars)
    for row in section.rows:
        label = row.label if single else units.clipped(row.label, room)
        cells = [Text(label), *(Text(cell) for cell in row.cells)]
        if bars:
            cells.append(Text(units.bar(row.part, 1.0, BAR_WIDTH)))
        table.add_row(*cells)
        if row.place:
            table.add_row(Text("  " + units.clipped_left(row.place, room - 2), style="dim"))
    parts: list[RenderableType] = [_title(section.title), Padding(table, (0, 0, 0, 2))]
    if section.note:
        parts.append(Padding(Text(section.note, style="dim"), (0, 0, 0, 2)))
    return Group(*parts)


def _label_room(section: Section, width: int, bars: bool) -> int:
    """Columns left for the label when every other cell is shown whole."""
    widths = [
        max(len(head), *(len(row.cells[k]) for row in section.rows)) for k, head in enumerate(section.columns[1:])
    ]
    if section.words:
        widths[-1] = min(widths[-1], WORDS_WIDTH)
    return max(width - sum(widths) - 2 * len(widths) - 4 - (BAR_WIDTH + 2) * bars, 12)


def _bullets(title: str, items: list[tuple[str, str, str]]) -> RenderableType:
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for first, rest, style in items:
        table.add_row("·", Text.assemble((first, style), (rest, "dim")))
    return Group(_title(title), Padding(table, (0, 0, 0, 2)))


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
    parts += [_line(label, rest) for label, rest in comparison.settings(found)]
    first, *others = found.incomparable or ("",)
    parts += [Text.assemble(_line(text), style="yellow") for text in (first, " ".join(others)) if text]
    parts += [_line(f"  {sentence}") for sentence in comparison.causes(found)]
    if details:
        parts.append(Text(found.why, style="dim"))
        parts += [_section(section, width) for section in comparison.sections(found)]
        for title, items in comparison.lists(found):
            parts.append(_bullets(title, [(f"{first} ", rest, "") for first, rest in items]))
    else:
        parts += [_line(label, rest) for label, rest in comparison.brief(found)]
        parts += [Text(found.why, style="dim"), _following(*comparison.NEXT)]
    return _printed(Group(*parts), width, color)


def _line(label: str, rest: str = "") -> Text:
    """One line, which ends in an ellipsis where it is too long."""
    return Text.assemble(label, *([(f" {rest}", "dim")] if rest else []), no_wrap=True, overflow="ellipsis")


def _following(command: str, what: str) -> Text:
    return Text.assemble("Next: ", (command, "cyan"), (f"  {what}", "dim"))


def watched(found: WatchedRun, width: int = 80, color: bool = False, details: bool = False) -> str:
    """The report of a watched run, as `render`: at most MOST_OF_RUN lines, or with all its tables."""
    width = min(width, MOST_WIDTH)
    return _printed(Group(*(_run(found, width) if details else _run_in_brief(found, width))), width, color)


def _run_in_brief(found: WatchedRun, width: int) -> Iterator[RenderableType]:
    run, cards = found.ranks[0], watched_run.cards(found)
    head = (watched_run.headline(run), "bold"), (watched_run.subject(found), "dim"), (watched_run.damage(run), "yellow")
    lines = [Text(line, style=style) for text, style in head for line in textwrap.wrap(text, width)]
    shown = 0
    for shown, card in enumerate(cards[: watched_run.MOST_IN_FULL], start=1):
        more = list(_brief_run_card(shown, card, width))
        if len(lines) + len(more) > MOST_OF_RUN - 5:  # What was left out, and what comes next.
            shown -= 1
            break
        lines += [Text(), *more] if shown == 1 else more
    yield from lines
    yield Text()
    yield from (_line(label, rest) for label, rest in watched_run.left_out(found, cards[shown:]))
    yield _following(*watched_run.NEXT)


def _brief_run_card(at: int, card: RunCard, width: int) -> Iterator[Text]:
    title = units.clipped(f"{at}. {card.title}", width - len(card.saving) - len("  saves ") * bool(card.saving))
    yield _saving_title(Text(title, style="bold"), card.saving)
    for first, text in (("   ", card.evidence[0]), ("   > ", card.change)):
        part = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * len(first), max_lines=2)
        yield from map(Text, part)
