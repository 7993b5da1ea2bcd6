"""A Diagnosis in a notebook: shown in short, without scripts, so that notebooks stay small and trusted."""

from __future__ import annotations

from diagnose.contracts.diagnosis import Diagnosis


def register() -> None:
    """Let notebooks show a Diagnosis. It is told from here how, as it knows no reports."""
    type.__setattr__(Diagnosis, "_repr_html_", render)


def render(diagnosis: Diagnosis) -> str:
    """What a notebook shows."""
    from diagnose.reports.html import summary

    return summary.render(diagnosis)
