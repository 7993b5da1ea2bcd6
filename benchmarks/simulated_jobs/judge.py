"""What diagnose says of a job's traces, beside what the same job takes when its fault is fixed."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diagnose
from benchmarks.accuracy_tables import LARGE
from benchmarks.simulated_jobs import kineto
from benchmarks.simulated_jobs.cases import Case
from benchmarks.simulated_jobs.machine import RECORDED, Costs
from benchmarks.simulated_jobs.recording import Recording

JITTER = 0.005  # Share of the step by which simulated steps vary from run to run.
WORTH = 0.03  # Share of the step from which on a fault is one that a tool has to name.
MS = 1e6


@dataclass(frozen=True)
class Row:
    """What was said of a simulated job, and what is true. Times in ms."""

    case: str
    family: str
    ranks: int
    expected: tuple[str, ...]  # Codes of rules that name the fault.
    step: float
    saving: float | None  # By fixing the fault; None if there is none.
    found: tuple[str, ...]  # Codes of the findings, the first first; minor ones are none.
    place: int | None  # Of the first finding that names the fault, from 1.
    predicted: tuple[float, float, float] | None  # Low, likely and high, by the finding at `place`.
    promised: float  # Share of the step that the most promising finding would save.
    kept: float | None
    """What following that finding saves, as simulated; None where that cannot be simulated, or there is a fault."""
    told: float  # The step as diagnose measures it, in the recording.
    recorded: float  # The same as simulated.

    @property
    def counts(self) -> bool:
        """Whether there is a fault that costs something."""
        return self.saving is not None and self.saving >= WORTH * self.step

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

    @property
    def is_false(self) -> bool:
        """Whether a healthy job is promised LARGE or more beyond what following the advice saves."""
        return self.saving is None and self.promised - (self.kept or 0.0) >= LARGE


def first_of(case: Case, said: Sequence[Any]) -> Any:
    """The first finding that names the fault; None if there is none."""

    def names(one: Any) -> bool:
        return one.code in case.codes and (one.code != case.codes[0] or case.says in one.title)

    return next(filter(names, said), None)


def predicted(finding: Any) -> tuple[float, float, float]:
    """Of a diagnosis: its saving, low, likely and high, in ms."""
    saving = finding.saving
    return rounded(saving.low_ns), rounded(saving.likely_ns), rounded(saving.high_ns)


def rounded(time_ns: float) -> float:
    """In ms."""
    return round(time_ns / MS, 3)


def step_ms(recordings: Sequence[Recording]) -> float:
    """Mean step of the slowest rank, by when its work is done."""
    return max((recording.done_ns[-1] - recording.done_ns[0]) / len(recording.steps) for recording in recordings) / MS


def judge(case: Case) -> Row:
    """Simulate, analyse, compare."""
    step = step_ms(case.bad.run(case.recorded, Costs()))
    saving = step - step_ms(case.good.run(case.recorded, Costs())) if case.fault else None
    profiled = case.bad.run(case.recorded, RECORDED)
    with tempfile.TemporaryDirectory() as folder:
        kineto.write(case.bad, profiled, Path(folder))
        diagnosis = diagnose.analyze(folder)
    said = [finding for finding in diagnosis.findings if not finding.minor]
    hit, faults = first_of(case, said), [one for one in said if one.kind.value == "fault"]
    most = max(faults, key=lambda one: one.share_of_step, default=None)
    followed = case.followed(most.code) if most is not None and not case.fault else None
    kept = 1.0 - step_ms(followed.run(case.recorded, Costs())) / step if followed is not None else None
    return Row(
        case=case.name,
        family=case.family,
        ranks=case.good.layout.world,
        expected=case.codes,
        step=round(step, 3),
        saving=None if saving is None else round(saving, 3),
        found=tuple(one.code for one in said),
        place=hit and 1 + [one for one in said if one.kind is hit.kind].index(hit),
        predicted=hit and predicted(hit),
        promised=round(most.share_of_step if most is not None else 0.0, 4),
        kept=None if kept is None else round(kept, 4),
        told=rounded(diagnosis.steps.step_time_ns.mean if diagnosis.steps else 0),
        recorded=round(step_ms(profiled), 3),
    )
