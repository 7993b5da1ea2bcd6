"""A Diagnosis as Markdown that pastes well into an issue or a pull request."""

from __future__ import annotations

import re

from diagnose.diagnosis import Diagnosis
from diagnose.reports import content
from diagnose.reports.content import Row, Section

_ACTIVE = re.compile(r"([\\`*_\[\]<>|~#&])")


def render(diagnosis: Diagnosis) -> str:
    """The whole report. Names from the trace are escaped: they are untrusted text."""
    lines = [f"## {escaped(content.headline(diagnosis))}", "", escaped(content.subject(diagnosis)), ""]
    for section in content.sections(diagnosis):
        lines += _table(section)
    if diagnosis.absent:
        lines += ["### Could not look at", ""]
        lines += [f"- {escaped(what)}. {escaped(how)}" for what, how in unique_absent(diagnosis)] + [""]
    if diagnosis.integrity:
        lines += ["### About this recording", ""]
        lines += [
            f"- **{note.severity.value}**: {escaped(note.what)} {escaped(note.effect)}" for note in diagnosis.integrity
        ] + [""]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Text in which nothing means anything to Markdown or HTML, mentions nobody and links nowhere."""
    return _ACTIVE.sub(r"\\\1", text).replace("@", "@\u200b").replace("://", ":\u200b//")


def unique_absent(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """(what, how to record it) of each thing that is missing, once."""
    return list(dict.fromkeys((one.what, one.how_to_record_it) for one in diagnosis.absent))


def _label(row: Row) -> str:
    return f"{row.label}, at {row.place}" if row.place else row.label


def _table(section: Section) -> list[str]:
    heads = [head.capitalize() or " " for head in section.columns]
    lines = [f"### {escaped(section.title)}", "", f"| {' | '.join(heads)} |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    lines += [f"| {' | '.join(escaped(cell) for cell in (_label(row), *row.cells))} |" for row in section.rows]
    return [*lines, "", *([f"{escaped(section.note)}", ""] if section.note else [])]
