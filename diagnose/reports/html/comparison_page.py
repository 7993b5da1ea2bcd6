"""A Comparison as one HTML page: no server, no network, every string of the traces as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from markupsafe import Markup
from msgspec import Struct

from diagnose.contracts.comparison import Comparison
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.facts.core.base import Missing
from diagnose.reports import comparison, heading
from diagnose.reports.html import bundle, comparison_figures
from diagnose.reports.html.page import policy


class SideView(Struct, frozen=True):
    """One side on the page."""

    id: str  # Of its figure; "" where none could be drawn.
    name: str
    subject: str
    missing: str


def render(found: Comparison, before: Diagnosis | None, after: Diagnosis | None) -> str:
    """The page. Of a side that is a baseline there is no timeline."""
    figures: dict[str, Any] = {"waterfall": _packed(comparison_figures.waterfall(found))}
    longest_ns = max((_step_ns(one) for one in (before, after) if one is not None), default=0)
    sides = list(_sides(before, after, longest_ns, figures))
    plotly, plotly_hash = bundle.plotly_script()
    script = bundle.text("report.js")
    return bundle.template("comparison.html.j2").render(
        policy=policy(plotly_hash, bundle.script_hash(script)),
        style=Markup(bundle.text("style.css")),
        script=Markup(script),
        plotly=plotly,
        data=bundle.packed(msgspec.json.encode({"figures": figures, "timeline": None})),
        headline=comparison.headline(found),
        incomparable=[*map(" ".join, comparison.settings(found)), *found.incomparable],
        causes=list(comparison.causes(found)),
        why=found.why,
        waterfall=comparison_figures.waterfall_sentence(found),
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
            figures[name] = _packed(comparison_figures.one_step(diagnosis, longest_ns))
        except Missing as missing:
            yield SideView("", name, subject, f"{missing.what}. {missing.how_to_record_it}")
            continue
        yield SideView(name, name, subject, "")


def _step_ns(diagnosis: Diagnosis) -> int:
    return 0 if diagnosis.steps is None else diagnosis.steps.step_time_ns.mean


def _packed(figure: Any) -> msgspec.Raw:
    return msgspec.Raw(figure.to_json().encode())
