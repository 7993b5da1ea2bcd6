"""The run in figures: communication, ranks beside each other, memory over time."""

from collections.abc import Callable
from itertools import cycle

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from diagnose.contracts.diagnosis import Diagnosis, RankSummary
from diagnose.contracts.timeline import CollectiveBar, MemoryCurve
from diagnose.facts.core.base import Missing
from diagnose.facts.core.breakdown import Breakdown
from diagnose.reports.html import style
from diagnose.reports.words import WORK_NOT_RECORDED
from diagnose.trace.units import clipped, duration, share, size

MOST_BARS = 80
MOST_RANKS = 64
MOST_TEXTS = 64  # Cells of a heat map that hold their number.


def communication(diagnosis: Diagnosis) -> go.Figure:
    """Each collective in order of time: what compute hides of it, and what is exposed. Raises Missing without any."""
    bars = _bars(diagnosis)
    made = style.figure(320, barmode="stack", bargap=0.15)
    made.update_xaxes(title={"text": "collective, in order of time"}, range=[0.4, len(bars) + 0.6])
    made.update_yaxes(title={"text": "ms"}, rangemode="tozero", separatethousands=True)
    parts = (
        ("while compute runs", [bar.dur_ns - bar.exposed_ns for bar in bars], style.HIDDEN, style.HATCHED),
        ("exposed", [bar.exposed_ns for bar in bars], style.COMMUNICATION, style.CROSSED),
    )
    for name, ns, colour, shape in parts:
        made.add_bar(
            name=name,
            x=np.arange(1, len(bars) + 1),
            y=np.array(ns) / 1e6,
            marker={"color": colour, "pattern": style.pattern(shape)},
            hovertext=[_bar_hover(bar) for bar in bars],
            hoverinfo="text",
        )
    return made


def communication_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the collectives: how much of their time is exposed."""
    bars = _bars(diagnosis)
    total, exposed = sum(bar.dur_ns for bar in bars), sum(bar.exposed_ns for bar in bars)
    longest = max(bars, key=lambda bar: bar.exposed_ns)
    over = f" of {_plural(used, 'step')}" if (used := diagnosis.steps.used if diagnosis.steps else 0) else ""
    of_all = f"{duration(total)} in {_plural(len(bars), 'collective')}{over}"
    if not exposed:
        return f"Compute hides all of {of_all}."
    operation = "one of unknown kind" if longest.operation == "unknown" else clipped(longest.operation, 60)
    most = f"the longest exposed time is {duration(longest.exposed_ns)}, in {operation}"
    return f"{share(exposed, total)} of {of_all} is exposed; {most}."


def _bars(diagnosis: Diagnosis) -> list[CollectiveBar]:
    """The MOST_BARS longest collectives, in order of time. Raises Missing without any."""
    found = diagnosis.pictures.collectives if diagnosis.pictures else None
    if found is None:
        raise style.missing(diagnosis, "communication", Missing("communication on the GPU", "Record a GPU."))
    if not found:
        raise Missing("communication between GPUs", "There is none in these steps.")
    longest = sorted(found, key=lambda one: -one.dur_ns)[:MOST_BARS]
    return sorted(longest, key=lambda one: one.start_ns)


def _bar_hover(one: CollectiveBar) -> str:
    carried = "size unknown" if one.bytes is None else size(one.bytes)
    times = f"{duration(one.dur_ns)}, {duration(one.exposed_ns)} of it exposed"
    return f"{style.plain(one.operation)}, {carried}<br>{times}<br>from {one.start_ns / 1e6:,.3f} ms on the timeline"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def ranks(diagnosis: Diagnosis) -> go.Figure:
    """Each rank's steps as a heat map, and below what its mean step consists of; of more than MOST_RANKS the slowest.
    Raises Missing without two ranks."""
    shown = _ranks(diagnosis)
    names = [str(one.rank) for one in shown]
    count = max(len(one.times_ns) for one in shown)
    several = all(len(one.times_ns) > 1 for one in shown)
    heat_height = (min(24 * count, 240) + 30) * several
    legend = {"y": 0, "yanchor": "bottom", "yref": "container"}
    made = style.figure(BARS_HEIGHT + heat_height, barmode="stack", legend=legend)
    made.update_xaxes(title={"text": "rank"}, type="category", categoryorder="array", categoryarray=names)
    axis = made.layout.yaxis.to_plotly_json()
    room = BARS_HEIGHT + heat_height - MARGINS_HEIGHT
    split = (BARS_HEIGHT - MARGINS_HEIGHT) / room
    made.update_yaxes(domain=[0, split], title={"text": f"ms{style.per_step(diagnosis)}"}, separatethousands=True)
    made.update_layout(yaxis2={**axis, "domain": [min(split + 30 / room, 1), 1], "title": {"text": "step"}})
    if several:
        _add_heat(made, shown, names, _numbers(diagnosis, count))
    for name, colour, shape, get in PARTS:
        ns = [None if one.breakdown is None else get(one.breakdown) for one in shown]
        if name == WORK_NOT_RECORDED and not any(ns):
            continue
        made.add_bar(
            name=name,
            x=names,
            y=[None if one is None else one / 1e6 for one in ns],
            marker={"color": colour, "pattern": style.pattern(shape), "line": {"width": 0}},
            hovertext=[_rank_hover(one, name, get) for one in shown],
            hoverinfo="text",
        )
    return made


BARS_HEIGHT, MARGINS_HEIGHT = 320, 90
PARTS: tuple[tuple[str, str, str, Callable[[Breakdown], int]], ...] = (
    ("compute", style.COMPUTE, "", lambda part: part.compute_ns),
    ("communication", style.COMMUNICATION, style.CROSSED, lambda part: part.exposed_communication_ns),
    ("copies", style.COPY, style.DOTTED, lambda part: part.exposed_copy_ns),
    ("idle", style.NO_CAUSE, style.HATCHED, lambda part: part.idle_ns),
    (WORK_NOT_RECORDED, style.NOT_RECORDED, style.HATCHED, lambda part: part.work_not_recorded_ns),
)
"""Name, colour, pattern and time per step of what adds up to a rank's step."""


def ranks_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the ranks: the slowest and the fastest, and which waits longest."""
    timed = {one.rank: one.step_time_ns.mean for one in _ranks(diagnosis) if one.step_time_ns}
    slowest, fastest = max(timed, key=lambda rank: timed[rank]), min(timed, key=lambda rank: timed[rank])
    longer = share(timed[slowest] - timed[fastest], timed[fastest])
    waits = _waits(diagnosis)
    if timed[slowest] == timed[fastest]:
        return f"All ranks are equally fast, with a mean step of {duration(timed[slowest])}{waits}."
    head = f"Rank {slowest} is the slowest with a mean step of {duration(timed[slowest])}"
    return f"{head}, {longer} more than that of rank {fastest}, the fastest here{waits}."


def _waits(diagnosis: Diagnosis) -> str:
    """Who waits longest at collectives, as the end of a sentence; empty if nobody waits or it is not known."""
    most = max(diagnosis.ranks, key=lambda one: one.waiting_ns or 0)
    if not most.waiting_ns:
        return ""
    return f"; rank {most.rank} waits longest for others to come to collectives, {duration(most.waiting_ns)} a step"


def _ranks(diagnosis: Diagnosis) -> list[RankSummary]:
    """The ranks with step times by number, of more than MOST_RANKS the slowest. Raises Missing without two."""
    measured = [rank for rank in diagnosis.ranks if rank.step_time_ns is not None]
    if len(measured) < 2:
        raise Missing("several ranks", "Record each rank, and analyze their traces together.")
    slowest = sorted(measured, key=lambda one: -one.step_time_ns.mean if one.step_time_ns else 0)
    return sorted(slowest[:MOST_RANKS], key=lambda one: one.rank)


def _numbers(diagnosis: Diagnosis, count: int) -> list[str]:
    """Labels of `count` steps: the numbers of the used steps if they are as many, else 1, 2, ..."""
    numbers = diagnosis.steps.numbers if diagnosis.steps else ()
    return [str(number) for number in (numbers if len(numbers) == count else range(1, count + 1))]


def _add_heat(made: go.Figure, shown: list[RankSummary], names: list[str], steps: list[str]) -> None:
    """A heat map of step times: a row per step, a column per rank."""
    times, said = np.full((len(steps), len(shown)), np.nan), [[""] * len(shown) for _ in steps]
    for column, one in enumerate(shown):
        times[: len(one.times_ns), column] = np.array(one.times_ns) / 1e6
        for row, ns in enumerate(one.times_ns):
            said[row][column] = f"rank {one.rank}, step {steps[row]}<br>{duration(ns)}"
    made.add_heatmap(
        x=names,
        y=np.arange(len(steps)),
        z=times,
        yaxis="y2",
        colorscale=style.HEAT,
        colorbar={"title": {"text": "ms"}, "thickness": 8, "y": 1, "yanchor": "top", "len": 0.5, "outlinewidth": 0},
        hovertext=said,
        hoverinfo="text",
        texttemplate="%{z:.3~g}" if times.size <= MOST_TEXTS else None,
    )
    made.update_layout(yaxis2={"tickvals": list(range(len(steps))), "ticktext": steps, "showgrid": False})


def _rank_hover(one: RankSummary, name: str, get: Callable[[Breakdown], int]) -> str:
    if one.breakdown is None:
        return ""
    ns = get(one.breakdown)
    return f"rank {one.rank}<br>{name}: {duration(ns)} ({share(ns, one.breakdown.step_ns)})"


def memory(diagnosis: Diagnosis) -> go.Figure:
    """Allocated and reserved memory over time, the used steps shaded. Raises Missing if it was not recorded."""
    curves = _memory(diagnosis)
    made = style.figure(320)
    made.update_xaxes(title={"text": "ms on the timeline"}, separatethousands=True)
    made.update_yaxes(rangemode="tozero", tickformat="~s", ticksuffix="B")
    used = diagnosis.timeline.bounds_ns if diagnosis.timeline else ()
    if used:
        made.add_vrect(used[0] / 1e6, used[-1] / 1e6, fillcolor=style.SHADE, line={"width": 0}, layer="below")
        corner = {"y": 0, "yref": "paper", "xanchor": "right", "yanchor": "bottom"}
        made.add_annotation(x=used[-1] / 1e6, text="used steps", showarrow=False, **corner)
    for line in style.step_bounds(diagnosis):
        made.add_shape(line)
    for curve, colour in zip(curves, cycle(DEVICES), strict=False):
        moment, gpu = np.array(curve.moment_ns) / 1e6, f" of GPU {curve.device}" * (len(curves) > 1)
        if curve.allocated_least_bytes:
            _add_range(made, curve, moment, colour)
        lines = ("allocated", "solid", curve.allocated_bytes), ("reserved", "dash", curve.reserved_bytes)
        for name, dash, values in lines:
            made.add_scatter(
                name=name + gpu,
                mode="lines",
                x=moment,
                y=np.array([float(value) if value >= 0 else np.nan for value in values]),
                line={"color": colour, "dash": dash, "shape": "hv", "width": 1.5},
                hovertext=[f"{name}{gpu}: {size(value)}" for value in values],
                hoverinfo="text",
            )
    return made


def _add_range(made: go.Figure, curve: MemoryCurve, moment: npt.NDArray[np.float64], colour: str) -> None:
    """The band between the least and the most memory allocated; `moment`: the times of the curve's points."""
    for values, fill in ((curve.allocated_least_bytes, None), (curve.allocated_bytes, "tonexty")):
        made.add_scatter(
            mode="lines",
            x=moment,
            y=np.array(values, dtype=float),
            line={"width": 0, "shape": "hv"},
            fill=fill,
            fillcolor=f"rgba({','.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))},0.25)",
            hoverinfo="skip",
            showlegend=False,
        )


DEVICES = (style.BLUE, style.RED, style.GREEN, style.PINK, style.ORANGE)


def memory_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the memory: the most allocated and reserved on the fullest GPU."""
    most = max(_memory(diagnosis), key=lambda curve: max(curve.allocated_bytes))
    peak, reserved = max(most.allocated_bytes), max(most.reserved_bytes)
    beside = f", while up to {size(reserved)} are reserved" if reserved >= 0 else ""
    return f"Tensors take up to {size(peak)} of GPU {most.device}{beside}."


def _memory(diagnosis: Diagnosis) -> tuple[MemoryCurve, ...]:
    found = diagnosis.pictures.memory if diagnosis.pictures else None
    if not found:
        totals = Missing("totals of allocated memory", "Record with profile_memory=True and a current PyTorch.")
        raise style.missing(diagnosis, "memory", totals)
    return found
