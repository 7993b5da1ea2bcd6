"""Findings as the page shows them: saving, evidence, fix, and why it is said."""

from collections.abc import Iterator

import plotly.graph_objects as go
from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding, RulePage
from diagnose.contracts.trials import Range, Trial
from diagnose.facts.core.base import Missing
from diagnose.facts.core.steps import Measure
from diagnose.fixes.setting import Safety
from diagnose.reports import findings, trials
from diagnose.reports.findings import Card
from diagnose.reports.html.style import BLUE, DARK, GREEN, RED, TWO_LINES, figure, plain, rows
from diagnose.trace.units import duration, number


class Shown(Struct, frozen=True):
    """A finding with all that its card unfolds to."""

    card: Card
    finding: RankedFinding
    range: str  # `18.2 ms to 24.0 ms of 96.0 ms, once those above are fixed`.
    alone: str  # `alone 25.1 ms`; empty where that is as much.
    shares: tuple[float, float, float]  # Low, likely and high of the step in percent, for a bar.
    changes: list[str]
    formula: list[str]
    page: RulePage | None
    places: str  # `5 places`: how many the card can show on the timeline; empty if none.


SAFE = (Safety.SAME_NUMBERS, Safety.ROUNDING)  # Fixes that need no look at the loss.


def shown(diagnosis: Diagnosis) -> Iterator[Shown]:
    """Each finding that has a card, in order, with what the card unfolds to."""
    pages = {rule.rule: rule for rule in diagnosis.rules}
    step_ns = diagnosis.step_ns or 0
    per = "" if diagnosis.steps is None or diagnosis.steps.measure is Measure.WINDOW else " a step"
    for card, (_, one) in zip(findings.cards(diagnosis), findings.worth(diagnosis), strict=True):
        (low_ns, likely_ns, high_ns), alone_ns = one.shown_ns, one.saving.likely_ns
        span = duration(high_ns) if low_ns == high_ns else f"{duration(low_ns)} to {duration(high_ns)}"
        yield Shown(
            card=card,
            finding=one,
            range=f"{span} of {duration(step_ns)}{per}, once those above are fixed",
            alone=f"alone {duration(alone_ns)}" if duration(alone_ns) != duration(likely_ns) else "",
            shares=(100 * low_ns / (step_ns or 1), 100 * likely_ns / (step_ns or 1), 100 * high_ns / (step_ns or 1)),
            changes=findings.changes(one, diagnosis),
            formula=findings.formula(one, diagnosis),
            page=pages.get(one.rule),
            places=_places(one),
        )


def _places(one: RankedFinding) -> str:
    if not one.spots:
        return ""
    most = f", the longest {len(one.spots)}" * (len(one.spots) < one.spot_count)
    return f"{number(one.spot_count)} place{'s' * (one.spot_count > 1)}{most}"


ABOVE, BELOW = -0.08, 0.12  # Where in a row the prediction and the measurement are drawn, in rows.


def speed_ups(diagnosis: Diagnosis) -> go.Figure:
    """Of each measured fix the predicted and the measured speed-up's interval. Raises Missing without any."""
    tried = _tried(diagnosis)
    labels = [
        (plain(trials.name(one), 40), plain(f"{trials.speed_of(one.found.likely)}, {trials.verdict(one)}"))
        for one in tried
        if one.found is not None
    ]
    made = figure(**rows(labels))
    made.update_layout(showlegend=True, height=TWO_LINES * len(tried) + 80)
    ranges = [found for one in tried for found in (one.predicted, one.found) if found is not None]
    least, most = min(0.95, *(range_.low for range_ in ranges)), max(1.05, *(range_.high for range_ in ranges))
    made.update_xaxes(title={"text": "times as fast"}, range=[0.98 * least, 1.02 * most], fixedrange=True)
    made.add_vline(x=1, line={"color": DARK, "dash": "dot", "width": 1})
    _add(made, "predicted", [(k + ABOVE, one.predicted, BLUE) for k, one in enumerate(tried)], "diamond-open")
    colours = [{"keep": GREEN, "slower": RED}.get(one.verdict, DARK) for one in tried]
    _add(made, "measured", [(k + BELOW, one.found, colours[k]) for k, one in enumerate(tried)], "circle")
    return made


def speed_ups_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below: how many predictions agree with measurements."""
    both = [
        (one.predicted, one.found) for one in _tried(diagnosis) if one.predicted is not None and one.found is not None
    ]
    held = sum(predicted.low <= found.high and found.low <= predicted.high for predicted, found in both)
    pays = "A fix pays where all of its measured interval lies above 1."
    if not both:
        return f"Bars are intervals. {pays}"
    return f"{held} of {len(both)} predictions agree with what was measured: their intervals overlap. {pays}"


def _add(made: go.Figure, name: str, points: list[tuple[float, Range | None, str]], symbol: str) -> None:
    """Add points with error bars to the figure, each a (row, speed-up or None, colour)."""
    measured = [(y, found, colour) for y, found, colour in points if found is not None]
    for row, (y, found, colour) in enumerate(measured):
        made.add_scatter(
            name=name,
            legendgroup=name,
            showlegend=row == 0,
            mode="markers",
            x=[found.likely],
            y=[y],
            error_x={"array": [found.high - found.likely], "arrayminus": [found.likely - found.low], "color": colour},
            marker={"color": colour, "symbol": symbol, "size": 9},
            hovertext=f"{name}: {trials.factors(found)}",
            hoverinfo="text",
        )


def _tried(diagnosis: Diagnosis) -> list[Trial]:
    """The trials with a measured speed-up, single fixes first. Raises Missing without any."""
    tried = [] if diagnosis.trials is None else trials.all_of(diagnosis.trials)
    if not (measured := [one for one in tried if one.found is not None]):
        raise Missing("a measured fix", "Try fixes of a recording: diagnose try.")
    return measured
