"""How often the diagnosis is right, over the planted cases: `python -m benchmarks.accuracy [--write]`.

It needs neither torch nor a GPU: it reads the recordings in sample_traces/ and the step times measured beside them.
`--write` puts the tables into README.md and the rows into benchmarks/accuracy.json.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

import diagnose
from benchmarks import accuracy_tables, baselines
from benchmarks.planted_cases import LEVELS, Case, Trial, Truth, cases, trials
from benchmarks.verdicts import PARTS, Accuracy, Figure, Joint, Mended, Row
from diagnose.diagnosis import Diagnosis
from diagnose.finding import RankedFinding

README = Path(__file__).parent.parent / "README.md"
RESULTS = Path(__file__).with_name("accuracy.json")
MARKS = "<!-- accuracy:start -->\n", "<!-- accuracy:end -->"


def part_of(case: Case) -> str:
    """Rules may be changed after a look at one part of the cases only; which, their ids decide once for all."""
    return PARTS[hashlib.sha256(case.id.encode()).digest()[0] % 2]


def speedup(step_ns: int, saved_ns: int) -> float:
    """How many times as fast a step is that is so much shorter."""
    return step_ns / max(step_ns - saved_ns, 1)


def place_of(expected: Iterable[str], said: Sequence[Iterable[str]] | None) -> int | None:
    """Where, from 1, something is said first that names an expected rule."""
    return next((at for at, rules in enumerate(said or (), start=1) if set(rules) & set(expected)), None)


def findings(diagnosis: Diagnosis) -> list[RankedFinding]:
    """Those that are worth something."""
    return [one for one in diagnosis.findings if not one.minor]


def largest_fault(trial: Trial) -> tuple[Truth | None, tuple[str, ...]]:
    """What mending it gains, and the rules that name it. Of a healthy run: None."""
    case = trial.case
    alone = {fault: truth for fault in case.faults if (truth := trial.truth((fault,)))}
    if not alone:
        return (None if case.is_control else trial.truth()), case.expected
    largest = max(alone, key=lambda fault: alone[fault].speedup)
    return alone[largest], case.faults[largest]


def regret(trial: Trial, truth: Truth, expected: tuple[str, ...], first: str | None) -> float:
    """Share of the step that mending the largest fault gains over mending what the first finding names."""
    if first in expected:
        return 0.0
    others = [trial.truth((fault,)) for fault, rules in trial.case.faults.items() if first in rules]
    return _gain(truth) - max((_gain(one) for one in others if one), default=0.0)


def _gain(truth: Truth) -> float:
    return 1.0 - 1.0 / truth.speedup


def row(trial: Trial, diagnosis: Diagnosis) -> Row:
    """One recording's row."""
    case, shown, step_ns = trial.case, findings(diagnosis), diagnosis.step_ns or 0
    truth, expected = largest_fault(trial)
    place = place_of(expected, [(one.rule,) for one in shown])
    hit = shown[place - 1] if place else None
    matched = baselines.patterns(trial)
    return Row(
        case=case.name,
        trial=trial.name,
        family=case.family,
        kind=case.kind,
        part=part_of(case),
        found=tuple(one.rule for one in shown),
        promised=max((one.share_of_step for one in shown), default=0.0),
        place=place,
        measured=figure(truth) if truth else None,
        noise=truth.noise if truth else None,
        predicted=predicted(hit, step_ns) if hit else None,
        summed=speedup(step_ns, baselines.summed_ns(hit, diagnosis)) if hit else None,
        regret=regret(trial, truth, expected, shown[0].rule if shown else None) if truth else None,
        largest_place=place_of(expected, baselines.largest_first(diagnosis)),
        patterns_place=place_of(expected, matched),
        patterns=None if matched is None else sum(bool(rules) for rules in matched),
    )


def figure(truth: Truth) -> Figure:
    """What was measured."""
    return Figure(truth.speedup, truth.low, truth.high)


def predicted(finding: RankedFinding, step_ns: int) -> Figure:
    """What was promised."""
    saving = finding.saving
    return Figure(*(speedup(step_ns, ns) for ns in (saving.likely_ns, saving.low_ns, saving.high_ns)))


def mended(trial: Trial) -> Mended:
    """What is still said of a recording whose fault is mended."""
    said = findings(diagnose.analyze(trial.fixed_recording))
    still = [one.share_of_step for one in said if one.rule in trial.case.expected]
    return Mended(trial.case.name, trial.name, part_of(trial.case), max(still, default=0.0))


def joints(trial: Trial, diagnosis: Diagnosis) -> list[Joint]:
    """Every set of faults that was mended together."""
    case, step_ns = trial.case, diagnosis.step_ns or 0
    found = []
    for faults in [*case.subsets, tuple(sorted(case.faults))]:
        truth = trial.truth(() if len(faults) == len(case.faults) else faults)
        if truth is None or len(faults) < 2:
            continue
        hits = [one for one in findings(diagnosis) if any(one.rule in case.faults[fault] for fault in faults)]
        together = sum(one.saving.after_above_ns or 0 for one in hits)
        alone = sum(one.saving.likely_ns for one in hits)
        named = sum(any(one.rule in case.faults[fault] for one in hits) for fault in faults)
        gains = speedup(step_ns, together), speedup(step_ns, min(alone, step_ns))
        found.append(Joint(case.name, trial.name, part_of(case), tuple(faults), named, figure(truth), *gains))
    return found


def accuracy() -> Accuracy:
    """Over every recording of a case that counts: those whose fix surely gains something, and the healthy ones."""
    rows, unblamed, together = list[Row](), list[Mended](), list[Joint]()
    for trial in sorted(trials(cases()), key=lambda one: (one.case.id, one.on_gpu, LEVELS.index(one.level))):
        truth = trial.truth()
        if not trial.recording.is_dir() or not (trial.case.is_control or (truth and truth.counts)):
            continue
        diagnosis = diagnose.analyze(trial.recording)
        together += joints(trial, diagnosis)
        if trial.case.faults and not any(trial.truth((fault,)) for fault in trial.case.faults):
            continue  # Which of its faults is the largest was not measured.
        rows.append(row(trial, diagnosis))
        if trial.fixed_recording.is_dir() and trial.case.expected:
            unblamed.append(mended(trial))
    return Accuracy(tuple(rows), tuple(unblamed), tuple(together))


def published() -> Accuracy:
    """What stands in benchmarks/accuracy.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=Accuracy)


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="into README.md and benchmarks/accuracy.json")
    given = parser.parse_args()
    found = accuracy()
    print(text := accuracy_tables.tables(found))
    if given.write:
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        readme = README.read_text(encoding="utf-8")
        pattern = re.compile(f"({MARKS[0]}).*({MARKS[1]})", re.DOTALL)
        README.write_text(pattern.sub(lambda whole: f"{whole[1]}{text}{whole[2]}", readme), encoding="utf-8")


if __name__ == "__main__":
    main()
