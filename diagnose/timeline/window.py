"""Parts of a Diagnosis' timeline: the marks of a window, in as much detail as is known."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from msgspec.structs import astuple

from diagnose.contracts.timeline import MarkTable, Timeline
from diagnose.timeline.marks import Marks


def pieces(shown: Timeline) -> Iterator[tuple[MarkTable, int, int]]:
    """Tables, each with the part of the timeline (from, to; in ns) in which it is the most detailed one."""
    whole, *detail = shown.tables
    for table in detail:
        yield table, table.start_ns, table.end_ns
    if detail:
        yield whole, whole.start_ns, detail[0].start_ns
        yield whole, detail[-1].end_ns, whole.end_ns
    else:
        yield whole, whole.start_ns, whole.end_ns


def marks(shown: Timeline, start_ns: int, end_ns: int, lanes: Collection[int] | None = None) -> Marks:
    """The marks in [start, end), cut off at its ends; of these lanes, or all. In order of lane and start."""
    parts = [
        Marks.of(table).within(max(low, start_ns), min(high, end_ns))
        for table, low, high in pieces(shown)
        if max(low, start_ns) < min(high, end_ns)
    ] or [Marks.of(shown.tables[0]).within(0, 0)]
    found = Marks(*(np.concatenate(column) for column in zip(*(astuple(part) for part in parts), strict=True)))
    if lanes is not None:
        found = found.where(np.isin(found.lane, list(lanes)))
    return found.in_order()


def lane_name(shown: Timeline, lane: int) -> str:
    """A lane's name; lanes below the first of a thread have its name."""
    return shown.lanes[lane].name or lane_name(shown, lane - 1)


def label(shown: Timeline, number: int, kind: int) -> str:
    """The name of a mark, or of its kind where it has none."""
    return shown.labels[number] or shown.kinds[kind]
