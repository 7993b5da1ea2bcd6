"""A Comparison as one HTML page: no server, no network, every string of the traces as text."""

from collections.abc import Iterator
from typing import Any

import msgspec
import plotly.graph_objects as go
from markupsafe import Markup
from msgspec import Struct

from diagnose.contracts.comparison import Comparison
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.facts.core.base import Missing
from diagnose.reports import comparison, heading
from diagnose.reports.comparison import shown_parts, signed
from diagnose.reports.html import style
from diagnose.reports.html.page import policy
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


class SideView(Struct, frozen=True):
    """One side on the page."""

    id: str  # Of its figure; "" where none could be drawn.
    name: str
    subject: str
    missing: str


def render(found: Comparison, before: Diagnosis | None, after: Diagnosis | None) -> str:
    """The page. Of a side that is a baseline there is no timeline."""
    figures: dict[str, Any] = {"waterfall": _packed(waterfall(found))}
    longest_ns = max((_step_ns(one) for one in (before, after) if one is not None), default=0)
    sides = list(_sides(before, after, longest_ns, figures))
    plotly, plotly_hash = style.plotly_script()
    script = style.text("report.js")
    return style.template("comparison.html.j2").render(
        policy=policy(plotly_hash, style.script_hash(script)),
        style=Markup(style.text("style.css")),
        script=Markup(script),
        plotly=plotly,
        data=style.packed(msgspec.json.encode({"figures": figures, "timeline": None})),
        headline=comparison.headline(found),
        incomparable=[*map(" ".join, comparison.settings(found)), *found.incomparable],
        causes=list(comparison.causes(found)),
        why=found.why,
        waterfall=waterfall_sentence(found),
        tables=list(comparison.sections(found)),
        lists=list(comparison.lists(found)),
        sides=sides,
        tool=found.tool_version,
    )


def _sides(
    before: Diagnosis | None, after: Diagnosis | None, longest_ns: int, figures: dict[str, Any]
) -> Iterator[SideView]:
    for name, diagnosis in (("before", before), ("after", after)):
        if diagnosis is None:
            yield SideView("", name, "a baseline", "a baseline keeps no timeline")
            continue
        subject = heading.subject(diagnosis)
        try:
            figures[name] = _packed(one_step(diagnosis, longest_ns))
        except Missing as missing:
            yield SideView("", name, subject, f"{missing.what}. {missing.how_to_record_it}")
            continue
        yield SideView(name, name, subject, "")


def _step_ns(diagnosis: Diagnosis) -> int:
    return 0 if diagnosis.steps is None else diagnosis.steps.step_time_ns.mean


def _packed(figure: Any) -> msgspec.Raw:
    return msgspec.Raw(figure.to_json().encode())
