"""A watched run as one HTML page: no server, no network, every string of the log as text."""

from __future__ import annotations

import msgspec
from markupsafe import Markup

from diagnose import failures
from diagnose.contracts.watched_run import WatchedRun
from diagnose.failures import section
from diagnose.reports import watched_run
from diagnose.reports.html import bundle, whole_run_figures
from diagnose.reports.html.page import Picture, figures, panel, policy

PICTURES = (
    Picture("parts", "Where the run's time went", whole_run_figures.parts, whole_run_figures.parts_sentence),
    Picture("steps", "Step time", whole_run_figures.step_times, whole_run_figures.step_times_sentence),
    Picture("memory", "Memory", whole_run_figures.memory, whole_run_figures.memory_sentence),
    Picture("device", "Device", whole_run_figures.device, whole_run_figures.device_sentence),
)


def render(found: WatchedRun) -> str:
    """The page. It depends on nothing outside itself, and on nothing but the WatchedRun."""
    with failures.collected() as lost:
        panels = [panel(one, found) for one in PICTURES]
        run = found.ranks[0]
        plotly, plotly_hash = bundle.plotly_script()
        script = bundle.text("report.js")
        return bundle.template("whole_run.html.j2").render(
            policy=policy(plotly_hash, bundle.script_hash(script)),
            style=Markup(bundle.text("style.css")),
            script=Markup(script),
            plotly=plotly,
            data=bundle.packed(msgspec.json.encode({"figures": figures(panels), "timeline": None})),
            headline=watched_run.headline(run),
            subject=watched_run.subject(found),
            damage=watched_run.damage(run),
            findings_title=watched_run.FINDINGS,
            cards=section("what to fix", watched_run.cards, found),
            others_title=watched_run.OTHERS,
            others=section("what else was looked for", watched_run.others, found),
            panels=panels,
            tables=section("tables", watched_run.sections, found),
            files=run.files,
            left_out=lost,
            tool=found.tool_version,
        )
