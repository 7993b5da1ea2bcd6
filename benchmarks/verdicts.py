"""What was said of the planted cases, and what is true: the rows of benchmarks/accuracy.json."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Kind, RankedFinding
from diagnose.replay.saving import Basis

PARTS = ("report", "develop")  # Rules may be changed after a look at the cases of the second part only.


WITHOUT = {
    "nothing": "nothing",
    "detail": "stacks and shapes",
    "manifest": "settings, and times without a profiler",
    "both": "both of these: the trace alone",
    "steps": "all steps but two",
    "ranks": "the other rank",
}
"""What can be left out of a recording, and in words."""


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A speed-up (times as fast) and its range."""

    likely: float
    low: float
    high: float
    basis: Basis | None = None  # What it rests on; None of what was measured without and with a fix.


@dataclass(frozen=True)
class Row:
    """What was said of one recording, and what is true."""

    case: str
    trial: str  # Level, and gpu_ before it.
    family: str
    kind: str
    part: str  # One of PARTS.
    found: tuple[str, ...]  # Rules of the findings, the first first; minor ones are none.
    promised: float  # Share of the step that the most promising fault would save.
    place: int | None  # Of the first finding that names the fault, from 1, among its kind; None if none does.
    measured: Figure | None  # By the fix, of a mixed case by that of its largest fault; None for healthy runs.
    noise: float | None  # From run to run, of the bad variant's step.
    predicted: Figure | None  # By the finding at `place`.
    summed: float | None  # As predicted by adding up durations instead of replaying.
    regret: float | None
    """Share of the step that fixing the largest fault would have gained over fixing what is named first."""
    largest_place: int | None  # Of what names the fault if the longest parts of a step are looked at first.
    patterns_place: int | None  # The same of torch's pattern matcher.
    patterns: int | None  # Findings of torch's pattern matcher; None if it was not asked.
    option: bool = False  # What names it is an option.


@dataclass(frozen=True)
class Again:
    """What rules of today say of a fault of the first look, as a reviewer judged it from the training's source."""

    case: str
    left_out: tuple[str, ...]  # Rules that were written for it, which were not asked.
    found: tuple[str, ...]  # As in Row.
    place: int | None  # As in Row.
    why: str


@dataclass(frozen=True)
class Other:
    """What was said of a training of somebody else, and what is true."""

    case: str
    found: tuple[str, ...]  # As in Row.
    place: int | None
    predicted: Figure | None
    by_one_factor: Figure | None = None  # As predicted where the recorder's cost is not known by phase.
    measured: Figure | None = None
    option: bool = False


@dataclass(frozen=True)
class FixedRun:
    """What is still said of a recording without the fault."""

    case: str
    trial: str
    part: str
    promised: float  # Share of the step that the rules which name the fault still promise.


@dataclass(frozen=True)
class Joint:
    """Faults of a mixed case, fixed together."""

    case: str
    trial: str
    part: str
    faults: tuple[str, ...]
    named: int  # How many of them are named by a finding.
    measured: Figure
    predicted: float  # By findings that name them, each replayed after those before it.
    summed: float  # By the sum of what each alone would save.


@dataclass(frozen=True)
class Poorer:
    """What is said of a recording of which a part is left out."""

    case: str
    trial: str
    without: str  # One of WITHOUT.
    place: int | None  # As of a Row, like the next.
    promised: float
    healthy: bool


@dataclass(frozen=True)
class Accuracy:
    """All that was found out."""

    rows: tuple[Row, ...]
    fixed_runs: tuple[FixedRun, ...]
    joints: tuple[Joint, ...]
    poorer: tuple[Poorer, ...] = ()


def place_of(expected: Iterable[str], said: Sequence[Iterable[str]] | None) -> int | None:
    """Where, from 1, something is said first that names an expected rule."""
    return next((at for at, rules in enumerate(said or (), start=1) if set(rules) & set(expected)), None)


def named(expected: Iterable[str], said: Sequence[RankedFinding]) -> tuple[RankedFinding | None, int | None]:
    """The first finding that names an expected rule, and its place among those of its kind: faults, or options."""
    hit = next((one for one in said if set(one.rules) & set(expected)), None)
    return hit, None if hit is None else place_of_kind(hit, said)


def place_of_kind(hit: RankedFinding, said: Sequence[RankedFinding]) -> int:
    """Where, from 1, a finding stands among those of its kind."""
    return 1 + [one.rank_order for one in said if one.kind is hit.kind].index(hit.rank_order)


def promised(said: Iterable[RankedFinding]) -> float:
    """Share of the step that the most promising fault would save."""
    return max((one.share_of_step for one in said if one.kind is Kind.FAULT), default=0.0)


def findings(diagnosis: Diagnosis) -> list[RankedFinding]:
    """Those that are worth something."""
    return [finding for finding in diagnosis.findings if not finding.minor]
