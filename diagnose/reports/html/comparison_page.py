"""A Comparison as one HTML page: no server, no network, every string of the traces as text."""

from itertools import accumulate
from typing import Any

import msgspec
import plotly.graph_objects as go

from diagnose.contracts.comparison import Comparison
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.facts.core.base import Missing
from diagnose.reports import comparison, heading
from diagnose.reports.comparison import shown_parts, signed
from diagnose.reports.html.page import bundle
from diagnose.reports.html.style import BLUE, GREEN, GREY, RED, add_rows, figure, plain, rows
from diagnose.reports.html.timeline_figure import drawn, timeline
from diagnose.trace.units import duration

SEES = "What each part of the step adds (red) or takes away (green), from the step before to the step after."


def waterfall(found: Comparison) -> go.Figure:
    """The step before, what each part adds or takes, and the step after: each bar begins where the last one ended."""
    parts = shown_parts(found)
    labels = [("before", duration(found.before_ns)), *((plain(what), signed(ns)) for what, ns in parts)]
    labels.append(("after", duration(found.after_ns)))
    made = figure(**rows(labels))
    ends = list(accumulate((ns for _, ns in parts), initial=found.before_ns))
    starts = [0, *ends[:-1], 0]
    sizes = [found.before_ns, *(ns for _, ns in parts), found.after_ns]
    colours = [BLUE, *(RED if ns > 0 else GREEN for _, ns in parts), BLUE]
    said = [f"{label}: {value}" for label, value in labels]
    add_rows(made, range(len(labels)), sizes, said, {"color": colours}, starts)
    low = min(0, *ends) if len(parts) else 0
    made.update_xaxes(title={"text": "ms of a step"}, range=[low / 1e6, 1.05 * max(ends) / 1e6], fixedrange=True)
    made.add_vline(x=found.before_ns / 1e6, line={"color": GREY, "dash": "dot", "width": 1})
    return made


def one_step(diagnosis: Diagnosis, longest_ns: int) -> go.Figure:
    """The first used step on the timeline, in a figure that is `longest_ns` wide. Raises Missing without a timeline."""
    shown = drawn(diagnosis)
    start_ns = shown.bounds_ns[0] if shown.bounds_ns else 0
    made = timeline(diagnosis, start_ns / 1e6, min(start_ns + longest_ns, shown.dur_ns) / 1e6)
    made.update_xaxes(range=[start_ns / 1e6, (start_ns + longest_ns) / 1e6])
    return made


def render(found: Comparison, before: Diagnosis | None, after: Diagnosis | None) -> str:
    """The page. A side is None, and has no timeline, where it is a baseline."""
    figures: dict[str, Any] = {"waterfall": msgspec.Raw(waterfall(found).to_json().encode())}
    times = (one.steps.step_time_ns.mean for one in (before, after) if one is not None and one.steps is not None)
    longest_ns = max(times, default=0)
    sides = [_side(name, one, longest_ns, figures) for name, one in (("before", before), ("after", after))]
    return bundle(
        "comparison.html.j2",
        {"figures": figures, "timeline": None},
        headline=comparison.headline(found),
        incomparable=[*map(" ".join, comparison.settings(found)), *found.incomparable],
        causes=list(comparison.causes(found)),
        why=found.why,
        waterfall=SEES,
        tables=list(comparison.sections(found)),
        lists=list(comparison.lists(found)),
        sides=sides,
        tool=found.tool_version,
    )


def _side(name: str, diagnosis: Diagnosis | None, longest_ns: int, figures: dict[str, Any]) -> tuple[str, str, str]:
    """(name, what ran, why it is not drawn): "" where its figure is now among `figures`."""
    if diagnosis is None:
        return name, "a baseline", "a baseline keeps no timeline"
    missing = ""
    try:
        figures[name] = msgspec.Raw(one_step(diagnosis, longest_ns).to_json().encode())
    except Missing as error:
        missing = f"{error.what}. {error.how_to_record_it}"
    return name, heading.subject(diagnosis), missing
