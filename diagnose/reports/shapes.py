"""What a report on a terminal is made of: titles, tables, lists, cards. Names from a trace are text, never markup."""

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diagnose.reports.sections import Section
from diagnose.trace import units

BAR_WIDTH, WORDS_WIDTH = 12, 36  # Columns of a table's bars, and of its words.


def printed(parts: Iterable[RenderableType], width: int, color: bool) -> str:
    """The parts as text of at most `width` columns."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=color, no_color=not color, highlight=False)
    console.print(Group(*parts))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def title(text: str) -> Text:
    """The title of a part of the report, after an empty line."""
    return Text(f"\n{text}", style="bold cyan")


def line(label: str, rest: str = "") -> Text:
    """One line, which ends in an ellipsis where it is too long."""
    return Text.assemble(label, *([(f" {rest}", "dim")] if rest else []), no_wrap=True, overflow="ellipsis")


def following(command: str, what: str) -> Text:
    """`Next:` with a command, and what it does."""
    return Text.assemble("Next: ", (command, "cyan"), (f"  {what}", "dim"))


def saving_title(name: Text, saving: str) -> Text:
    """A title with what it saves behind it."""
    return name.append_text(Text.assemble(("  saves ", "dim"), (saving, "bold green"))) if saving else name


def numbered(number: int, lines: Sequence[RenderableType], of: int) -> RenderableType:
    """A card with its number; an empty line is below all but the last, number `of`."""
    return indented(_hanging([(f"{number}.", Group(*lines))]), below=int(number < of))


def bullets(name: str, items: Sequence[tuple[str, str, str]]) -> Iterator[RenderableType]:
    """A titled list of (beginning, rest, style of the beginning); nothing of nothing."""
    if items:
        yield title(name)
        yield indented(_hanging(("·", Text.assemble((first, style), (rest, "dim"))) for first, rest, style in items))


def _hanging(rows: Iterable[tuple[str, RenderableType]]) -> RenderableType:
    """Rows of (mark, content), whose content is indented as a whole beside the mark."""
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def indented(one: RenderableType, below: int = 0) -> RenderableType:
    """Indented by two columns, with `below` empty lines after it."""
    return Padding(one, (0, 0, below, 2))


def code(text: str, width: int) -> Iterator[str]:
    """Lines of code; the comment of one that is too long goes on a line before it, so that none breaks."""
    for written in text.splitlines():
        statement, _, comment = written.partition("  # ")
        if comment and statement.strip() and len(written) > width:
            indent = statement[: len(statement) - len(statement.lstrip())]
            yield from (f"{indent}# {part}" for part in textwrap.wrap(comment, max(width - len(indent) - 2, 20)))
            yield statement
        else:
            yield written


def section(shown: Section, width: int) -> RenderableType:
    """A titled table, with a bar for each row that has a share of the step."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=any(shown.columns), header_style="dim", expand=False)
    single = len(shown.columns) == 2 and not any(shown.columns)
    bars = not single and not shown.words and any(row.part for row in shown.rows) and len(shown.columns) <= 4
    table.add_column("", overflow="fold" if single else "ellipsis", no_wrap=not single, ratio=None)
    for k, head in enumerate(shown.columns[1:], 2):
        wraps = single or (shown.words and k == len(shown.columns))
        table.add_column(head, justify="left" if wraps else "right", no_wrap=not wraps)
    if bars:
        table.add_column("", no_wrap=True, style="cyan")
    room = _label_room(shown, width, bars)
    for row in shown.rows:
        label = row.label if single else units.clipped(row.label, room)
        share = [units.bar(row.part, 1.0, BAR_WIDTH)] * bars
        table.add_row(*map(Text, (label, *row.cells, *share)))
        if row.place:
            table.add_row(Text("  " + units.clipped_left(row.place, room - 2), style="dim"))
    note = [indented(Text(shown.note, style="dim"))] * bool(shown.note)
    return Group(title(shown.title), indented(table), *note)


def _label_room(shown: Section, width: int, bars: bool) -> int:
    """Columns for the label, 12 at least, when every other cell is shown whole; words take WORDS_WIDTH at most."""
    cells = zip(shown.columns[1:], *(row.cells for row in shown.rows), strict=False)
    widths = [max(map(len, column)) for column in cells]
    if shown.words:
        widths[-1] = min(widths[-1], WORDS_WIDTH)
    return max(width - sum(widths) - 2 * len(widths) - 4 - (BAR_WIDTH + 2) * bars, 12)
