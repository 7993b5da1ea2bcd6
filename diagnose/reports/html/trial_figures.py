"""Trials in figures: what fixes were predicted to bring, and what they were measured to."""

from __future__ import annotations

import plotly.graph_objects as go

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.trials import Range, Trial
from diagnose.facts.core.base import Missing
from diagnose.reports import trials
from diagnose.reports.html.style import BLUE, DARK, GREEN, RED, TWO_LINES, figure, plain, rows

ABOVE, BELOW = -0.08, 0.12  # Where in a row the prediction and the measurement are drawn, in rows.


def speed_ups(diagnosis: Diagnosis) -> go.Figure:
    """Of each fix the predicted and the measured interval, with 1 as no change. Raises Missing without any."""
    shown = _shown(diagnosis)
    made = figure(**rows([(plain(trials.name(one), 40), plain(_told(one))) for one in shown]))
    made.update_layout(showlegend=True, height=TWO_LINES * len(shown) + 80)
    ranges = [found for one in shown for found in (one.predicted, one.found) if found is not None]
    least, most = min(0.95, *(range_.low for range_ in ranges)), max(1.05, *(range_.high for range_ in ranges))
    made.update_xaxes(title={"text": "times as fast"}, range=[0.98 * least, 1.02 * most], fixedrange=True)
    made.add_vline(x=1, line={"color": DARK, "dash": "dot", "width": 1})
    _add(made, "predicted", [(k + ABOVE, one.predicted, BLUE) for k, one in enumerate(shown)], "diamond-open")
    _add(made, "measured", [(k + BELOW, one.found, _colour(one)) for k, one in enumerate(shown)], "circle")
    return made


def speed_ups_sentence(diagnosis: Diagnosis) -> str:
    """What to see in it."""
    both = [one for one in _shown(diagnosis) if one.predicted is not None and one.found is not None]
    held = [one for one in both if _overlap(one)]
    if not both:
        return "Bars are intervals. A fix pays where all of its measured interval lies above 1."
    of = f"{len(held)} of {len(both)} predictions agree with what was measured: their intervals overlap"
    return f"{of}. A fix pays where all of its measured interval lies above 1."


def _add(made: go.Figure, name: str, points: list[tuple[float, Range | None, str]], symbol: str) -> None:
    known = [(y, found, colour) for y, found, colour in points if found is not None]
    for number, (y, found, colour) in enumerate(known):
        made.add_scatter(
            name=name,
            legendgroup=name,
            showlegend=number == 0,
            mode="markers",
            x=[found.likely],
            y=[y],
            error_x={"array": [found.high - found.likely], "arrayminus": [found.likely - found.low], "color": colour},
            marker={"color": colour, "symbol": symbol, "size": 9},
            hovertext=f"{name}: {trials.factors(found)}",
            hoverinfo="text",
        )


def _shown(diagnosis: Diagnosis) -> list[Trial]:
    tried = [] if diagnosis.trials is None else trials.all_of(diagnosis.trials)
    shown = [one for one in tried if one.found is not None]
    if not shown:
        raise Missing("a measured fix", "Try fixes of a recording: diagnose try.")
    return shown


def _told(one: Trial) -> str:
    return "" if one.found is None else f"{trials.speed_of(one.found.likely)}, {trials.verdict(one)}"


def _colour(one: Trial) -> str:
    return {"keep": GREEN, "slower": RED}.get(one.verdict, DARK)


def _overlap(one: Trial) -> bool:
    assert one.predicted is not None
    assert one.found is not None
    return one.predicted.low <= one.found.high and one.found.low <= one.predicted.high
