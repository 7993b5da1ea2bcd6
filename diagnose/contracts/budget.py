"""Whether a training keeps within limits: it does, it does not, or nobody can tell."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Limits:
    """What a test allows; None where it does not say."""

    step_ns: int | None = None
    idle_share: float | None = None
    """Of the step."""


class Kept(str, Enum):
    """How a limit was kept."""

    WITHIN = "within"
    """The whole interval is at most the limit."""
    OVER = "over"
    """The whole interval is over it."""
    CANNOT_TELL = "cannot_tell"
    """The limit lies in the interval, or nothing was measured."""


class What(str, Enum):
    """What is limited."""

    STEP = "step"
    """Time of a step, in ns."""
    IDLE = "idle"
    """Share of the step in which the device is idle."""


@dataclass(frozen=True)
class Judged:
    """A limit, and what was measured."""

    what: What
    limit: float
    kept: Kept
    low: float | None
    """Of the interval, in the unit of the limit; None if it has no bound, or nothing was measured."""
    high: float | None
    how: str
    """On what the interval rests, or why there is none: a clause."""
