"""How two recordings differ: the JSON of `diagnose compare --json`, and what its reports are written from.

Times are integer nanoseconds per step. Differences are of after minus before: positive is slower. Unknown is None.
"""

from enum import Enum
from typing import Literal

import msgspec

from diagnose.contracts.baseline import GroupTime, KnownFinding, RankStep
from diagnose.trace.frames import Site

SCHEMA_VERSION = 1

Verdict = Literal["faster", "slower", "same", "cannot_tell"]


class PartKind(str, Enum):
    """As `time_attribution.Part`, and what recorded steps do not show."""

    COMPUTE = "compute"
    EXPOSED_COMMUNICATION = "exposed_communication"
    EXPOSED_COPY = "exposed_copy"
    IDLE = "idle"
    WORK_NOT_RECORDED = "work_not_recorded"
    HOST = "host"
    PROFILER = "profiler"  # By how much recorded steps differ from those without the profiler.
    NOT_KNOWN = "not_known"  # One side does not tell what its step goes to.


class Basis(str, Enum):
    """What the interval comes from."""

    RECORDINGS = "recordings"  # How recordings of the same side differ.
    UNPROFILED_STEPS = "unprofiled_steps"  # Steps without a profiler, of one recording each.
    RECORDED_STEPS = "recorded_steps"  # Steps while the profiler recorded.


class Range(msgspec.Struct, frozen=True):
    """A difference and its interval of 95 %; None: too little was timed for one."""

    low: float | None
    likely: float
    high: float | None


class Ns(msgspec.Struct, frozen=True):
    """The same in nanoseconds."""

    low: int | None
    likely: int
    high: int | None


class ChangeKind(str, Enum):
    """How something differs."""

    NEW = "new"
    GONE = "gone"
    MORE_CALLS = "more_calls"
    FEWER_CALLS = "fewer_calls"
    SLOWER = "slower"
    FASTER = "faster"
    LONGER = "longer"  # Of time in which nothing is called, such as idle time.
    SHORTER = "shorter"
    REST = "rest"  # All that is too small for a row of its own.


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What one op, kernel or source line adds to the difference of a part."""

    what: str  # The op; else the kernel; "" where it is told by its source line, or by nothing.
    change: ChangeKind
    before_ns: int
    after_ns: int
    ns: int
    before_calls: float = 0.0  # Per step.
    after_calls: float = 0.0
    before_name: str = ""  # The kernel with most of the time; "" if there is none.
    after_name: str = ""
    shapes: str = ""  # Of the inputs with most of the difference, where these have half of it or more; else "".
    site: Site | None = None  # The source line with most of the difference, where it has half of it or more.


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the step, and what it adds to the difference."""

    what: str  # In words.
    kind: PartKind
    of: str  # Kind of kernel, cause of idle time or activity of the host; "" where there is only one.
    before_ns: int
    after_ns: int
    ns: int
    detail: tuple[Change, ...]  # Largest first; adds up to `ns`.


class GrownFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of both that would save more than its range was before."""

    before: KnownFinding
    after: KnownFinding


class FindingsChange(msgspec.Struct, frozen=True, kw_only=True):
    """How the findings differ."""

    fixed: tuple[KnownFinding, ...]  # Its rule could look again, and found nothing there.
    new: tuple[KnownFinding, ...]
    grown: tuple[GrownFinding, ...]
    not_looked_at: tuple[KnownFinding, ...]  # Found before; afterwards its rule could not look.
    not_looked_at_before: tuple[KnownFinding, ...]  # Found afterwards; before, its rule could not look.


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A setting or version that differs."""

    name: str
    before: str | None
    after: str | None
    acts_on: str  # The part of the step that it acts on, in words; "" where it may act on all.
    explains_ns: int | None  # What that part adds to the difference, where this is half of it or more; else None.


class Per(msgspec.Struct, frozen=True):
    """A step divided by what it does."""

    unit: str  # "sample" or "GFLOP".
    before_ns: float
    after_ns: float


class RankChange(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of a job that both have."""

    before: RankStep
    after: RankStep


class GroupChange(msgspec.Struct, frozen=True, kw_only=True):
    """A group of ranks; None: the other side alone has it."""

    label: str
    before: GroupTime | None
    after: GroupTime | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two recordings, or several of each side, compared."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str
    before_ns: int  # Mean step: without a profiler where both sides have that, else as recorded.
    after_ns: int
    difference_ns: Ns
    difference_share: Range  # Of the step before.
    verdict: Verdict
    why: str  # A sentence on what the verdict rests on.
    basis: Basis
    recordings: tuple[int, int]  # Of each side.
    smallest_visible_share: float | None
    """Half of the interval: a smaller difference could not have been seen. None: there is no interval."""
    parts: tuple[Part, ...]  # Largest difference first; they add up to `after_ns - before_ns`.
    findings: FindingsChange
    settings: tuple[SettingChange, ...]
    incomparable: tuple[str, ...]  # Sentences on what makes the two sides different things.
    per: tuple[Per, ...]  # Where the sides do different amounts of work.
    ranks: tuple[RankChange, ...]
    groups: tuple[GroupChange, ...]

    def to_json(self) -> str:
        """The comparison as JSON text, indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()
