"""Jobs of sample_traces/jobs with a fault, and healthy ones: a line each in cases.tsv."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.planted_cases import REMADE, SAMPLES

FOLDER = SAMPLES / "jobs"


@dataclass(frozen=True)
class Case:
    """A job with a fault, or a healthy one."""

    name: str
    kind: str  # Of the job, as sample_traces.jobs.run knows it.
    ranks: int
    title: str  # What is planted.
    bad: str  # Options of the job as recorded.
    fixed: str  # Options without the fault.
    rules: tuple[str, ...]  # Codes of rules any of which names the fault. Empty: the job is healthy.
    says: str  # What else the title of a finding that names it has: the rank, or which of a rule's faults it is.
    steps: int  # Recorded. Fewer where a step has many ops.

    @property
    def healthy(self) -> bool:
        """Whether nothing is planted."""
        return not self.rules

    @property
    def kept(self) -> Path:
        """Where its recording is, if the repository keeps it."""
        return FOLDER / self.name

    @property
    def recording(self) -> Path:
        """Where its recording is: kept, or made on this machine."""
        return self.kept if self.kept.is_dir() else REMADE / "jobs" / self.name

    def arguments(self, fixed: bool) -> Sequence[str]:
        """Of sample_traces.jobs.run, without the number of steps."""
        return [self.kind, *(self.fixed if fixed else self.bad).split()]


def _case(line: str) -> Case:
    name, kind, ranks, title, bad, fixed, rules, says, steps = line.split("\t")
    return Case(name, kind, int(ranks), title, bad, fixed, tuple(rules.split()), says, int(steps))


TABLE = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8")
CASES = tuple(_case(line) for line in TABLE.splitlines() if not line.startswith("#"))
