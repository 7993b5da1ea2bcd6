"""What diagnose says of a case's trace, beside what the same program takes when its fault is fixed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diagnose
from benchmarks.simulated import kineto
from benchmarks.simulated.cases.case import Case
from benchmarks.simulated.machine import FAST, Costs, Recorder, Recording, host_step_ns, run, step_ns
from benchmarks.simulated.manifest import manifest
from benchmarks.simulated.training import Training

SETTLING = 3
"""Steps before those that are measured."""
RUNS_AHEAD = 1.02
"""A device that takes longer for a step than its host has a full launch queue in the long run."""
JITTER = 0.005
"""Share of the step by which simulated steps vary from run to run."""
WORTH = 0.03
"""Share of the step from which on a fault is one that a tool has to name."""
LARGE = 0.05
"""Share of the step from which on a finding of a healthy run is a false promise."""
MS = 1e6


@dataclass(frozen=True)
class Said:
    """What was said of a simulated run, and what is true. Times in ms."""

    case: str
    family: str
    expected: tuple[str, ...]
    """Rules, or their codes, that name the largest fault."""
    step: float
    saving: float | None
    """By fixing the largest fault; None if there is none."""
    found: tuple[str, ...]
    """Rules of the findings, or their codes, the first first; minor ones are none."""
    place: int | None
    """Of the first finding that names the fault, from 1."""
    predicted: tuple[float, float, float] | None
    """Low, likely and high, by the finding at `place`."""
    promised: float
    """Share of the step that the most promising finding would save."""

    @property
    def counts(self) -> bool:
        """Whether there is a fault that costs something."""
        return self.saving is not None and self.saving >= WORTH * self.step

    @property
    def is_false(self) -> bool:
        """Whether a healthy run is promised LARGE or more."""
        return self.saving is None and self.promised >= LARGE

    @property
    def error(self) -> float | None:
        """Of the predicted saving, as a share of the step."""
        if self.predicted is None or self.saving is None:
            return None
        return abs(self.predicted[1] - self.saving) / self.step

    @property
    def in_range(self) -> bool:
        """Whether the true saving lies between low and high."""
        if self.predicted is None or self.saving is None:
            return False
        low, _, high = self.predicted
        return low - JITTER * self.step <= self.saving <= high + JITTER * self.step


@dataclass(frozen=True)
class Row(Said):
    """Of a case at a size."""

    size: str


def place_of(expected: Sequence[str], said: Sequence[str]) -> int | None:
    """Of the first that names the fault, from 1."""
    return next((at for at, one in enumerate(said, start=1) if one in expected), None)


def predicted(finding: Any) -> tuple[float, float, float]:
    """Of a diagnosis: its saving, low, likely and high, in ms."""
    saving = finding.saving
    return rounded(saving.low_ns), rounded(saving.likely_ns), rounded(saving.high_ns)


def rounded(time_ns: float) -> float:
    """In ms."""
    return round(time_ns / MS, 3)


def plain(training: Training, measured: int, seed: int = 0) -> Sequence[Recording]:
    """Steps without a profiler."""
    return profiled(training, measured, None, seed=seed)


def profiled(
    training: Training,
    measured: int,
    recorder: Recorder | None,
    before: Sequence[Recording] | None = None,
    seed: int = 0,
) -> Sequence[Recording]:
    """The same under a profiler that has warmed up.

    It starts with a launch queue as full as it gets where steps take as long as those `before`; else with an empty one.
    """
    queued_ns = 0
    if before and step_ns(before) > host_step_ns(before) * RUNS_AHEAD:
        queued_ns = round(step_ns(before) * len(before[0].steps) / before[0].launched)
    costs = Costs(recorder, host=training.gpu.host, gap_ns=training.gpu.gap_ns)
    settling = max(SETTLING, len(recorder.warm_up) if recorder else 0)
    steps = range(settling, settling + measured)
    return run(training.programs(steps.stop), costs, steps, seed, queued_ns)


def true_ms(training: Training, measured: int) -> float:
    """A step without a profiler."""
    return step_ns(plain(training, measured)) / MS


def write(training: Training, before: Sequence[Recording], folder: Path) -> None:
    """The recording, as `diagnose profile` leaves it: the traces of all its ranks, and a manifest."""
    names = [f"rank{one.rank}.trace.json" for one in before]
    traced = profiled(training, len(before[0].steps), FAST, before)
    for one, name in zip(traced, names, strict=True):
        kineto.write(one, training.gpu, folder / name, training.gpus, training.memory(len(one.steps)))
    (folder / "manifest.json").write_text(json.dumps(manifest(training, names)), encoding="utf-8")


def diagnosed(folder: Path) -> Any:
    """What is said of a recording."""
    return diagnose.analyze(folder)


def judge(case: Case, size: str) -> Row:
    """Simulate, analyse, compare."""
    bad = case.training(size)
    before = plain(bad, case.recorded)
    step = step_ns(before) / MS
    gains = [step - true_ms(case.training(size, fault), case.recorded) / case.samples for fault in case.faults]
    saving = max(gains, default=None)
    expected = case.faults[gains.index(saving)].rules if saving is not None else ()
    with tempfile.TemporaryDirectory() as folder:
        write(bad, before, Path(folder))
        diagnosis = diagnosed(Path(folder))
    said = [finding for finding in diagnosis.findings if not finding.minor]
    place = place_of(expected, [one.rule for one in said])
    return Row(
        case=case.name,
        size=size,
        family=case.family,
        expected=expected,
        step=round(step, 3),
        saving=None if saving is None else round(saving, 3),
        found=tuple(one.rule for one in said),
        place=place,
        predicted=predicted(said[place - 1]) if place else None,
        promised=round(max((one.share_of_step for one in said), default=0.0), 4),
    )
