"""What diagnose says of a job's recording, beside what the fix of its fault gains."""

from dataclasses import dataclass

import diagnose
from benchmarks.jobs.cases import Case
from benchmarks.planted_cases import Truth
from benchmarks.verdicts import findings, place_of_kind, promised
from diagnose.contracts.finding import RankedFinding

MS = 1e6


@dataclass(frozen=True)
class Row:
    """What was said of a job, and what is true. Times in ms."""

    case: str
    title: str
    ranks: int
    kept: bool  # Whether the repository has the recording.
    expected: tuple[str, ...]  # Codes of rules that name the fault. None of a healthy job.
    step: float  # As recorded: with the profiler.
    bad: float | None  # Median step without the profiler, with the fault.
    fixed: float | None  # The same without the fault.
    found: tuple[str, ...]  # Codes of the findings, the first first; minor ones are none.
    place: int | None  # Of the first finding that names the fault, from 1.
    predicted: tuple[float, float, float] | None  # Saving as low, likely and high, by the finding at `place`.
    promised: float  # Share of the step that the most promising fault would save.

    @property
    def healthy(self) -> bool:
        """Whether nothing was planted."""
        return not self.expected

    @property
    def saved(self) -> float | None:
        """Share of the step that the fix gains."""
        return None if self.bad is None or self.fixed is None else 1.0 - self.fixed / self.bad

    @property
    def error(self) -> float | None:
        """Of the predicted saving, as a share of the step."""
        if self.predicted is None or self.saved is None:
            return None
        return abs(self.predicted[1] / self.step - self.saved)

    @property
    def in_range(self) -> bool:
        """Whether what the fix gains lies between low and high."""
        if self.predicted is None or self.saved is None:
            return False
        low, _, high = self.predicted
        return low / self.step <= self.saved <= high / self.step


def judge(case: Case, truth: Truth | None) -> Row:
    """Analyse its recording, and compare."""
    diagnosis = diagnose.analyze(case.recording)
    said = findings(diagnosis)
    hit = next((one for one in said if names(one, case)), None)
    place, saving = (None, None) if hit is None else (place_of_kind(hit, said), hit.saving)
    return Row(
        case=case.name,
        title=case.title,
        ranks=case.ranks,
        kept=case.kept.is_dir(),
        expected=case.rules,
        step=_ms(diagnosis.step_ns or 0),
        bad=_middle(truth.bad_ns) if truth else None,
        fixed=_middle(truth.fixed_ns) if truth else None,
        found=tuple(one.code for one in said),
        place=place,
        predicted=(_ms(saving.low_ns), _ms(saving.likely_ns), _ms(saving.high_ns)) if saving else None,
        promised=round(promised(said), 4),
    )


def names(finding: RankedFinding, case: Case) -> bool:
    """Whether a finding is of the planted fault."""
    return finding.code in case.rules and case.says.lower() in finding.title.lower()


def _middle(times_ns: tuple[int, ...]) -> float:
    return _ms(sorted(times_ns)[len(times_ns) // 2])


def _ms(time_ns: float) -> float:
    return round(time_ns / MS, 2)
