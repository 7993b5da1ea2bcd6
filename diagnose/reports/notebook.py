"""A Diagnosis in a notebook: shown in short, without scripts, so that notebooks stay small and trusted."""

from __future__ import annotations

import html

from diagnose.contracts.diagnosis import Diagnosis


def shown_in_notebooks() -> type[Diagnosis]:
    """The class of a Diagnosis, which is told from here how notebooks show it, as it knows no reports."""
    type.__setattr__(Diagnosis, "_repr_html_", render)
    return Diagnosis


def render(diagnosis: Diagnosis) -> str:
    """What a notebook shows: the report in brief."""
    from diagnose.reports import terminal

    report = html.escape(terminal.render(diagnosis, terminal.MOST_WIDTH))
    return f'<pre style="white-space: pre; overflow-x: auto">{report}</pre>'
