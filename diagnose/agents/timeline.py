"""A window of a diagnosis' timeline as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnose.agents.answers import Answer, Data, Item, page
from diagnose.agents.kept import Analysed
from diagnose.agents.refusals import Refused
from diagnose.contracts.timeline import Timeline
from diagnose.reports.quoting import plain, quoted
from diagnose.timeline.marks import Marks
from diagnose.timeline.window import label, lane_name, marks

MOST_MARKS = 100
"""In a window; shorter ones are joined to their neighbours until there are no more (our choice)."""

MOST_NAME = 64
MOST_STEPS = 12


def timeline(one: Analysed, window: tuple[int | None, int | None], lanes: Sequence[int] | None, start: int) -> Answer:
    """What went on in a window (from, to; in ns), as far as a page shows it.

    Without a window it is the step that is known in most detail. `lanes`: only these. Raises Refused.
    """
    shown = one.diagnosis.timeline
    if shown is None:
        raise Refused(f"Diagnosis {one.handle} has no timeline: nothing in the recording could be measured.")
    start_ns, end_ns = _window(shown, *window)
    wrong = [lane for lane in lanes or () if not 0 <= lane < len(shown.lanes)]
    if wrong:
        raise Refused(f"There is no lane {wrong[0]}. There are: 0 to {len(shown.lanes) - 1}.")
    found = marks(shown, start_ns, end_ns, lanes)
    found, resolution_ns = found.at_most(max(MOST_MARKS, len(shown.lanes)), end_ns - start_ns)
    resolution_ns = max([resolution_ns, *(table.resolution_ns for table in shown.tables[-1:])])
    lines = [
        f"Timeline of diagnosis {one.handle}, {_ms(start_ns)} to {_ms(end_ns)} ms of {_ms(shown.dur_ns)}; {found.size}"
        " marks. A line: start ms, +duration ms, name; (N) stands for N operations joined, by the longest.",
    ]
    if resolution_ns:
        lines.append(f"Shorter than {_ms(resolution_ns)} ms was joined: a smaller window, or fewer lanes, shows more.")
    data: Data = {
        "diagnosis": one.handle,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "timeline_ns": shown.dur_ns,
        "resolution_ns": resolution_ns,
        "steps": _steps(shown),
        "columns": ["lane", "start_ns", "dur_ns", "name", "count"],
        "lanes": {str(lane): _lane(shown, lane) for lane in sorted(set(found.lane.tolist()))},
    }
    return page(lines, data, "marks", _items(shown, found), start)


def _window(shown: Timeline, start_ns: int | None, end_ns: int | None) -> tuple[int, int]:
    """The window that is asked for, within the timeline. Raises Refused if it is empty."""
    low, high = 0, shown.dur_ns
    if start_ns is None and end_ns is None:
        detailed = shown.tables[-1]
        low, high = detailed.start_ns, detailed.end_ns
        if len(shown.tables) == 1 and len(shown.bounds_ns) > 1:
            low, high = shown.bounds_ns[0], shown.bounds_ns[1]
    low, high = max(low, start_ns or low), min(high, high if end_ns is None else end_ns)
    if low >= high:
        raise Refused(f"There is nothing between {low} and {high} ns. The timeline is {shown.dur_ns} ns long.")
    return low, high


def _steps(shown: Timeline) -> list[list[int]]:
    """Number, start and end of the first steps."""
    ends = zip(shown.steps, shown.bounds_ns, shown.bounds_ns[1:], strict=False)
    return [list(step) for step in ends][:MOST_STEPS]


def _lane(shown: Timeline, lane: int) -> str:
    return plain(f"{shown.lanes[lane].group}: {lane_name(shown, lane)}", MOST_NAME)


def _items(shown: Timeline, found: Marks) -> Iterator[Item]:
    """A mark each; the first of a lane names it."""
    before = -1
    columns = (found.lane, found.start_ns, found.dur_ns, found.label, found.kind, found.count)
    for lane, start, dur, number, kind, count in zip(*(column.tolist() for column in columns), strict=True):
        name = label(shown, number, kind)
        joined = f" ({count})" if count > 1 else ""
        heads = [f"lane {lane}, {shown.lanes[lane].group} {quoted(lane_name(shown, lane), MOST_NAME)}"]
        line = f"  {_ms(start)} +{_ms(dur)} {quoted(name, MOST_NAME)}{joined}"
        yield Item((*(heads if lane != before else ()), line), [lane, start, dur, plain(name, MOST_NAME), count])
        before = lane


def _ms(ns: int) -> str:
    """In milliseconds, to the microsecond."""
    return f"{ns / 1e6:.3f}"
