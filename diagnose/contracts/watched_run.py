"""Where a watched run's time went: the JSON of `diagnose analyze` on a log, and what its report is written from.

Times are integer nanoseconds of the whole run unless the name says otherwise. Unknown is None.
"""

from enum import Enum

import msgspec

from diagnose.contracts.finding import Evidence

SCHEMA_VERSION = 1


class RunPartKind(str, Enum):
    """What the time of a run goes to. In the order of a report where parts are equal."""

    TRAINING = "training"  # Steps, without the parts of them that follow.
    LOADER = "loader"  # Waiting for batches to train on.
    EVALUATION = "evaluation"  # Forward passes without gradients outside of steps, with their batches.
    SAVE = "save"
    COLLECTION = "collection"  # Python's garbage collection in steps.
    START = "start"  # From the start of the process to the first step's end, and compiling after it.
    RECORDING = "recording"  # Steps while some of them were recorded, and writing that.
    OUTSIDE = "outside"  # Between steps, where that takes over three times the usual step, and after the last step.
    LOST = "lost"  # Of which the log tells nothing, as it is damaged.


class RunPart(msgspec.Struct, frozen=True):
    """One part; all parts add up to the length of the run."""

    kind: RunPartKind
    ns: int
    count: int | None  # Of steps, evaluations, checkpoints; None where nothing is counted.
    first_epoch_ns: int | None = None  # What of it was in the first epoch; None if that is not known.


class PhaseTime(msgspec.Struct, frozen=True):
    """A kind of time in the steps that had any; nothing of the first step."""

    phase: str  # A column of the log: step, loader, forward, backward, optimizer, collection, compilation, device, ...
    ns: int
    count: int  # Steps that had any.
    least_ns: int
    most_ns: int
    median_ns: int | None = None
    p99_ns: int | None = None  # Both are off by 2.2 % at most; None where no sketch is kept.


class Epoch(msgspec.Struct, frozen=True):
    """An epoch, or as much of it as there was."""

    first_step: int
    began_ns: int
    steps: int  # Without the first step of the run.
    step_ns: int  # Of a mean step.
    loader_ns: int  # Of that, waiting for the batch.


class Figure(msgspec.Struct, frozen=True):
    """A figure of the process or its device, looked at each second."""

    name: str
    first: float  # The mean of the first window.
    mean: float
    least: float
    most: float
    last: float


class RunSlice(msgspec.Struct, frozen=True):
    """A stretch of the run, for a look at it over time."""

    began_ns: int  # Since the start of the process.
    ended_ns: int
    first_step: int
    steps: int
    parts: dict[RunPartKind, int]  # ns; they add up to the stretch. The part `start` has compiling only.
    step_ns: int  # Of a usual step: without what outliers take beyond it.
    p99_ns: int | None
    figures: dict[str, float]
    """Means over the stretch, by the name of a Figure; of what counts from the start of the process the latest."""


class RunBasis(str, Enum):
    """What a saving rests on."""

    COMPARED = "compared"  # Other steps of the same run do not take that.
    RULE_OF_THUMB = "rule_of_thumb"  # How much of the time would be left is taken from experience elsewhere.
    MODELLED = "modelled"  # The model of data loading, with what batches took.
    REPLAYED = "replayed"  # Recorded steps replayed with the fix, for all steps of the run.
    CHOICE = "choice"  # It follows from what would be given up.
    AT_MOST = "at_most"  # Nothing tells how much of the time is needed.
    NONE = "none"  # It costs no time that the log could tell.


class RunSaving(msgspec.Struct, frozen=True):
    """What the whole run would take less, in ns."""

    low_ns: int
    likely_ns: int
    high_ns: int
    basis: RunBasis


RECORDED = "recorded"
"""The kind of a finding of steps that were recorded meanwhile, for all steps of the run."""


class RunFinding(msgspec.Struct, frozen=True):
    """What costs time of the run, or endangers it."""

    title: str
    evidence: tuple[Evidence, ...]  # The first one has the number that matters.
    saving: RunSaving
    change: str  # What to do, as an imperative.
    kind: str = ""  # What of its rule it is; of a rule that tells one thing only the rule's id.
    rule: str = ""  # The rule's id.
    ranks: tuple[int, ...] = ()  # On which it was found; the numbers are of the one that it costs most.


LEFT_OUT = "excluded by your settings"  # Why nothing can be told by a rule that was not selected, or ignored.


class NotFound(msgspec.Struct, frozen=True):
    """A rule by which nothing was found that is there and costs enough, or that could not tell."""

    rule: str
    why: str  # Why nothing can be told, as a clause; empty: the run was looked at.


class RankRun(msgspec.Struct, frozen=True):
    """The run of one rank."""

    rank: int
    world_size: int
    started_unix_ns: int
    ended: str | None  # itself, interrupted, crashed; None: it was killed, or still runs.
    length_ns: int
    steps: int
    steps_by: str | None  # What steps were found by: optimizer, backward, loader, call.
    parts: tuple[RunPart, ...]  # By their size; they add up to `length_ns`.
    phases: tuple[PhaseTime, ...]
    epochs: tuple[Epoch, ...]
    epochs_left_out: int  # Epochs that the log counts and does not tell one by one.
    figures: tuple[Figure, ...]
    files: tuple[str, ...]  # That the run wrote.
    damaged: int  # Places in the log that could not be read.
    over_time: tuple[RunSlice, ...]
    """In order, from the end of the first step to that of the last; without what the log has lost."""


class Attempt(msgspec.Struct, frozen=True):
    """An earlier process that made steps as the same rank."""

    started_unix_ns: int
    length_ns: int
    steps: int
    ended: str | None  # As of RankRun.
    saved_steps: int  # Steps before the last checkpoint that the log knows; 0: there is none.
    start_ns: int  # Of its length, to the end of the first step.


class WatchedRun(msgspec.Struct, frozen=True):
    """What the logs of a run tell, by rank."""

    schema_version: int
    tool_version: str
    ranks: tuple[RankRun, ...]
    findings: tuple[RunFinding, ...]  # Of all ranks, those first that would save most.
    not_found: tuple[NotFound, ...]  # All other rules that are about such a run.
    attempts: tuple[Attempt, ...] = ()
    """Earlier ones of the first of these ranks, in order: of processes that have ended before those above began."""

    def to_json(self) -> str:
        """See watched_run.schema.json."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()
