"""What was measured of trials: the content of benchmarks/trials_measured.json. Speed-ups are factors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.planted_cases import Machine
from benchmarks.verdicts import Figure
from diagnose.statistics import DECIDED

RESULTS = Path(__file__).parent.parent / "trials_measured.json"


@dataclass(frozen=True)
class Found:
    """What one way of measuring has found of a fix."""

    verdict: str
    why: str  # Why it ended early.
    pairs: int  # Of blocks of one process, or of runs.
    measured: Figure | None
    seconds: float  # With starts of processes; of several fixes in one process an equal share.

    @property
    def decided(self) -> bool:
        """Whether it says what the fix does."""
        return self.verdict in DECIDED


@dataclass(frozen=True)
class Tried:
    """A fix, or a fault as if it were one, and what the switch of its case gains."""

    case: str
    level: str
    fault: str  # Of a case with several faults the name of this one; else empty.
    switch: str  # What the case's switch changes, in words.
    rule: str | None  # That names the fault; None if none does.
    injection: str | None  # As in `Fix.trial`; None: it was not tried.
    same_change: bool  # Whether the injection makes just the change that the switch makes.
    why: str  # Why it was not tried.
    step_ns: float | None = None  # As it is: the median over runs, or over blocks.
    predicted: Figure | None = None
    blocks: Found | None = None  # In one process; None: it is no switch.
    runs: Found | None = None  # In pairs of fresh processes; None of a switch.
    short: Found | None = None  # In a script of two seconds, by all that `diagnose try` does.
    truth: Figure | None = None  # Without a profiler and without `diagnose`; of a harmful one the inverse.
    true_step_ns: float | None = None  # As it is, as the truth has it: the median over blocks.

    @property
    def key(self) -> tuple[str, str, str]:
        """One row for each."""
        return self.case, self.level, self.fault

    @property
    def tried(self) -> bool:
        """Whether it can be tried."""
        return self.injection is not None


@dataclass(frozen=True)
class Nothing:
    """A healthy control, and switches in it that do nothing."""

    case: str
    step_ns: float
    blocks: tuple[Found, ...]

    @property
    def key(self) -> str:
        """One row for each."""
        return self.case


@dataclass(frozen=True)
class Runs:
    """A healthy control that ran as it is, again and again."""

    case: str
    ranks: int
    arms_ns: tuple[float, ...]  # Mean step of each run, in the order in which they ran.
    overhead_s: float  # Of a run, the median: from its start to its end, without the timed steps.

    @property
    def key(self) -> str:
        """One row for each."""
        return self.case


@dataclass(frozen=True)
class Measured:
    """All of it."""

    machine: Machine | None = None
    planted: tuple[Tried, ...] = ()
    harmful: tuple[Tried, ...] = ()
    nothing: tuple[Nothing, ...] = ()
    runs: tuple[Runs, ...] = ()

    def with_row(self, part: str, row: Row) -> Measured:
        """The same with a row of that part which is new, or takes the place of one."""
        rows = [*(one for one in getattr(self, part) if one.key != row.key), row]
        changed: dict[str, Any] = {part: tuple(sorted(rows, key=lambda one: str(one.key)))}
        return replace(self, **changed)


Row = Tried | Nothing | Runs


def published(path: Path = RESULTS) -> Measured:
    """What stands there; nothing if there is no such file."""
    return msgspec.json.decode(path.read_bytes(), type=Measured) if path.exists() else Measured()


def write(found: Measured, path: Path = RESULTS) -> None:
    """All at once, so that a break leaves the file whole."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    part.replace(path)
