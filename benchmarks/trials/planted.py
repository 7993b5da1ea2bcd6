"""Planted faults whose fix can be injected: `diagnose try` as a user runs it, and the truth right after it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

import diagnose
from benchmarks.blocks import measured
from benchmarks.ground_truth import recorded
from benchmarks.planted_cases import ROOT, Case, Truth, trials
from benchmarks.planted_cases import Trial as Planting
from benchmarks.trials.results import Planted
from benchmarks.verdicts import Figure
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.trials import Range, Report
from diagnose.fixes.setting import Safety
from diagnose.trials.selection import Candidate, select, step_of

BUDGET_S = 90
"""Of a trial: enough for the least pairs of steps of 100 ms."""

FAILED = "failed"
"""The verdict where `diagnose try` ended with an error."""


@dataclass(frozen=True)
class Target:
    """A fault of a case at one level, and the rules that name it."""

    planting: Planting
    fault: str
    rules: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """As of its row."""
        return self.planting.case.name, self.planting.name, self.fault


def targets(some: Iterable[Case], levels: Iterable[str]) -> Iterator[Target]:
    """Faults whose fix surely gains something on a CPU: at the level that the repository keeps, and at these."""
    for planting in trials(list(some)):
        case, truth = planting.case, planting.truth()
        asked = planting.is_kept or planting.level in levels
        if planting.on_gpu or case.is_control or not asked or truth is None or not truth.counts:
            continue
        if case.faults:
            yield from (Target(planting, fault, rules) for fault, rules in sorted(case.faults.items()))
        else:
            yield Target(planting, "", case.expected)


def chosen(target: Target, diagnosis: Diagnosis) -> tuple[str | None, Candidate | str]:
    """The rule that names the fault, and the fix to try or why there is none to try."""
    naming = [finding for finding in diagnosis.findings if finding.rule in target.rules]
    if not naming:
        return None, "no finding names it"
    asked = [str(one.rank_order) for one in naming]
    tried, others = select(naming, step_of(diagnosis), asked, Safety.ROUNDING)
    return (tried[0].rule, tried[0]) if tried else (others[0].rule, others[0].why)


def kept(target: Target) -> tuple[str | None, Candidate | str]:
    """The same by the recording that the repository keeps of the case."""
    case = target.planting.case
    at = next(
        (trial for trial in trials([case]) if trial.is_kept and not trial.on_gpu and trial.recording.is_dir()), None
    )
    return (None, "no recording is kept") if at is None else chosen(target, diagnose.analyze(at.recording))


def row(target: Target) -> Planted:
    """Try the fix of a fault that has one, on a recording of this minute, and measure the truth."""
    rule, fix = kept(target)
    if isinstance(fix, str):
        return _untried(target, rule, fix)
    planting = target.planting
    with recorded(program(planting), planting.ranks, planting.case.recorded_steps) as folder:
        rule, fix = chosen(target, diagnose.analyze(folder))
        if isinstance(fix, str):
            return _untried(target, rule, f"in a new recording {fix}")
        begun_s = time.monotonic()
        report = tried(folder, fix.number)
        took_s = time.monotonic() - begun_s
    known = replace(
        _untried(target, fix.rule, ""), injection=fix.trial, same_change=fix.trial in planting.case.injections
    )
    if isinstance(report, str):
        return replace(known, verdict=FAILED, why=report)
    return filled(known, report, measured(planting, (target.fault,) if target.fault else ()), took_s)


def program(planting: Planting) -> list[str]:
    """The module of a case and its arguments, for more steps than anything makes."""
    return [planting.case.module, "--level", planting.level, "--steps", "1000000", "--device", "cpu"]


def tried(folder: Path, number: int) -> Report | str:
    """What `diagnose try` finds of one finding's fix, or what it fails with."""
    words = ["try", str(folder), "--fix", str(number), "--no-together", "--yes", "--quiet", "--json", "-"]
    command = [sys.executable, "-m", "diagnose", *words, "--budget", f"{BUDGET_S}s"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    if ended.returncode:
        return ended.stderr.decode("utf-8", "replace").replace(str(folder), "RUN").strip().rpartition("\n")[2]
    return msgspec.json.decode(ended.stdout, type=Report)


def _untried(target: Target, rule: str | None, why: str) -> Planted:
    case, level, fault = target.key
    return Planted(case, level, fault, target.planting.case.fixed, rule, None, False, why)


def filled(known: Planted, report: Report, truth: Truth, took_s: float) -> Planted:
    """With what came of its one trial, and the truth."""
    (trial,), base = report.trials, report.baseline
    return replace(
        known,
        why=trial.why,
        verdict=trial.verdict,
        step_ns=base.step_ns.likely if base else None,
        steps=trial.steps,
        arms=(base.arms if base else 0) + trial.pairs,
        noise_share=base.noise_share if base else None,
        predicted=figure(trial.predicted),
        measured=figure(trial.measured),
        truth=Figure(truth.speedup, truth.low, truth.high),
        true_step_ns=float(statistics.median(truth.bad_ns)),
        took_s=took_s,
    )


def figure(found: Range | None) -> Figure | None:
    """As rows have it."""
    return None if found is None else Figure(found.likely, found.low, found.high)
