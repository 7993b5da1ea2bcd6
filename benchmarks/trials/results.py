"""What was measured of trials: the content of benchmarks/trials_measured.json. Speed-ups are factors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.planted_cases import Machine
from benchmarks.verdicts import Figure

RESULTS = Path(__file__).parent.parent / "trials_measured.json"


@dataclass(frozen=True)
class Planted:
    """A planted fault: what `diagnose try` measured of its fix, and what its switch gains."""

    case: str
    level: str
    fault: str
    """Of a case with several faults the name of this one; else empty."""
    switch: str
    """What the case's switch changes, in words."""
    rule: str | None
    """That names the fault; None if none does."""
    injection: str | None
    """As in `Fix.trial`; None: it was not tried."""
    same_change: bool
    """Whether the injection makes just the change that the switch makes."""
    why: str
    """Why it was not tried, or why its trial ended early."""
    verdict: str | None = None
    step_ns: float | None = None
    """As it is: the median over arms."""
    steps: int = 0
    """Timed in each arm."""
    arms: int = 0
    """Without the fix and with it."""
    noise_share: float | None = None
    """By which equal arms differ: a standard deviation."""
    predicted: Figure | None = None
    measured: Figure | None = None
    truth: Figure | None = None
    """Without a profiler and without `diagnose`."""
    true_step_ns: float | None = None
    """As it is, as the truth has it: the median over blocks."""
    took_s: float | None = None
    """`diagnose try` from start to end."""

    @property
    def key(self) -> tuple[str, str, str]:
        """One row for each."""
        return self.case, self.level, self.fault

    @property
    def tried(self) -> bool:
        """Whether it can be tried."""
        return self.injection is not None


@dataclass(frozen=True)
class Harmful:
    """A fault that was injected into the fixed training, as if it were a fix."""

    case: str
    level: str
    injection: str
    verdict: str
    why: str
    step_ns: float
    measured: Figure | None
    truth: Figure
    """The inverse of what the switch gains."""

    @property
    def key(self) -> tuple[str, str]:
        """One row for each."""
        return self.case, self.injection


@dataclass(frozen=True)
class Claim:
    """A trial of nothing: both arms are the script as it is."""

    verdict: str
    why: str
    pairs: int
    measured: Figure | None


@dataclass(frozen=True)
class Equal:
    """A healthy control, and trials of nothing on it."""

    case: str
    arms_ns: tuple[float, ...]
    """Mean step of each arm, in the order in which they ran; the first two came before all pairs."""
    overhead_s: float
    """Of an arm, the median: from its start to its end, without the timed steps."""
    claims: tuple[Claim, ...]
    replayed: int = 0
    """Trials that these arms would have made, one from each pair on, without a limit of time."""
    replayed_claims: int = 0
    """Those of them that claim a gain or a loss."""

    @property
    def key(self) -> str:
        """One row for each."""
        return self.case


@dataclass(frozen=True)
class Measured:
    """All of it."""

    machine: Machine | None = None
    planted: tuple[Planted, ...] = ()
    harmful: tuple[Harmful, ...] = ()
    equal: tuple[Equal, ...] = ()

    def with_row(self, row: Planted | Harmful | Equal) -> Measured:
        """The same with a row that is new, or takes the place of one."""
        if isinstance(row, Planted):
            return replace(self, planted=_put(self.planted, row))
        if isinstance(row, Harmful):
            return replace(self, harmful=_put(self.harmful, row))
        return replace(self, equal=_put(self.equal, row))


Row = TypeVar("Row", Planted, Harmful, Equal)


def _put(rows: tuple[Row, ...], row: Row) -> tuple[Row, ...]:
    some: list[Row] = [one for one in rows if one.key != row.key]
    some.append(row)
    return tuple(sorted(some, key=lambda one: str(one.key)))


def published(path: Path = RESULTS) -> Measured:
    """What stands there; nothing if there is no such file."""
    return msgspec.json.decode(path.read_bytes(), type=Measured) if path.exists() else Measured()


def write(found: Measured, path: Path = RESULTS) -> None:
    """All at once, so that a break leaves the file whole."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    part.replace(path)
