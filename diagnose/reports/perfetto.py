"""The timeline of a Diagnosis as a trace of its own, with the findings as annotations: opens in Perfetto."""

from collections.abc import Iterator
from typing import Any

import msgspec

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.contracts.timeline import MarkTable, Timeline
from diagnose.timeline.drawing import label, lane_name, pieces
from diagnose.timeline.marks import Marks

MOST_LANES = 256  # More than a timeline has.

_TITLES = {
    "findings": "Findings",
    "idle": "GPU idle",
    "path": "Critical path",
    "device": "GPU streams",
    "host": "Host threads",
}
_GROUPS = tuple(_TITLES)


def render(diagnosis: Diagnosis) -> str:
    """The trace as text, in Chrome's JSON format. Marks that were merged say how many operations they stand for."""
    shown = diagnosis.timeline
    events = list[dict[str, Any]]()
    if shown is not None:
        events += _names(shown, diagnosis)
        for table, start_ns, end_ns in pieces(shown):
            events += _marks(shown, table, start_ns, end_ns) if start_ns < end_ns else ()
        events += _findings(diagnosis)
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}).decode()


def _names(shown: Timeline, diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    """Events that name processes and threads: a thread per lane, and one per finding and lane where it has spots."""
    for pid, (group, title) in enumerate(_TITLES.items()):
        if group == "findings" or any(lane.group == group for lane in shown.lanes):
            yield _meta("process_name", pid, 0, name=title)
            yield _meta("process_sort_index", pid, 0, sort_index=pid)
    for tid in range(len(shown.lanes)):
        yield _meta("thread_name", _pid(shown, tid), tid, name=lane_name(shown, tid))
        yield _meta("thread_sort_index", _pid(shown, tid), tid, sort_index=tid)
    for finding in diagnosis.findings:
        for lane in sorted({spot.lane for spot in finding.spots}):
            name, row = f"{finding.rank_order}. {finding.title} ({lane_name(shown, lane)})", _row(finding, lane)
            yield _meta("thread_name", 0, row, name=name)
            yield _meta("thread_sort_index", 0, row, sort_index=row)


def _row(one: RankedFinding, lane: int) -> int:
    """The thread id of a finding's spots in one lane: spots of several lanes may overlap, so each lane has its row."""
    return one.rank_order * MOST_LANES + lane


def _meta(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _pid(shown: Timeline, lane: int) -> int:
    return _GROUPS.index(shown.lanes[lane].group)


def _marks(shown: Timeline, table: MarkTable, start_ns: int, end_ns: int) -> Iterator[dict[str, Any]]:
    """A complete event ("X", times in us) per mark of the table within these bounds, cut off at them."""
    for lane, start, dur, number, kind, count, _ in Marks.of(table).within(start_ns, end_ns).rows():
        name = label(shown, number, kind)
        yield {
            "ph": "X",
            "name": name if count == 1 else f"{count} together, the longest: {name}",
            "cat": shown.kinds[kind],
            "pid": _pid(shown, lane),
            "tid": lane,
            "ts": start / 1e3,
            "dur": dur / 1e3,
        }


def _findings(diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    """A complete event per spot of each finding, in the process of findings (pid 0)."""
    for finding in diagnosis.findings:
        args = {
            "evidence": [evidence.text for evidence in finding.evidence],
            "fix": [fix.do for fix in finding.fixes],
            "saving_ms": finding.shown_ns[1] / 1e6,
        }
        for spot in finding.spots:
            yield {
                "ph": "X",
                "name": finding.title,
                "cat": finding.rule,
                "pid": 0,
                "tid": _row(finding, spot.lane),
                "ts": spot.start_ns / 1e3,
                "dur": spot.dur_ns / 1e3,
                "args": args,
            }
