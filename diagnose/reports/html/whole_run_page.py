"""A watched run as one HTML page: no server, no network, every string of the log as text."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec
import plotly.graph_objects as go
from markupsafe import Markup

from diagnose import failures
from diagnose.contracts.watched_run import RankRun, RunPartKind, RunSlice, WatchedRun
from diagnose.facts.core.base import Missing
from diagnose.facts.core.breakdown import TimeCause
from diagnose.failures import section
from diagnose.reports import watched_run
from diagnose.reports.html import style
from diagnose.reports.html.page import Picture, figures, panel, policy
from diagnose.reports.watched_run import FIGURES, KINDS
from diagnose.trace.units import duration, number, share, size, three_digits

COLOURS = {
    RunPartKind.TRAINING: style.BLUE,
    RunPartKind.LOADER: style.CAUSE_COLOURS[TimeCause.LOADER],
    RunPartKind.EVALUATION: style.GREEN,
    RunPartKind.SAVE: style.CAUSE_COLOURS[TimeCause.CHECKPOINT],
    RunPartKind.COLLECTION: style.CAUSE_COLOURS[TimeCause.GARBAGE_COLLECTION],
    RunPartKind.START: style.CAUSE_COLOURS[TimeCause.COMPILE],
    RunPartKind.RECORDING: style.PINK,
    RunPartKind.OUTSIDE: style.SKY,
    RunPartKind.LOST: style.PALE,
}
LINES = (style.BLUE, style.RED, style.GREEN, style.ORANGE, style.PINK, style.SKY, style.DARK, style.YELLOW)

MOST_RANKS = len(LINES)  # With a line of their own; of more the first, the fastest and the slowest are drawn.

MEMORY = ("resident_bytes", "children_resident_bytes", "allocated_bytes", "reserved_bytes")
DEVICE = ("sm_clock_mhz", "temperature_c", "power_w", "slowed")

HEIGHT, LANE = 300, 110


def parts(found: WatchedRun) -> go.Figure:
    """Per stretch of the run, shares of its time by kind, stacked. Raises Missing without stretches."""
    run = _with_stretches(found)
    made, unit_ns = _figure(run, "% of the time", barmode="stack", bargap=0)
    made.update_yaxes(range=[0, 100])
    bars = [(0, run.over_time[0].began_ns, {RunPartKind.START: run.over_time[0].began_ns})]
    bars += [(one.began_ns, one.ended_ns, one.parts) for one in run.over_time]
    bars = [bar for bar in bars if bar[1] > bar[0]]
    for kind in (part.kind for part in run.parts):
        spent = [some.get(kind, 0) for _, _, some in bars]
        if any(spent):
            made.add_bar(
                name=KINDS[kind],
                x=[(began + ended) / 2 / unit_ns for began, ended, _ in bars],
                width=[(ended - began) / unit_ns for began, ended, _ in bars],
                y=[100 * ns / (ended - began) for ns, (began, ended, _) in zip(spent, bars, strict=True)],
                marker={"color": COLOURS[kind], "line": {"width": 0}},
                hovertext=[
                    f"{KINDS[kind]}: {duration(ns)} of {duration(ended - began)}"
                    for ns, (began, ended, _) in zip(spent, bars, strict=True)
                ],
                hoverinfo="text",
            )
    return made


def parts_sentence(found: WatchedRun) -> str:
    """The sentence below: what most of the run's time goes to."""
    run = _with_stretches(found)
    most = run.parts[0]
    return (
        f"What the time goes to over the run of rank {run.rank}, in {number(len(run.over_time))} stretches:"
        f" most of it, {share(most.ns, run.length_ns)}, is {KINDS[most.kind]}."
    )


def step_times(found: WatchedRun) -> go.Figure:
    """The usual step over the run by rank, and the 99th percentile of the shown rank. Raises Missing without steps."""
    first = _with_stretches(found)
    made, unit_ns = _figure(first, "ms")
    shown = _shown(found)
    for at, run in enumerate(shown):
        stretches = [one for one in run.over_time if one.steps]
        name = f"rank {run.rank}" if len(shown) > 1 else "usual step"
        _add_line(made, name, _middles(stretches, unit_ns), [one.step_ns / 1e6 for one in stretches], LINES[at])
    known = [one for one in first.over_time if one.p99_ns is not None]
    if known:
        name = f"99th percentile of rank {first.rank}" if len(shown) > 1 else "99th percentile"
        values = [(one.p99_ns or 0) / 1e6 for one in known]
        _add_line(made, name, _middles(known, unit_ns), values, style.GREY, dash="dot")
    return made


def step_times_sentence(found: WatchedRun) -> str:
    """The sentence below: the typical step in the first and in the last quarter of the run."""
    run = _with_stretches(found)
    steps = [one.step_ns for one in run.over_time if one.steps]
    quarter = max(len(steps) // 4, 1)
    hidden = len([one for one in found.ranks if one.over_time]) - len(_shown(found))
    more = f" The slowest and fastest of {number(len(found.ranks))} ranks are drawn." if hidden else ""
    return (
        f"The typical step takes {duration(median(steps[:quarter]))} in the first quarter and"
        f" {duration(median(steps[-quarter:]))} in the last"
        f" on rank {run.rank}.{more}"
    )


def memory(found: WatchedRun) -> go.Figure:
    """Memory in GB over the run, a line per figure that the log has. Raises Missing where it has none."""
    run = _with_stretches(found)
    made, unit_ns = _figure(run, "GB")
    for name, colour in zip(_known(run, MEMORY, "memory"), LINES, strict=False):
        some = [one for one in run.over_time if name in one.figures]
        _add_line(made, FIGURES[name], _middles(some, unit_ns), [one.figures[name] / 1e9 for one in some], colour)
    return made


def memory_sentence(found: WatchedRun) -> str:
    """The sentence below: the first figure of memory at the beginning and at the end."""
    run = _with_stretches(found)
    name = _known(run, MEMORY, "memory")[0]
    known = [one.figures[name] for one in run.over_time if name in one.figures]
    return f"{FIGURES[name].capitalize()}: {size(known[0])} at first, {size(known[-1])} at last."


def device(found: WatchedRun) -> go.Figure:
    """Clock, temperature, power one below the other. Raises Missing where none is known."""
    run = _with_stretches(found)
    unit_ns, unit = _unit(run)
    names = _known(run, DEVICE, "figures of a device")
    made = style.figure(LANE * len(names) + 60, showlegend=False)
    for at, name in enumerate(names):
        some = [one for one in run.over_time if name in one.figures]
        top = 1 - at / len(names)
        axis = "" if at == 0 else str(at + 1)
        made.update_layout(
            {
                f"yaxis{axis}": {
                    "domain": [top - 0.8 / len(names), top],
                    "title": {"text": FIGURES[name].replace(", ", "<br>")},
                    "automargin": True,
                    "fixedrange": True,
                }
            }
        )
        values = [one.figures[name] for one in some]
        _add_line(made, FIGURES[name], _middles(some, unit_ns), values, LINES[at], yaxis=f"y{axis}")
    made.update_xaxes(title={"text": f"{unit} since the start"}, rangemode="tozero", anchor="free", position=0)
    return made


def device_sentence(found: WatchedRun) -> str:
    """The sentence below: each figure of the GPU at the beginning and at the end."""
    run, ranges = _with_stretches(found), list[str]()
    for name in _known(run, DEVICE, "figures of a device"):
        known = [one.figures[name] for one in run.over_time if name in one.figures]
        ranges.append(f"{FIGURES[name]} {three_digits(known[0])} to {three_digits(known[-1])}")
    return f"From the first stretch of the run to the last: {'; '.join(ranges)}."


def _with_stretches(found: WatchedRun) -> RankRun:
    """The first rank, which the page shows. Raises Missing if no stretch of its run has steps."""
    run = found.ranks[0]
    if not any(one.steps for one in run.over_time):
        raise Missing("steps after the first", "Let the run continue for longer.")
    return run


def _known(run: RankRun, names: Sequence[str], what: str) -> list[str]:
    """The names that have values in the run. Raises Missing, with `what`, if none has."""
    recorded = [name for name in names if any(name in stretch.figures for stretch in run.over_time)]
    if not recorded:
        raise Missing(what, "This system does not report them.")
    return recorded


def _shown(found: WatchedRun) -> list[RankRun]:
    """The ranks that get a line: all, or of many the first, the three fastest and the four slowest of the others."""
    known = [run for run in found.ranks if any(one.steps for one in run.over_time)]
    if len(known) <= MOST_RANKS:
        return known
    first, *others = known
    others.sort(key=lambda run: sum(one.steps * one.step_ns for one in run.over_time) / max(run.steps - 1, 1))
    return [first, *others[:3], *others[3 - MOST_RANKS + 1 :]]


def _figure(run: RankRun, values: str, **layout: Any) -> tuple[go.Figure, float]:
    """An empty figure with the run's time below and `values` on the left; and the ns in the unit of that time."""
    unit_ns, unit = _unit(run)
    made = style.figure(HEIGHT, **layout)
    made.update_xaxes(title={"text": f"{unit} since the start"}, rangemode="tozero")
    made.update_yaxes(title={"text": values}, rangemode="tozero", fixedrange=True)
    return made, unit_ns


def _unit(run: RankRun) -> tuple[float, str]:
    """(ns, name) of the unit in which the run's time is shown."""
    for ns, name in ((3600e9, "hours"), (60e9, "minutes")):
        if run.length_ns >= 3 * ns:
            return ns, name
    return 1e9, "seconds"


def _middles(stretches: Sequence[RunSlice], unit_ns: float) -> list[float]:
    return [(one.began_ns + one.ended_ns) / 2 / unit_ns for one in stretches]


def _add_line(
    made: go.Figure, name: str, x: list[float], y: list[float], colour: str, dash: str = "solid", yaxis: str = "y"
) -> None:
    made.add_scatter(
        name=style.plain(name),
        mode="lines",
        x=x,
        y=y,
        yaxis=yaxis,
        line={"color": colour, "width": 2, "dash": dash, "shape": "hvh"},
        hovertemplate=f"{style.plain(name)}: %{{y:.4~g}}<extra></extra>",
    )


PICTURES = (
    Picture("parts", "Where the run's time went", parts, parts_sentence),
    Picture("steps", "Step time", step_times, step_times_sentence),
    Picture("memory", "Memory", memory, memory_sentence),
    Picture("device", "Device", device, device_sentence),
)


def render(found: WatchedRun) -> str:
    """The page. It depends on nothing outside itself, and on nothing but the WatchedRun."""
    with failures.collected() as lost:
        panels = [panel(one, found) for one in PICTURES]
        run = found.ranks[0]
        plotly, plotly_hash = style.plotly_script()
        script = style.text("report.js")
        return style.template("whole_run.html.j2").render(
            policy=policy(plotly_hash, style.script_hash(script)),
            style=Markup(style.text("style.css")),
            script=Markup(script),
            plotly=plotly,
            data=style.packed(msgspec.json.encode({"figures": figures(panels), "timeline": None})),
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
