"""A Diagnosis in short, as a piece of HTML without scripts: for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diagnose import failures
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.facts.core.base import Missing
from diagnose.failures import Failure, section
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
    bar = section("the bar of the step", _bar, diagnosis)
    return bundle.template("notebook.html.j2").render(
        headline="".join(section("the step time", heading.headline, diagnosis)),
        subject="".join(section("what ran on what", heading.subject, diagnosis)),
        warnings=[note for note in diagnosis.integrity if note.severity is not Severity.NOTE],
        bar=bar,
        bar_text=step_figures.step_bar_sentence(diagnosis) if bar else "",
        lost="".join(section("what fixing the faults gives", heading.lost, diagnosis)),
        cards=section("what to fix", findings.cards, diagnosis),
        risks=section("risks", findings.risks, diagnosis),
        risks_heading=findings.RISKS,
        unchecked=section("what could not be looked at", findings.unchecked, diagnosis),
        checked="".join(section("how many rules ended how", findings.checked, diagnosis)),
        left_out=lost,
    )


def _bar(diagnosis: Diagnosis) -> Iterator[Piece]:
    """The step's parts; nothing if there are none."""
    try:
        parts = step_figures.parts(diagnosis)
    except Missing:
        return
    whole, start = max(sum(part.ns for part in parts), 1), 0.0
    for part in parts:
        width = 100 * part.ns / whole
        yield Piece(f"{part.label}: {duration(part.ns)}", start, width, part.colour)
        start += width
