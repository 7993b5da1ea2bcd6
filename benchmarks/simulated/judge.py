"""What diagnose says of a case's trace, beside what the same program takes when its fault is mended."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import diagnose
from benchmarks.simulated import kineto
from benchmarks.simulated.cases.case import Case
from benchmarks.simulated.machine import PROFILED_CALL_NS, PROFILED_OP_NS, Costs, Recording, host_step_ns, run, step_ns
from benchmarks.simulated.training import Training

MEASURED = 10
"""Steps that a true step time is the mean of, and a multiple of."""
SETTLING = 4
"""Steps before a recording. They are a multiple of what is measured, so that periods stay in step."""
RUNS_AHEAD = 1.02
"""A device that takes longer for a step than its host has a full launch queue in the long run."""
WORTH = 0.03
"""Share of the step from which on a fault is one that a tool has to name."""
MS = 1e6


@dataclass(frozen=True)
class Row:
    """What was said of a case at a size, and what is true. Times in ms."""

    case: str
    size: str
    family: str
    expected: tuple[str, ...]
    """Rules that name the largest fault."""
    step: float
    saving: float | None
    """By mending the largest fault; None if there is none."""
    found: tuple[str, ...]
    """Rules of the findings, the first first; minor ones are none."""
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
    def is_healthy(self) -> bool:
        """Whether no fault was planted."""
        return self.saving is None

    @property
    def error(self) -> float | None:
        """Of the predicted saving, as a share of the step."""
        if self.predicted is None or self.saving is None:
            return None
        return abs(self.predicted[1] - self.saving) / self.step

    @property
    def in_range(self) -> bool:
        """Whether the true saving lies between low and high."""
        return self.predicted is not None and self.saving is not None and self._holds(*self.predicted)

    def _holds(self, low: float, likely: float, high: float) -> bool:
        return min(low, likely) <= (self.saving or 0.0) <= max(high, likely)


def true_ms(training: Training, recorded: int) -> float:
    """A step of it without a profiler."""
    return step_ns(_run(training, max(MEASURED, recorded), profiled=False)) / MS


def recordings(training: Training, recorded: int) -> Sequence[Recording]:
    """So many of its steps under the profiler."""
    return _run(training, recorded, profiled=True)


def _run(training: Training, measured: int, profiled: bool) -> Sequence[Recording]:
    gpu = training.gpu
    costs = Costs(host=gpu.host, gap_ns=gpu.gap_ns)
    if profiled:
        costs = replace(costs, op_ns=PROFILED_OP_NS, call_ns=PROFILED_CALL_NS)
    settling = -(-SETTLING // measured) * measured
    programs = training.programs(settling + measured)
    tried = run([replace(one, steps=one.steps[:SETTLING]) for one in programs], costs, range(1, SETTLING))
    queued_ns = 0
    if step_ns(tried) > host_step_ns(tried) * RUNS_AHEAD:
        launched = len(tried[0].device) / (SETTLING - 1)
        queued_ns = round(step_ns(tried) / launched)
    return run(programs, costs, range(settling, settling + measured), queued_ns=queued_ns)


def judge(case: Case, size: str) -> Row:
    """Simulate, analyse, compare."""
    bad = case.training(size)
    step = true_ms(bad, case.recorded)
    gains = [step - true_ms(case.training(size, fault), case.recorded) / case.samples for fault in case.faults]
    saving = max(gains, default=None)
    expected = case.faults[gains.index(saving)].rules if saving is not None else ()
    with tempfile.TemporaryDirectory() as folder:
        for one in recordings(bad, case.recorded):
            kineto.write(one, bad.gpu, Path(folder) / f"rank{one.rank}.pt.trace.json", bad.gpus)
        diagnosis = diagnose.analyze(folder)
    said = [one for one in diagnosis.findings if not one.minor]
    place = next((at for at, one in enumerate(said, start=1) if one.rule in expected), None)
    hit = said[place - 1].saving if place else None
    return Row(
        case=case.name,
        size=size,
        family=case.family,
        expected=expected,
        step=round(step, 3),
        saving=None if saving is None else round(saving, 3),
        found=tuple(one.rule for one in said),
        place=place,
        predicted=(_ms(hit.low_ns), _ms(hit.likely_ns), _ms(hit.high_ns)) if hit else None,
        promised=round(max((one.share_of_step for one in said), default=0.0), 4),
    )


def _ms(time_ns: float) -> float:
    return round(time_ns / MS, 3)
