"""Where a watched run's time went: the JSON of `diagnose analyze` on a log, and what its report is written from.

Times are integer nanoseconds of the whole run unless the name says otherwise. Unknown is None.
"""

from __future__ import annotations

from enum import Enum

import msgspec

SCHEMA_VERSION = 1


class RunPartKind(str, Enum):
    """What the time of a run goes to. In the order of a report where parts are equal."""

    TRAINING = "training"
    """Steps, without the parts of them that follow."""
    LOADER = "loader"
    """Waiting for batches to train on."""
    EVALUATION = "evaluation"
    """Forward passes without gradients outside of steps, with their batches."""
    SAVE = "save"
    COLLECTION = "collection"
    """Python's garbage collection in steps."""
    START = "start"
    """From the start of the process to the first step's end, and compiling after it."""
    RECORDING = "recording"
    """Steps while some of them were recorded, and writing that."""
    OUTSIDE = "outside"
    """Between steps, where that takes over three times the usual step, and after the last step."""
    LOST = "lost"
    """Of which the log tells nothing, as it is damaged."""


class RunPart(msgspec.Struct, frozen=True):
    """One part; all parts add up to the length of the run."""

    kind: RunPartKind
    ns: int
    count: int | None
    """Of steps, evaluations, checkpoints; None where nothing is counted."""
    first_epoch_ns: int | None = None
    """What of it was in the first epoch; None if that is not known."""


class PhaseTime(msgspec.Struct, frozen=True):
    """A kind of time in the steps that had any; nothing of the first step."""

    phase: str
    """A column of the log: step, loader, forward, backward, optimizer, collection, compilation, device, ..."""
    ns: int
    count: int
    """Steps that had any."""
    least_ns: int
    most_ns: int
    median_ns: int | None = None
    p99_ns: int | None = None
    """Both are off by 2.2 % at most; None where no sketch is kept."""


class Epoch(msgspec.Struct, frozen=True):
    """An epoch, or as much of it as there was."""

    first_step: int
    began_ns: int
    steps: int
    """Without the first step of the run."""
    step_ns: int
    """Of a mean step."""
    loader_ns: int
    """Of that, waiting for the batch."""


class Figure(msgspec.Struct, frozen=True):
    """A figure of the process or its device, looked at each second."""

    name: str
    first: float
    """The mean of the first window."""
    mean: float
    least: float
    most: float
    last: float


class GrowingSteps(msgspec.Struct, frozen=True, tag="growing_steps"):
    """Steps take longer the longer the run lasts."""

    first_ns: int
    """Of a usual step in the first part of the run."""
    last_ns: int
    per_1000_steps_ns: int
    cost_ns: int
    """What the run's steps took beyond the first part's."""
    chance: float
    """That steps in an order of no meaning would rise as often."""


class PeriodicOutliers(msgspec.Struct, frozen=True, tag="periodic_outliers"):
    """Every so many steps one takes over three times the usual one."""

    period_steps: int
    outliers: int
    regular: float
    """Share of them that came so many steps after the one before, by one step more or less."""
    cost_ns: int
    """What they took beyond usual steps."""


class SlowFirstEpoch(msgspec.Struct, frozen=True, tag="slow_first_epoch"):
    """The first epoch's steps take longer than later ones."""

    step_ns: int
    later_step_ns: int
    loader_ns: int
    later_loader_ns: int
    cost_ns: int


class GrowingMemory(msgspec.Struct, frozen=True, tag="growing_memory"):
    """Resident memory of the process rises to the end of the run."""

    first_bytes: int
    last_bytes: int
    per_1000_steps_bytes: int
    chance: float


Trend = GrowingSteps | PeriodicOutliers | SlowFirstEpoch | GrowingMemory


class TrendKind(str, Enum):
    """What is looked for in the whole run. In the order of a report."""

    GROWING_STEPS = "growing_steps"
    GROWING_MEMORY = "growing_memory"
    PERIODIC_OUTLIERS = "periodic_outliers"
    SLOW_FIRST_EPOCH = "slow_first_epoch"


class NotFound(msgspec.Struct, frozen=True):
    """A trend that was looked for and is not there, or could not be looked for."""

    kind: TrendKind
    why: str
    """Why nothing can be told, as a clause; empty: the run was looked at and shows none."""


class RankRun(msgspec.Struct, frozen=True):
    """The run of one rank."""

    rank: int
    world_size: int
    started_unix_ns: int
    ended: str | None
    """itself, interrupted, crashed; None: it was killed, or still runs."""
    length_ns: int
    steps: int
    steps_by: str | None
    """What steps were found by: optimizer, backward, loader, call."""
    parts: tuple[RunPart, ...]
    """By their size; they add up to `length_ns`."""
    phases: tuple[PhaseTime, ...]
    trends: tuple[Trend, ...]
    not_found: tuple[NotFound, ...]
    """All other kinds of trends."""
    epochs: tuple[Epoch, ...]
    epochs_left_out: int
    """Epochs that the log counts and does not tell one by one."""
    figures: tuple[Figure, ...]
    files: tuple[str, ...]
    """That the run wrote."""
    damaged: int
    """Places in the log that could not be read."""


class WatchedRun(msgspec.Struct, frozen=True):
    """What the logs of a run tell, by rank."""

    schema_version: int
    tool_version: str
    ranks: tuple[RankRun, ...]

    def to_json(self) -> str:
        """See watched_run.schema.json."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()
