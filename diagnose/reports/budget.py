"""What a test says of a budget, as text."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.contracts.budget import Judged, Kept, What
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports import findings
from diagnose.trace.units import duration, percent

MOST_FINDINGS = 3
"""That a failing test shows (our choice)."""


def told(one: Judged) -> str:
    """What was measured, and the limit, in one sentence."""
    write = duration if one.what is What.STEP else percent
    subject = "A step takes" if one.what is What.STEP else "The GPU is idle for"
    of = "" if one.what is What.STEP else " of a step"
    if one.high is None:
        return f"{subject} an unknown {'time' if one.what is What.STEP else 'part'}{of}: {one.how}."
    measured = f"at most {write(one.high)}" if one.low is None else f"{write(one.low)} to {write(one.high)}"
    return f"{subject} {measured}{of} ({one.how}); the limit is {write(one.limit)}."


def exceeded(judged: Sequence[Judged], diagnosis: Diagnosis | None, folder: str) -> str:
    """Why a test fails: the limits that are exceeded, and what to fix first."""
    lines = [f"The training exceeds its budget. {' '.join(told(one) for one in judged if one.kept is Kept.OVER)}"]
    cards = [] if diagnosis is None else findings.cards(diagnosis)[:MOST_FINDINGS]
    if cards:
        lines.append("What to fix:")
    for card in cards:
        lines.append(f"{card.number}. {card.title} ({card.code}) saves {card.saving}")
        if card.place:
            lines.append(f"   at {card.place}")
        lines += [f"   {fix.do}" for fix, _ in card.fixes[:1]]
    return "\n".join([*lines, f"The recording is in {folder}: diagnose analyze {folder}"])


def unsure(judged: Sequence[Judged]) -> str:
    """What could not be told, and is no pass."""
    said = " ".join(told(one) for one in judged if one.kept is Kept.CANNOT_TELL)
    return f"Cannot tell whether the training keeps its budget. {said}"
