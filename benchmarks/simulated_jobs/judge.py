"""What diagnose says of a job's traces, beside what the same job takes when its fault is fixed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import diagnose
from benchmarks.simulated.judge import LARGE, MS, Said, place_of, predicted, rounded
from benchmarks.simulated.machine import FAST, Recording
from benchmarks.simulated_jobs import kineto
from benchmarks.simulated_jobs.cases import Case
from benchmarks.simulated_jobs.machine import Costs


@dataclass(frozen=True)
class Row(Said):
    """Of a job."""

    ranks: int
    kept: float | None
    """What following that finding saves, as simulated; None where that cannot be simulated, or there is a fault."""
    told: float
    """The step as diagnose measures it, in the recording."""
    recorded: float
    """The same as simulated."""

    @property
    def is_false(self) -> bool:
        """Whether a healthy job is promised LARGE or more beyond what following the advice saves."""
        return self.saving is None and self.promised - (self.kept or 0.0) >= LARGE


def step_ms(recordings: Sequence[Recording]) -> float:
    """Mean step of the slowest rank, by when its work is done."""
    return max((recording.done_ns[-1] - recording.done_ns[0]) / len(recording.steps) for recording in recordings) / MS


def judge(case: Case) -> Row:
    """Simulate, analyse, compare."""
    step = step_ms(case.bad.run(case.recorded, Costs()))
    saving = step - step_ms(case.good.run(case.recorded, Costs())) if case.fault else None
    profiled = case.bad.run(case.recorded, Costs(FAST.op_ns, FAST.call_ns))
    with tempfile.TemporaryDirectory() as folder:
        kineto.write(case.bad, profiled, Path(folder))
        diagnosis = diagnose.analyze(folder)
    said = [finding for finding in diagnosis.findings if not finding.minor]
    place = place_of(case.codes, [one.code for one in said])
    most = max(said, key=lambda one: one.share_of_step, default=None)
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
        place=place,
        predicted=predicted(said[place - 1]) if place else None,
        promised=round(most.share_of_step if most is not None else 0.0, 4),
        kept=None if kept is None else round(kept, 4),
        told=rounded(diagnosis.steps.step_time_ns.mean if diagnosis.steps else 0),
        recorded=round(step_ms(profiled), 3),
    )
