"""A Diagnosis in short, as a piece of HTML without scripts: for notebooks."""

from __future__ import annotations

from dataclasses import dataclass

from diagnose import failures
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.facts.core.base import Missing
from diagnose.failures import Failure, attempt
from diagnose.reports import findings, heading
from diagnose.reports.html import bundle, step_figures
from diagnose.trace.model import Severity
from diagnose.trace.units import duration


@dataclass(frozen=True)
class Piece:
    """A part of the step's bar, in percent."""

    label: str
    start: float
    width: float
    colour: str


def render(diagnosis: Diagnosis) -> str:
    """The summary."""
    with failures.collected() as lost:
        return _rendered(diagnosis, lost)


def _rendered(diagnosis: Diagnosis, lost: list[Failure]) -> str:
    bar, bar_text = attempt("the bar of the step", ([], ""), _bar, diagnosis)
    return bundle.template("notebook.html.j2").render(
        headline=heading.headline(diagnosis),
        subject=heading.subject(diagnosis),
        warnings=[note for note in diagnosis.integrity if note.severity is not Severity.NOTE],
        bar=bar,
        bar_text=bar_text,
        lost=findings.lost(diagnosis),
        cards=findings.cards(diagnosis),
        risks=findings.risks(diagnosis),
        risks_heading=findings.RISKS,
        unchecked=findings.unchecked(diagnosis),
        checked=findings.checked(diagnosis),
        left_out=lost,
    )


def _bar(diagnosis: Diagnosis) -> tuple[list[Piece], str]:
    """The step's parts, and what to see in them; nothing if there are none."""
    try:
        parts, sentence = step_figures.parts(diagnosis), step_figures.step_bar_sentence(diagnosis)
    except Missing:
        return [], ""
    whole, pieces, start = max(sum(part.ns for part in parts), 1), [], 0.0
    for part in parts:
        width = 100 * part.ns / whole
        pieces.append(Piece(f"{part.label}: {duration(part.ns)}", start, width, part.colour))
        start += width
    return pieces, sentence
