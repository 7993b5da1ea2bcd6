"""What is kept of a recording to compare others with: the JSON of `diagnose baseline`.

Times are integer nanoseconds per step. Unknown is None. It holds no command, and no path but those of source lines.
"""

from typing import Annotated

import msgspec

from diagnose.facts.core.steps import Measure
from diagnose.facts.run.time_attribution import AttributedTime
from diagnose.trace.frames import Site

SCHEMA_VERSION = 1

Ns = Annotated[int, msgspec.Meta(gt=0)]


class KnownFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and what it would save."""

    rule: str
    code: str
    title: str
    site: Site | None
    low_ns: int
    likely_ns: int
    high_ns: int
    minor: bool  # Below 1 % of the step.


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """The mean recorded step of one rank of a job."""

    rank: int
    step_ns: int | None
    computing_ns: int | None  # In steps that all ranks have; None if the ranks could not be compared.
    waiting_ns: int | None


class GroupTime(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one operation in one group of ranks of a job, or what one rank sends another."""

    label: str  # The operation, what the group is for, and its ranks.
    calls: int  # Of one rank, per step.
    wait_ns: int  # Held up until the last rank comes; mean of its ranks, of two ranks that send the sum of both.
    transfer_ns: int  # Held up after that.


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One recording: of the rank that the others wait for, and in brief of the others."""

    started: str | None  # ISO 8601, in UTC.
    format: str
    devices: tuple[str, ...]  # Names, one for each device of the rank; empty: none was recorded.
    world_size: int | None
    rank: int
    measure: Measure
    times_ns: Annotated[tuple[Ns, ...], msgspec.Meta(min_length=1)]  # Of the recorded steps.
    unprofiled_ns: tuple[Ns, ...]  # Of steps without a profiler, in order; empty if none were timed.
    samples_per_step: int | None  # Of this rank.
    flops_per_step: int | None
    spending: tuple[AttributedTime, ...]
    """Where the mean recorded step goes; adds up to it. Empty if that is not known."""
    findings: tuple[KnownFinding, ...]
    looked: tuple[str, ...]  # Rules that could look, whatever they found.
    settings: dict[str, str]
    ranks: tuple[RankStep, ...]  # Empty for one rank.
    groups: tuple[GroupTime, ...]  # Those that hold ranks up longest; empty for one rank.


class Baseline(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="diagnose baseline"):
    """One side of a comparison: recordings of the same script."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str
    runs: Annotated[tuple[Run, ...], msgspec.Meta(min_length=1)]

    def to_json(self) -> str:
        """As JSON text; a row of the spending takes one line."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()
