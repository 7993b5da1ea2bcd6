"""A comparison in figures: its parts from the step before to the step after, and a step of each side."""

from __future__ import annotations

import plotly.graph_objects as go

from diagnose.contracts.comparison import Comparison
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports.comparison import shown_parts, signed
from diagnose.reports.html.style import BLUE, GREEN, GREY, RED, figure, plain, rows
from diagnose.reports.html.timeline_figure import drawn, timeline
from diagnose.trace.units import duration


def waterfall(found: Comparison) -> go.Figure:
    """The step before, what each part adds or takes, and the step after: each bar begins where the last one ended."""
    parts = shown_parts(found)
    labels = [("before", duration(found.before_ns)), *((plain(what), signed(ns)) for what, ns in parts)]
    labels.append(("after", duration(found.after_ns)))
    made = figure(**rows(labels))
    ends = [found.before_ns]
    for _, ns in parts:
        ends.append(ends[-1] + ns)
    starts = [0, *ends[:-1], 0]
    sizes = [found.before_ns, *(ns for _, ns in parts), found.after_ns]
    colours = [BLUE, *(RED if ns > 0 else GREEN for _, ns in parts), BLUE]
    made.add_bar(
        orientation="h",
        y=list(range(len(labels))),
        x=[size / 1e6 for size in sizes],
        base=[start / 1e6 for start in starts],
        width=0.3,
        marker={"color": colours},
        hovertext=[f"{label}: {value}" for label, value in labels],
        hoverinfo="text",
    )
    low = min(0, *ends) if len(parts) else 0
    made.update_xaxes(title={"text": "ms of a step"}, range=[low / 1e6, 1.05 * max(ends) / 1e6], fixedrange=True)
    made.add_vline(x=found.before_ns / 1e6, line={"color": GREY, "dash": "dot", "width": 1})
    return made


def waterfall_sentence(found: Comparison) -> str:
    """What to see in it."""
    return "What each part of the step adds (red) or takes away (green), from the step before to the step after."


def one_step(diagnosis: Diagnosis, longest_ns: int) -> go.Figure:
    """The first used step on the timeline, in a figure that is `longest_ns` wide. Raises Missing without a timeline."""
    bounds = drawn(diagnosis).bounds_ns
    start_ns = bounds[0] if bounds else 0
    end_ns = min(start_ns + longest_ns, drawn(diagnosis).dur_ns)
    made = timeline(diagnosis, start_ns / 1e6, end_ns / 1e6)
    made.update_xaxes(range=[start_ns / 1e6, (start_ns + longest_ns) / 1e6])
    return made
