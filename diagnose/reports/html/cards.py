"""Findings as the page shows them: saving, evidence, fix, and why it is said."""

from collections.abc import Iterator

import plotly.graph_objects as go
from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding, RulePage
from diagnose.contracts.trials import Range, Report, Trial
from diagnose.facts.core.base import Missing
from diagnose.facts.core.steps import Measure
from diagnose.fixes.setting import Safety
from diagnose.reports import findings, reasons, trials
from diagnose.reports.findings import Card
from diagnose.reports.html.style import BLUE, DARK, GREEN, RED, TWO_LINES, figure, plain, rows
from diagnose.rulekit.page import SECTIONS
from diagnose.trace.units import duration, number


class Shown(Struct, frozen=True):
    """A finding with all that its card unfolds to."""

    card: Card
    finding: RankedFinding
    heading: str  # Of its kind, and what savings below it are.
    about: str
    range: str  # `18.2 ms to 24.0 ms of 96.0 ms, once those above are fixed`.
    alone: str  # `alone 25.1 ms`; empty where that is as much.
    low: float
    likely: float
    high: float  # Shares of the step in percent, for a bar.
    changes: tuple[str, ...]
    formula: tuple[str, ...]
    page: RulePage | None
    sections: tuple[tuple[str, str], ...]  # (heading, text) of the rule's page.
    places: str  # How many places on the timeline it can go to; empty if none.


SAFE = (Safety.SAME_NUMBERS, Safety.ROUNDING)  # Fixes that need no look at the loss.


def shown(diagnosis: Diagnosis) -> Iterator[Shown]:
    """The findings worth a card, in order."""
    pages = {rule.rule: rule for rule in diagnosis.rules}
    step_ns = diagnosis.step_ns or 0
    per = "" if diagnosis.steps is None or diagnosis.steps.measure is Measure.WINDOW else " a step"
    major = [finding for finding in diagnosis.findings if not finding.minor]
    for card, one in zip(findings.cards(diagnosis), major, strict=True):
        saving, (low_ns, likely_ns, high_ns) = one.saving, one.shown_ns
        alone = duration(saving.likely_ns) if duration(saving.likely_ns) != duration(likely_ns) else ""
        page = pages.get(one.rule)
        yield Shown(
            card=card,
            finding=one,
            heading=findings.HEADINGS[one.kind],
            about=findings.ABOUT[findings.HEADINGS[one.kind]],
            range=f"{_range(low_ns, high_ns)} of {duration(step_ns)}{per}, once those above are fixed",
            alone=alone and f"alone {alone}",
            low=100 * low_ns / max(step_ns, 1),
            likely=100 * likely_ns / max(step_ns, 1),
            high=100 * high_ns / max(step_ns, 1),
            changes=tuple(reasons.changes(one, diagnosis)),
            formula=tuple(reasons.formula(one, diagnosis)),
            page=page,
            sections=sections(page),
            places=_places(one),
        )


def sections(page: RulePage | None) -> tuple[tuple[str, str], ...]:
    """The headings of a rule's page with their text, in order."""
    return () if page is None else tuple((head, page.sections[head]) for head in SECTIONS if head in page.sections)


def _range(low_ns: int, high_ns: int) -> str:
    return duration(high_ns) if low_ns == high_ns else f"{duration(low_ns)} to {duration(high_ns)}"


def _places(one: RankedFinding) -> str:
    if not one.spots:
        return ""
    most = f", the longest {len(one.spots)}" * (len(one.spots) < one.spot_count)
    return f"{number(one.spot_count)} place{'s' * (one.spot_count > 1)}{most}"


class TriedFix(Struct, frozen=True):
    """A fix, or several together."""

    name: str
    verdict: str
    rows: tuple[tuple[str, str], ...]  # (what, value) of all that is known.


class Tried(Struct, frozen=True):
    """All of a section."""

    title: str
    conclusion: str
    as_it_is: str
    fixes: tuple[TriedFix, ...]
    others: tuple[str, ...]  # Fixes that were not tried, and why.
    notes: tuple[str, ...]


def view(report: Report) -> Tried:
    """What the page shows of it beside the figure."""
    return Tried(
        title=trials.TITLE,
        conclusion=trials.conclusion(report),
        as_it_is="" if report.baseline is None else f"{trials.as_it_is(report.baseline)}.",
        fixes=tuple(
            TriedFix(trials.name(one), trials.verdict(one), tuple(trials.rows(one))) for one in trials.all_of(report)
        ),
        others=tuple(f"{one.number}. {one.rule}: {one.why}." for one in report.not_tried),
        notes=report.notes,
    )


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
    for row, (y, found, colour) in enumerate(known):
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
