"""A watched run as one HTML page: no server, no network, every string of the log as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import plotly.graph_objects as go
from markupsafe import Markup

from diagnose import failures
from diagnose.contracts.watched_run import WatchedRun
from diagnose.facts.core.base import Missing
from diagnose.failures import attempt
from diagnose.reports import watched_run
from diagnose.reports.html import bundle, whole_run_figures
from diagnose.reports.html.page import policy


@dataclass(frozen=True)
class Picture:
    """A figure of the run with its title, what draws it, and the sentence that says what to see in it."""

    id: str
    title: str
    draw: Callable[[WatchedRun], go.Figure]
    sentence: Callable[[WatchedRun], str]


@dataclass(frozen=True)
class Panel:
    """A picture on the page: its sentence, or why it is not drawn."""

    picture: Picture
    sentence: str = ""
    missing: str = ""


PICTURES = (
    Picture("parts", "Where the run's time went", whole_run_figures.parts, whole_run_figures.parts_sentence),
    Picture("steps", "Step time", whole_run_figures.step_times, whole_run_figures.step_times_sentence),
    Picture("memory", "Memory", whole_run_figures.memory, whole_run_figures.memory_sentence),
    Picture("device", "Device", whole_run_figures.device, whole_run_figures.device_sentence),
)


def render(found: WatchedRun) -> str:
    """The page. It depends on nothing outside itself, and on nothing but the WatchedRun."""
    with failures.collected() as lost:
        figures: dict[str, Any] = {}
        panels = [_panel(one, found, figures) for one in PICTURES]
        run = found.ranks[0]
        plotly, plotly_hash = bundle.plotly_script()
        script = bundle.text("report.js")
        return bundle.template("whole_run.html.j2").render(
            policy=policy(plotly_hash, bundle.script_hash(script)),
            style=Markup(bundle.text("style.css")),
            script=Markup(script),
            plotly=plotly,
            data=bundle.packed(msgspec.json.encode({"figures": figures, "timeline": None})),
            headline=watched_run.headline(run),
            subject=watched_run.subject(found),
            damage=watched_run.damage(run),
            findings_title=watched_run.FINDINGS,
            cards=attempt("what to fix", [], watched_run.cards, found),
            others_title=watched_run.OTHERS,
            others=attempt("what else was looked for", [], watched_run.others, found),
            panels=panels,
            tables=attempt("tables", [], lambda: list(watched_run.sections(found))),
            files=run.files,
            left_out=lost,
            tool=found.tool_version,
        )


def _panel(picture: Picture, found: WatchedRun, figures: dict[str, Any]) -> Panel:
    try:
        drawn, sentence = picture.draw(found), picture.sentence(found)
    except Missing as missing:
        return Panel(picture, missing=f"{missing.what}. {missing.how_to_record_it}")
    except Exception as error:
        failure = failures.note(f"the figure “{picture.title}”", error)
        return Panel(picture, missing=f"diagnose itself failed ({failure.error}). {failures.REPORT}")
    figures[picture.id] = msgspec.Raw(drawn.to_json().encode())
    return Panel(picture, sentence)
