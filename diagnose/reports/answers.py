"""A Diagnosis, a comparison and trials as answers to language models: lines of text within one bound.

What may come from a recording is in double quotes, alone or in JSON.
"""

from collections.abc import Iterable, Sequence

import msgspec

from diagnose.contracts.comparison import Comparison
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.contracts.trials import Report
from diagnose.reports import comparison, terminal, trials
from diagnose.reports.findings import changes, formula
from diagnose.reports.words import MOST_BYTES, NOTE, plain, quoted, size
from diagnose.timeline.drawing import label, lane_name, marks

MOST_TEXT, MOST_ROWS = 300, 8  # Bytes of a text, and elements of a list, in a line of JSON (our choice).
ENDING_BYTES = 100  # Kept for the sentence on the lines that are left.
MOST_MARKS = 100  # In a window of the timeline: shorter ones are joined until there are no more (our choice).
MOST_SPOTS = 8  # Places of a finding on the timeline.


class CannotAnswer(Exception):
    """What was asked for is not there; the message says what is."""


def brief(told: Diagnosis) -> str:
    """The report in brief, each line in quotes."""
    return "\n".join(quoted(line) for line in terminal.render(told, terminal.MOST_WIDTH).splitlines() if line.strip())


def findings(told: Diagnosis, start: int) -> str:
    """All findings of a diagnosis in order, then its risks."""
    lines = [*map(_finding, told.findings), *(f"risk {_data(risk)}" for risk in told.risks)]
    if not lines:
        return "There are none." if told.conclusive else "This recording has nothing to measure."
    return page(lines, start)


def evidence(told: Diagnosis, handle: str, number: int, start: int = 0) -> str:
    """All that is known of a finding, for the tool of that name. Raises CannotAnswer."""
    finding = next((one for one in told.findings if one.rank_order == number), None)
    if finding is None:
        raise CannotAnswer(f"Diagnosis {handle} has no finding {number}. It has findings 1 to {len(told.findings)}.")
    lines = [
        *(f"evidence {_data(one)}" for one in finding.evidence),
        f"confidence {_data(finding.confidence)}",
        *(f"fix {_data(one)}" for one in finding.fixes),
        *(f"replayed {quoted(text)}" for text in changes(finding, told)),
        *(f"sum {quoted(text)}" for text in formula(finding, told)),
    ]
    for spot in finding.spots[:MOST_SPOTS] if told.timeline else ():
        window = f"start_ns={spot.start_ns}, end_ns={spot.start_ns + spot.dur_ns}, lanes=[{spot.lane}]"
        lines.append(f'place timeline(diagnosis="{handle}", {window})')
    for rule in (one for one in told.rules if one.rule == finding.rule):
        lines.append(f"rule {quoted(rule.summary)}")
        for heading, text in rule.sections.items():
            lines += [f"rule {quoted(f'{heading}: {part}', 2 * MOST_TEXT)}" for part in text.split("\n\n") if part]
    return page(lines, start, [_finding(finding)])


def timeline(told: Diagnosis, window: tuple[int | None, int | None], lanes: Sequence[int] | None, start: int) -> str:
    """A window of the timeline (from, to; in ns), for the tool of that name; without one the step that is known in most
    detail. Raises CannotAnswer."""
    shown = told.timeline
    if shown is None:
        raise CannotAnswer("There is no timeline: the recording has nothing to measure.")
    low, high = 0, shown.dur_ns
    if window == (None, None):
        low, high = shown.tables[-1].start_ns, shown.tables[-1].end_ns
        if len(shown.tables) == 1 and len(shown.bounds_ns) > 1:
            low, high = shown.bounds_ns[:2]
    low, high = max(low, window[0] or low), min(high, high if window[1] is None else window[1])
    if low >= high:
        raise CannotAnswer(f"There is nothing between {low} and {high} ns. The timeline is {shown.dur_ns} ns long.")
    if wrong := [lane for lane in lanes or () if not 0 <= lane < len(shown.lanes)]:
        raise CannotAnswer(f"There is no lane {wrong[0]}. Choose from 0 to {len(shown.lanes) - 1}.")
    found, joined_ns = marks(shown, low, high, lanes).at_most(max(MOST_MARKS, len(shown.lanes)), high - low)
    joined_ns = max(joined_ns, shown.tables[-1].resolution_ns)
    head = [
        f"{low} to {high} ns of {shown.dur_ns}: lanes, then marks as [lane, start_ns, dur_ns, name, count]; a count of"
        " several operations joined has the longest one's name."
    ]
    if joined_ns:
        head.append(f"Operations below {joined_ns} ns are joined. A smaller window or fewer lanes show more.")
    names = [
        f"lane {lane} {shown.lanes[lane].group} {quoted(lane_name(shown, lane))}"
        for lane in sorted(set(found.lane.tolist()))
    ]
    columns = (found.lane, found.start_ns, found.dur_ns, found.label, found.kind, found.count)
    rows = [
        _data([lane, begin, dur, label(shown, name, kind), count])
        for lane, begin, dur, name, kind, count in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return page([*names, *rows], start, head)


def compared(found: Comparison, start: int) -> str:
    """The verdict, what makes up the difference, the parts that add up to it, and what else differs."""
    lines = [
        *(f"incomparable {quoted(text)}" for text in found.incomparable),
        *(f"cause {quoted(text)}" for text in comparison.causes(found)),
        *(f"part {_data(part)}" for part in found.parts),
        *(f"{title}: {quoted(f'{first} {rest}')}" for title, rows in comparison.lists(found) for first, rest in rows),
    ]
    return page(lines, start, [comparison.headline(found), f"Basis: {quoted(found.why)}"])


def tried(found: Report, start: int) -> str:
    """What trials have measured, and what to keep."""
    head = [trials.conclusion(found), *([f"{trials.as_it_is(found.baseline)}."] if found.baseline else [])]
    lines = [
        *(f"trial {_data(one)}" for one in trials.all_of(found)),
        *(f"not tried {_data(one)}" for one in found.not_tried),
        *(f"note {quoted(text)}" for text in found.notes),
    ]
    return page(lines, start, head)


def page(lines: Iterable[str], start: int, head: Sequence[str] = ()) -> str:
    """NOTE, `head`, and as many lines as MOST_BYTES allow from number `start` (0: the first); then which is next."""
    told = [NOTE, *head]
    room = MOST_BYTES - ENDING_BYTES - size("\n".join([*told, ""]))
    for number, line in enumerate(lines):
        if number < start:
            continue
        room -= size(line) + 1
        if room < 0:
            told.append(f"There is more: call again with start={number}.")
            break
        told.append(line)
    return "\n".join([*told, ""])


def _finding(one: RankedFinding) -> str:
    fields = ("rank_order", "rule", "code", "title", "minor", "saving", "share_of_step", "confidence", "site", "where")
    short = {field: getattr(one, field) for field in ("kind", *fields)}
    return _data({**short, "evidence": one.evidence[:1], "fix": one.fixes[0].do if one.fixes else None})


def _data(value: object) -> str:
    """A value as bounded JSON: MOST_ROWS elements of a list, or lines of a text; a text of several lines is a list."""

    def bounded(one: object) -> object:
        if isinstance(one, dict):
            return {name: bounded(inner) for name, inner in one.items()}
        if isinstance(one, list | tuple):
            return [bounded(inner) for inner in one[:MOST_ROWS]]
        if not isinstance(one, str):
            return one
        code = one.splitlines()[:MOST_ROWS]
        indents = [" " * min(len(line) - len(line.lstrip()), 32) for line in code]
        lines = [indent + plain(line, MOST_TEXT) for indent, line in zip(indents, code, strict=True)]
        return lines[0] if len(lines) == 1 else lines or ""

    return msgspec.json.encode(bounded(msgspec.to_builtins(value))).decode()
