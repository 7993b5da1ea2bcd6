"""How often the diagnosis is right, over the planted cases: `python -m benchmarks.accuracy [--first-look] [--write]`.

It needs neither torch nor a GPU: it reads the recordings in sample_traces/ and the step times measured beside them.
`--all-levels` reads those that `make truth` makes of the other levels as well.
`--write` puts the rows into benchmarks/accuracy.json, from which benchmarks.texts makes the published tables.
`--first-look` is for new cases: what is said of those that are not published yet goes into benchmarks/first_look.json,
where it stays.
"""

import argparse
import hashlib
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import msgspec

import diagnose
from benchmarks import accuracy_tables, baselines, verdicts
from benchmarks.planted_cases import LEVELS, Case, Trial, Truth, cases, trials
from benchmarks.poorer import poorer
from benchmarks.verdicts import PARTS, Accuracy, Again, Figure, FixedRun, Joint, Other, Poorer, Row
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Kind, RankedFinding

RESULTS = Path(__file__).with_name("accuracy.json")
FIRST_LOOK = Path(__file__).with_name("first_look.json")
LOOKED_AGAIN = Path(__file__).with_name("looked_again.json")
OTHERS = Path(__file__).with_name("others.json")


T = TypeVar("T", Row, FixedRun, Joint, Poorer)


def part_of(case: Case) -> str:
    """Rules may be changed after a look at one part of the cases only; which, their ids decide once for all."""
    return PARTS[hashlib.sha256(case.id.encode()).digest()[0] % 2]


def speedup(step_ns: int, saved_ns: int) -> float:
    """How many times as fast a step is that is so much shorter."""
    return step_ns / max(step_ns - saved_ns, 1)


def largest_fault(trial: Trial) -> tuple[Truth | None, tuple[str, ...]]:
    """What fixing it gains, and the rules that name it. Of a healthy run: None."""
    case = trial.case
    alone = {fault: truth for fault in case.faults if (truth := trial.truth((fault,)))}
    if not alone:
        return (None if case.is_control else trial.truth()), case.expected
    largest = max(alone, key=lambda fault: alone[fault].speedup)
    return alone[largest], case.faults[largest]


def regret(trial: Trial, truth: Truth, expected: tuple[str, ...], first: str | None) -> float:
    """Share of the step that fixing the largest fault gains over fixing what the first finding names."""
    if first in expected:
        return 0.0
    others = [trial.truth((fault,)) for fault, rules in trial.case.faults.items() if first in rules]
    return _gain(truth) - max((_gain(other) for other in others if other), default=0.0)


def _gain(truth: Truth) -> float:
    return 1.0 - 1.0 / truth.speedup


def row(trial: Trial, diagnosis: Diagnosis) -> Row:
    """One recording's row."""
    case, shown, step_ns = trial.case, verdicts.findings(diagnosis), diagnosis.step_ns or 0
    truth, expected = largest_fault(trial)
    hit, place = verdicts.named(expected, shown)
    first = next((one for one in shown if hit is None or one.kind is hit.kind), None)
    matched = baselines.patterns(trial)
    return Row(
        case=case.name,
        trial=trial.name,
        family=case.family,
        kind=case.kind,
        part=part_of(case),
        found=tuple(one.rule for one in shown),
        promised=verdicts.promised(shown),
        place=place,
        measured=figure(truth) if truth else None,
        noise=truth.noise if truth else None,
        predicted=predicted(hit, step_ns) if hit else None,
        summed=speedup(step_ns, baselines.summed_ns(hit, diagnosis)) if hit else None,
        regret=regret(trial, truth, expected, None if first is None else first.rule) if truth else None,
        largest_place=verdicts.place_of(expected, baselines.largest_first(diagnosis)),
        patterns_place=verdicts.place_of(expected, matched),
        patterns=None if matched is None else sum(bool(rules) for rules in matched),
        option=hit is not None and hit.kind is Kind.OPTION,
    )


def figure(truth: Truth) -> Figure:
    """What was measured."""
    return Figure(truth.speedup, truth.low, truth.high)


def predicted(finding: RankedFinding, step_ns: int) -> Figure:
    """What was promised."""
    saving = finding.saving
    likely, low, high = (speedup(step_ns, ns) for ns in (saving.likely_ns, saving.low_ns, saving.high_ns))
    return Figure(likely, low, high, saving.basis)


def fixed_run(trial: Trial) -> FixedRun:
    """What is still said of a recording whose fault is fixed."""
    said = verdicts.findings(diagnose.analyze(trial.fixed_recording))
    still = [one.share_of_step for one in said if set(one.rules) & set(trial.case.expected)]
    return FixedRun(trial.case.name, trial.name, part_of(trial.case), max(still, default=0.0))


def joints(trial: Trial, diagnosis: Diagnosis) -> list[Joint]:
    """Every set of faults that was fixed together."""
    case, step_ns = trial.case, diagnosis.step_ns or 0
    found = []
    for faults in [*case.subsets, tuple(sorted(case.faults))]:
        truth = trial.truth(() if len(faults) == len(case.faults) else faults)
        if truth is None or len(faults) < 2:
            continue
        of_faults = {rule for fault in faults for rule in case.faults[fault]}
        hits = [finding for finding in verdicts.findings(diagnosis) if of_faults & set(finding.rules)]
        together = sum(hit.saving.after_above_ns or 0 for hit in hits)
        alone = sum(hit.saving.likely_ns for hit in hits)
        named = sum(any(set(hit.rules) & set(case.faults[fault]) for hit in hits) for fault in faults)
        gains = speedup(step_ns, together), speedup(step_ns, min(alone, step_ns))
        found.append(Joint(case.name, trial.name, part_of(case), tuple(faults), named, figure(truth), *gains))
    return found


def accuracy(all_levels: bool = False, with_poorer: bool = True) -> Accuracy:
    """Over every case that counts: those whose fix surely gains something, and the healthy ones.

    Of each the recording that the repository keeps, or those of all levels, as far as they are there; `with_poorer`:
    and what is said of it without parts of it, which takes most of the time.
    """
    rows, unblamed, together, less = list[Row](), list[FixedRun](), list[Joint](), list[Poorer]()
    for trial in sorted(trials(cases()), key=lambda one: (one.case.id, one.on_gpu, LEVELS.index(one.level))):
        truth = trial.truth()
        if not (trial.case.is_control or (truth and truth.counts)):
            continue
        if (all_levels or trial.fixed_is_kept) and trial.fixed_recording.is_dir() and trial.case.expected:
            unblamed.append(fixed_run(trial))
        if not (all_levels or trial.is_kept) or not trial.recording.is_dir():
            continue
        diagnosis = diagnose.analyze(trial.recording)
        together += joints(trial, diagnosis)
        if trial.case.faults and not any(trial.truth((fault,)) for fault in trial.case.faults):
            continue  # Which of its faults is the largest was not measured.
        rows.append(row(trial, diagnosis))
        less += poorer(trial, diagnosis, largest_fault(trial)[1]) if with_poorer else []
    return Accuracy(tuple(rows), tuple(unblamed), tuple(together), tuple(less))


def published() -> Accuracy:
    """What stands in benchmarks/accuracy.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=Accuracy)


def by_device(found: Accuracy) -> tuple[Accuracy, Accuracy]:
    """What was found on CPUs, and on a GPU."""

    def of(on_gpu: bool) -> Accuracy:
        def mine(some: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(one for one in some if one.trial.startswith("gpu_") == on_gpu)

        return Accuracy(mine(found.rows), mine(found.fixed_runs), mine(found.joints), mine(found.poorer))

    return of(False), of(True)


def first_look() -> Accuracy:
    """What was said of cases when rules saw them for the first time; of cases that came before, nothing."""
    return msgspec.json.decode(FIRST_LOOK.read_bytes(), type=Accuracy)


def looked_again() -> tuple[Again, ...]:
    """What is said today of the faults of the first look, by rules that were not written for them."""
    return msgspec.json.decode(LOOKED_AGAIN.read_bytes(), type=tuple[Again, ...])


def first_look_at(found: Accuracy, first: Accuracy) -> Accuracy:
    """What of the first look is of the recordings that `found` is of; of a case that had none of these its last."""
    rows, fixed_runs = ({(one.case, one.trial) for one in some} for some in (found.rows, found.fixed_runs))
    shown = list[Row]()
    for _, some in groupby(first.rows, lambda one: one.case):
        looked = list(some)
        shown += [one for one in looked if (one.case, one.trial) in rows] or looked[-1:]
    return Accuracy(
        tuple(shown),
        tuple(fixed_run for fixed_run in first.fixed_runs if (fixed_run.case, fixed_run.trial) in fixed_runs),
        (),
    )


def others() -> tuple[Other, ...]:
    """What was said of trainings by others, that no rule was built with (benchmarks/others.py)."""
    return msgspec.json.decode(OTHERS.read_bytes(), type=tuple[Other, ...])


def looked_at(found: Accuracy, before: Accuracy, known: Accuracy) -> Accuracy:
    """The first look with what is said of cases that were neither published before nor looked at."""
    old = {row.case for row in (*before.rows, *known.rows)}
    return Accuracy(
        rows=(*before.rows, *(row for row in found.rows if row.case not in old)),
        fixed_runs=(*before.fixed_runs, *(fixed_run for fixed_run in found.fixed_runs if fixed_run.case not in old)),
        joints=(*before.joints, *(joint for joint in found.joints if joint.case not in old)),
    )


def _write(path: Path, what: Accuracy) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(what), indent=1) + b"\n")


def main() -> None:
    """Print how often the fault is named; keep the rows if asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first-look", action="store_true", help="keep what is said of cases that are new")
    parser.add_argument("--write", action="store_true", help="into benchmarks/accuracy.json")
    parser.add_argument("--all-levels", action="store_true", help="recordings that the repository does not keep, too")
    given = parser.parse_args()
    if given.all_levels and (given.write or given.first_look):
        parser.error("only what the repository keeps is published")
    found, first = accuracy(given.all_levels), first_look()
    if given.first_look:
        _write(FIRST_LOOK, first := looked_at(found, first, published()))
    print(accuracy_tables.naming(found, first_look_at(found, first)))
    if given.write:
        _write(RESULTS, found)


if __name__ == "__main__":
    main()
