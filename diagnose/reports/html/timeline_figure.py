"""The timeline: streams, threads and idle gaps over time, as detailed as the part that is shown allows."""

from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.timeline import IDLE, MARK_OF_PATH, PATH, MarkKind, MarkTable, Timeline
from diagnose.facts.core.base import Missing
from diagnose.facts.core.breakdown import IDLE_CAUSES, PATH_CAUSES
from diagnose.reports.html.style import MARK_COLOURS, MOST_STEPS, figure, plain, step_lines
from diagnose.reports.words import CAUSES, WORK_NOT_RECORDED, why_this_rank
from diagnose.timeline.marks import Marks
from diagnose.trace.units import duration

MOST_SHOWN = 4_000  # Bars that a browser draws and redraws without waiting.
PIXELS = 1_200  # Width of a timeline on a large screen: what is shorter than one pixel at the widest zoom is joined.
FINER = 6  # How many times finer each level is than the one above it.

LANE_HEIGHT = 22
FAINTEST = 0.15  # Opacity of marks that are nearly empty: what is joined is as dense as what it stands for.

KIND_WORDS = {
    MarkKind.COMPUTE.value: "compute",
    MarkKind.COMMUNICATION.value: "communication",
    MarkKind.COPY.value: "copy",
    MarkKind.OP.value: "op",
    MarkKind.ANNOTATION.value: "annotation",
    MarkKind.LOADER.value: "data loading",
    MarkKind.COLLECTIVE.value: "collective call",
    MarkKind.LAUNCH.value: "launch call",
    MarkKind.COPY_CALL.value: "copy call",
    MarkKind.SYNC.value: "host synchronisation",
    MarkKind.ALLOCATION.value: "allocation",
    MarkKind.CALL.value: "other call",
    MarkKind.WORK_NOT_RECORDED.value: WORK_NOT_RECORDED,
    **{IDLE + cause.value: f"idle: {CAUSES[cause]}" for cause in IDLE_CAUSES},
    **{PATH + kind.value: f"critical path: {CAUSES[kind]}" for kind in PATH_CAUSES if kind not in MARK_OF_PATH},
}
"""Kinds of marks in words."""


def timeline(diagnosis: Diagnosis, start_ms: float | None = None, end_ms: float | None = None) -> go.Figure:
    """What happened when, from `start_ms` to `end_ms` of the timeline (all of it, if not given). A narrower part is
    drawn in more detail. Raises Missing if nothing could be measured, ValueError if there is no such part."""
    shown = drawn(diagnosis)
    low = max((start_ms or 0.0) * 1e6, 0.0)
    high = min(shown.dur_ns if end_ms is None else end_ms * 1e6, float(shown.dur_ns))
    if not low < high:
        raise ValueError(f"start_ms has to lie before end_ms, and both within 0 and {shown.dur_ns / 1e6:g}")
    made = frame(shown).update_layout(step_marks(shown)).update_xaxes(range=[low / 1e6, high / 1e6])
    marks = chosen(levels(shown), low, high)
    for kind in np.unique(marks.kind):
        made.add_trace(_bars(shown, marks.where(marks.kind == kind), shown.kinds[kind]))
    return made


def drawn(diagnosis: Diagnosis) -> Timeline:
    """The Diagnosis' timeline. Raises Missing without one."""
    if diagnosis.timeline is None or not diagnosis.timeline.lanes:
        raise Missing("a timeline", "Record steps with ProfilerActivity.CPU, and CUDA where there is a GPU.")
    return diagnosis.timeline


def frame(shown: Timeline) -> go.Figure:
    """A figure with the timeline's axes, a row per lane, and no marks."""
    made = figure(
        LANE_HEIGHT * len(shown.lanes) + 90, barmode="overlay", bargap=0, dragmode="zoom", hovermode="closest"
    )
    made.update_layout(margin={"t": 24}, legend={"y": -0.1, "yanchor": "top"})
    made.update_xaxes(
        ticksuffix=" ms", exponentformat="none", separatethousands=True, range=[0, shown.dur_ns / 1e6], showgrid=False
    )
    made.update_yaxes(
        tickvals=list(range(len(shown.lanes))),
        ticktext=[plain(lane.name, 28) for lane in shown.lanes],
        range=[len(shown.lanes) - 0.5, -0.5],
        fixedrange=True,
        showgrid=False,
    )
    return made


def step_marks(shown: Timeline) -> dict[str, Any]:
    """The layout of lines between steps, and of their numbers; of many steps none."""
    if not 0 < len(shown.steps) <= MOST_STEPS:
        return {}
    look = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "font": {"size": 11}}
    names = [
        {**look, "x": (begin + end) / 2e6, "text": f"step {number}"}
        for number, (begin, end) in zip(shown.steps, pairwise(shown.bounds_ns), strict=True)
    ]
    return {"shapes": step_lines(shown.bounds_ns), "annotations": names}


_SHORT = {
    "GPU idle": "idle",
    "critical path": "path",
    "GPU ": "g",
    "stream ": "s",
    "main thread": "main",
    "thread ": "t",
}


def short(name: str) -> str:
    """A lane's name for a narrow screen: `s7` for `stream 7 (communication)`, `t2` for `thread 2: ops`."""
    head, _, what = name.partition(" (")[0].partition(": ")
    if what == "calls":
        return what
    for long, brief in _SHORT.items():
        head = head.replace(long, brief)
    return head


def levels(shown: Timeline) -> list[MarkTable]:
    """Tables of marks, coarsest first: all steps, each up to FINER times finer, then the step known in more detail.
    A level has at most half the marks of the next, so all together have at most twice those of the finest of all steps;
    the coarsest has no more than MOST_SHOWN."""
    whole, *detail = shown.tables
    found, resolutions = [whole], [(whole.end_ns - whole.start_ns) // PIXELS]
    while resolutions[-1] // FINER > max(whole.resolution_ns, 1):
        resolutions.append(resolutions[-1] // FINER)
    marks = Marks.of(whole)
    for resolution in reversed(resolutions):
        joined = marks.merged(resolution)
        if 2 * joined.size <= len(found[0].lane.values):
            found.insert(0, joined.table(whole.start_ns, whole.end_ns, resolution))
    if len(found[0].lane.values) > MOST_SHOWN:
        joined, resolution = marks.at_most(MOST_SHOWN, whole.end_ns - whole.start_ns)
        found.insert(0, joined.table(whole.start_ns, whole.end_ns, resolution))
    return [*found, *detail]


def chosen(tables: list[MarkTable], low_ns: float, high_ns: float) -> Marks:
    """The marks between two times, of the finest level that holds them all and is not too much to draw."""
    for table in reversed(tables):
        if table.start_ns <= low_ns and high_ns <= table.end_ns:
            marks = Marks.of(table)
            seen = marks.where((marks.start_ns < high_ns) & (marks.start_ns + marks.dur_ns > low_ns))
            if seen.size <= MOST_SHOWN:
                return seen
    return Marks.of(tables[0])


def _bars(shown: Timeline, marks: Marks, kind: str) -> go.Bar:
    """Marks of one kind as horizontal bars; those that stand for much empty time are fainter."""
    numbers = zip(marks.label.tolist(), marks.count.tolist(), marks.filled_ns.tolist(), strict=True)
    return go.Bar(
        orientation="h",
        name=KIND_WORDS[kind],
        y=marks.lane,
        base=marks.start_ns / 1e6,
        x=marks.dur_ns / 1e6,
        width=0.84,
        marker={
            "color": MARK_COLOURS[kind],
            "line": {"width": 0},
            "opacity": np.clip(marks.filled_ns / np.maximum(marks.dur_ns, 1), FAINTEST, 1.0),
        },
        hovertext=[_said(shown.labels[label], kind, count, filled) for label, count, filled in numbers],
        hoverinfo="text",
    )


def _said(label: str, kind: str, count: int, filled_ns: int) -> str:
    """A mark's hover text: its label and kind in two lines; before them how many operations it joins, if several."""
    several = f"{count:,} operations, {duration(filled_ns)} together; the longest:<br>" if count > 1 else ""
    alone = "" if count > 1 else f", {duration(filled_ns)}"
    return f"{several}{plain(label) or KIND_WORDS[kind]}<br>{KIND_WORDS[kind]}{alone}"


def timeline_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the timeline: what it shows, and how to zoom."""
    shown = drawn(diagnosis)
    steps = "the recorded work" if not shown.steps else f"step {shown.steps[0]}"
    steps = f"steps {shown.steps[0]} to {shown.steps[-1]}" if len(shown.steps) > 1 else steps
    rank = f" of rank {diagnosis.rank}, {why_this_rank(diagnosis)}" if len(diagnosis.ranks) > 1 else ""
    idle = "The top lane shows when the GPU had nothing to do, coloured by why. " * (shown.lanes[0].group == "idle")
    has_path = any(lane.group == "path" for lane in shown.lanes)
    path = "The critical path is what the steps waited for, event by event. " * has_path
    missing = f" Without a lane of their own: {', '.join(shown.left_out)}." * bool(shown.left_out)
    return f"{idle}{path}Shown: {steps}{rank}. Drag to zoom, double-click to see all again.{missing}"
