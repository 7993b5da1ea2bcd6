"""How often the diagnosis is right, over the planted cases: `python -m benchmarks.accuracy [--write]`.

It needs neither torch nor a GPU: it reads the recordings in sample_traces/ and the step times measured beside them.
`--write` puts the table into README.md and the rows into benchmarks/accuracy.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import diagnose
from benchmarks.planted_cases import LEVELS, Case, Truth, cases
from diagnose.diagnosis import Diagnosis
from diagnose.finding import RankedFinding

README = Path(__file__).parent.parent / "README.md"
ROWS = Path(__file__).with_name("accuracy.json")
MARKS = "<!-- accuracy:start -->\n", "<!-- accuracy:end -->"

PARTS = ("report", "develop")

LARGE = 0.05
"""A finding on a healthy run that promises this share of the step or more is a false positive."""


@dataclass(frozen=True)
class Row:
    """What was said of one recording, and what is true."""

    case: str
    part: str
    """One of PARTS."""
    level: str
    family: str
    found: tuple[str, ...]
    """Rules of the findings, the first first; minor ones are none."""
    place: int | None
    """Of the first that names the planted fault, from 1; None if none does."""
    measured: float | None
    """Speed-up by the fix; None for healthy runs."""
    measured_low: float | None
    measured_high: float | None
    predicted: float | None
    """By the finding at `place`."""
    predicted_low: float | None
    predicted_high: float | None
    summed: float | None
    """As predicted by adding up durations instead of replaying."""
    largest: float
    """Share of the step that the first finding promises."""


def row(case: Case, level: str, truth: Truth | None, diagnosis: Diagnosis) -> Row:
    """One recording's row. `truth` is None for healthy runs."""
    findings = [one for one in diagnosis.findings if not one.minor]
    place = next((at for at, one in enumerate(findings, start=1) if one.rule in case.expected), None)
    hit = findings[place - 1] if place else None
    step_ns = diagnosis.step_ns or 0
    saving = hit.saving if hit else None
    return Row(
        case=case.name,
        part=part_of(case),
        level=level,
        family=case.family,
        found=tuple(one.rule for one in findings),
        place=place,
        measured=truth.speedup if truth else None,
        measured_low=truth.low if truth else None,
        measured_high=truth.high if truth else None,
        predicted=speedup(step_ns, saving.likely_ns) if saving else None,
        predicted_low=speedup(step_ns, saving.low_ns) if saving else None,
        predicted_high=speedup(step_ns, saving.high_ns) if saving else None,
        summed=speedup(step_ns, summed_ns(hit, diagnosis)) if hit else None,
        largest=max((one.share_of_step for one in findings), default=0.0),
    )


def part_of(case: Case) -> str:
    """Rules may be changed after a look at one part of the cases only; which, their ids decide once for all."""
    return PARTS[hashlib.sha256(case.id.encode()).digest()[0] % 2]


def speedup(step_ns: int, saved_ns: int) -> float:
    """How many times as fast a step is that is so much shorter."""
    return step_ns / max(step_ns - saved_ns, 1)


def summed_ns(finding: RankedFinding, diagnosis: Diagnosis) -> int:
    """The time of what the fix changes, as far as it goes away: what tools without a replay would promise."""
    gone = sum(change.ns * (1.0 - change.left[1]) for change in finding.changes if change.left is not None)
    recorded_ns = diagnosis.replay.step_time_ns if diagnosis.replay else 1
    return min(round(gone * (diagnosis.step_ns or 0) / max(recorded_ns, 1)), diagnosis.step_ns or 0)


def rows() -> list[Row]:
    """Every recording of a case that counts: those whose fix surely gains something, and the healthy ones."""
    found = []
    for case in cases():
        for level in LEVELS:
            truth, healthy = case.truth(level), case.kind == "control"
            if case.recording(level).is_dir() and (healthy or (truth is not None and truth.counts)):
                found.append(row(case, level, None if healthy else truth, diagnose.analyze(case.recording(level))))
    return found


def errors(some: list[Row], by: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Predicted over measured speed-up, less one, where the planted fault was named."""
    pairs = [(getattr(one, by), one.measured) for one in some if one.place and one.measured]
    return np.array([predicted / measured - 1.0 for predicted, measured in pairs])


def table(all_rows: list[Row]) -> str:
    """The README's tables: in short, for the part that rules are developed on and the other; and every recording."""
    parts = [[one for one in all_rows if one.part == part] for part in PARTS]
    figures = [_figures(part) for part in parts]
    lines = ["| | reported | developed on |", "|---|--:|--:|"]
    lines += [f"| {what} | {' | '.join(values)} |" for what, *values in zip(WHAT, *figures, strict=True)]
    return "\n".join(lines) + "\n\n" + details(all_rows)


WHAT = (
    "the planted fault is the first finding",
    "it is among the first three",
    "mean reciprocal rank",
    "healthy runs with a finding of 5 % or more",
    "error of the predicted speed-up, median",
    "the same, 90th percentile",
    "the same, mean with its sign",
    "measured interval meets the predicted range",
    "error if durations are added up instead of replayed, median",
)


def _figures(some: list[Row]) -> list[str]:
    planted = [one for one in some if one.measured is not None]
    healthy = [one for one in some if one.measured is None]
    first, third = (sum(one.place is not None and one.place <= most for one in planted) for most in (1, 3))
    reciprocal = sum(1 / one.place for one in planted if one.place) / max(len(planted), 1)
    own, summed = errors(planted, "predicted"), errors(planted, "summed")
    return [
        f"{first} of {len(planted)}",
        f"{third} of {len(planted)}",
        f"{reciprocal:.2f}",
        f"{sum(one.largest >= LARGE for one in healthy)} of {len(healthy)}",
        _percent(np.abs(own), 0.5),
        _percent(np.abs(own), 0.9),
        _signed(own),
        f"{sum(map(_covers, planted))} of {len(own)}",
        _percent(np.abs(summed), 0.5),
    ]


def _covers(one: Row) -> bool:
    """Whether the measured interval and the predicted range have something in common."""
    if one.measured_low is None or one.measured_high is None or one.predicted_low is None or one.predicted_high is None:
        return False
    return one.predicted_low <= one.measured_high and one.measured_low <= one.predicted_high


def _percent(values: np.ndarray[tuple[int], np.dtype[np.float64]], share: float) -> str:
    return f"{np.quantile(values, share):.0%}" if len(values) else "-"


def _signed(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    return f"{values.mean():+.0%}" if len(values) else "-"


def details(all_rows: list[Row]) -> str:
    """Every recording."""
    lines = ["| case | level | measured | predicted | first finding |", "|---|---|--:|--:|---|"]
    for one in all_rows:
        measured = "healthy" if one.measured is None else f"{one.measured:.2f} x"
        predicted = "-"
        if one.predicted is not None:
            predicted = f"{one.predicted:.2f} x ({one.predicted_low:.2f} to {one.predicted_high:.2f})"
        first = f"`{one.found[0]}`" if one.found else "none"
        lines.append(f"| {one.case} | {one.level} | {measured} | {predicted} | {first} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="into README.md and benchmarks/accuracy.json")
    given = parser.parse_args()
    found = rows()
    print(text := table(found))
    if given.write:
        ROWS.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n", encoding="utf-8")
        readme = README.read_text(encoding="utf-8")
        pattern = re.compile(f"({MARKS[0]}).*({MARKS[1]})", re.DOTALL)
        README.write_text(pattern.sub(lambda whole: f"{whole[1]}{text}{whole[2]}", readme), encoding="utf-8")


if __name__ == "__main__":
    main()
