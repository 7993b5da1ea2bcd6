"""Findings for a job on GitHub: annotations at source lines, and the summary on the job's page.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.reports import alerts, findings, heading
from diagnose.reports.alerts import Alert, AlertLevel

MOST_OF_A_KIND = 10
"""Annotations of one kind that GitHub shows of a step."""

MOST_SUMMARY_BYTES = 1 << 20
"""Of the summary of a step; GitHub refuses a longer one as a whole."""

CUT = "\n\nThe report is cut here, as GitHub shows no more. `diagnose analyze` has all of it.\n"

_KINDS = {AlertLevel.ERROR: "error", AlertLevel.WARNING: "warning", AlertLevel.NOTE: "notice"}


def annotated(
    diagnosis: Diagnosis,
    shown: Sequence[RankedFinding] | None = None,
    over: Collection[RankedFinding] = (),
    here: Path | None = None,
) -> list[str]:
    """A line for each finding that GitHub shows, the first of each kind, and one that counts the rules."""
    found = alerts.of(diagnosis, shown, over, alerts.in_checkout(diagnosis, here))
    return [*_checked(diagnosis), *_first(found)]


def _checked(diagnosis: Diagnosis) -> Iterator[str]:
    """How many rules looked, and how many could not."""
    if text := findings.checked(diagnosis):
        yield f"::notice title=diagnose::{_data(f'{heading.headline(diagnosis)}. {text}')}"


def _first(found: Sequence[Alert]) -> Iterator[str]:
    told = Counter[AlertLevel]({AlertLevel.NOTE: 1})
    for one in found:
        told[one.level] += 1
        if told[one.level] <= MOST_OF_A_KIND:
            yield _line(one)


def _line(one: Alert) -> str:
    properties = {"title": one.title}
    if one.place is not None:
        line = {"line": str(one.place.line)} if one.place.line else {}
        properties = {"file": one.place.path, **line, **properties}
    said = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{_KINDS[one.level]} {said}::{_data(f'{one.text} ({one.code} {one.rule})')}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def summary(report: str, room_bytes: int = MOST_SUMMARY_BYTES) -> bytes:
    """A report in Markdown, at most so large; empty if nothing fits."""
    whole = f"{report}\n".encode(errors="replace")
    if len(whole) <= room_bytes:
        return whole
    room = room_bytes - len(CUT.encode())
    return whole[: whole.rfind(b"\n", 0, room)] + CUT.encode() if room > 0 and b"\n" in whole[:room] else b""
