"""The Diagnosis: the one value that reports see. A versioned JSON contract (diagnosis.schema.json).

Times are integer nanoseconds per step unless the name says otherwise; unknown is None, never 0.
"""

from __future__ import annotations

import msgspec

from diagnose import failures
from diagnose.contracts.finding import Outcome, RankedFinding, ReplayQuality, RulePage, ShownRisk
from diagnose.contracts.job import JobSummary
from diagnose.contracts.timeline import Pictures, Timeline
from diagnose.contracts.trials import Report
from diagnose.contracts.watched_run import WatchedRun
from diagnose.facts.communication.overlap import Communication
from diagnose.facts.core.breakdown import Breakdown, Launches
from diagnose.facts.core.host import HostTime
from diagnose.facts.core.idle import IdleShare
from diagnose.facts.core.steps import Measure
from diagnose.facts.data.fetches import Input
from diagnose.facts.device.kernels import Kernel, KernelGroup
from diagnose.facts.device.lost_time import AchievedFlops
from diagnose.facts.device.memory import AllocationCalls, Memory
from diagnose.facts.device.transfers import Copies
from diagnose.facts.host.functions import FunctionTime
from diagnose.facts.host.python import Op
from diagnose.facts.host.waits import Sync
from diagnose.facts.run.program import Program
from diagnose.facts.run.time_attribution import AttributedTime
from diagnose.facts.run.timed_steps import Epoch, Unrecorded
from diagnose.failures import Failure, attempt
from diagnose.replay.critical_path import PathPart
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Manifest
from diagnose.trace.model import Device, IntegrityNote, Severity

SCHEMA_VERSION = 1


class Source(msgspec.Struct, frozen=True):
    """A file that was read."""

    path: str
    format: str
    rank: int
    events: int
    bytes: int
    recorded: tuple[str, ...]  # Of shapes, stacks, memory, sync_events, device, launches, ops: what is known.
    detail: str | None = None  # The detail recording, of other steps of the run, that was read beside it.
    from_detail: tuple[str, ...] = ()  # Of `recorded`, what comes from the detail recording.


class Provenance(msgspec.Struct, frozen=True):
    """What was analysed."""

    sources: tuple[Source, ...]
    devices: tuple[Device, ...]
    world_size: int | None
    backend: str
    framework: dict[str, str]  # Versions by name: cuda_runtime, cuda_driver, hip_runtime, nccl, ...
    manifest: Manifest | None  # What `diagnose profile` noted of the run.


class StepTime(msgspec.Struct, frozen=True):
    """Step times in ns, over the used steps."""

    median: int
    mean: int
    min: int
    max: int


class Steps(msgspec.Struct, frozen=True):
    """The steps that the figures are of."""

    recorded: int
    used: int
    numbers: tuple[int, ...]
    measure: Measure
    marker: str  # What the steps were found by; empty if there are none.
    step_time_ns: StepTime
    unprofiled_step_time_ns: int | None
    """Mean of all steps without the profiler: the step that figures and savings are of, where it is known. The first
    step of an epoch weighs as often as it comes in a whole epoch."""
    usual_step_time_ns: int | None  # The same of steps of a kind that was recorded.
    overhead_ratio: float | None  # How much longer recorded steps take than others, for as much work, by one clock.
    size_ratio: float  # How many times as much work they do.
    epoch: Epoch | None = None  # None: no whole epoch was seen before the recording.
    unrecorded: Unrecorded | None = None  # Longer steps that were timed, where they take much of the time.


class RankFinding(msgspec.Struct, frozen=True):
    """What a rule finds on a rank by itself. Its price is not that of the job, and so is left out."""

    rule: str
    code: str
    title: str
    site: Site | None


class RankSummary(msgspec.Struct, frozen=True):
    """One rank's step in brief."""

    rank: int
    step_time_ns: StepTime | None
    breakdown: Breakdown | None
    times_ns: tuple[int, ...]  # Of each used step, in order.
    computing_ns: int | None = None  # Per step that all ranks use; None if ranks could not be compared.
    waiting_ns: int | None = None  # For others to come to collectives, hidden or not, per such step; None: unknown.
    host: HostTime | None = None
    findings: tuple[RankFinding, ...] = ()  # Worth a line, in order.


class MeasuredOps(msgspec.Struct, frozen=True):
    """What was measured of ops that fixes change, on the machine of the recording."""

    ops: int  # How many were measured.
    not_measured: int
    seconds: float  # That measuring took.


class Absent(msgspec.Struct, frozen=True):
    """A fact that this recording cannot give."""

    fact: str
    what: str
    how_to_record_it: str


class Sections(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one rank. None: this recording cannot give it, `absent` says why."""

    schema_version: int = SCHEMA_VERSION
    rank: int
    steps: Steps | None = None  # None: nothing in the recording could be measured.
    program: Program | None = None  # In what language it is written, and whether it trains.
    breakdown: Breakdown | None = None
    idle: tuple[IdleShare, ...] | None = None
    host: HostTime | None = None
    kernels: tuple[Kernel, ...] | None = None
    kernel_kinds: tuple[KernelGroup, ...] | None = None  # Kernel time by kind of kernel.
    kernel_ops: tuple[KernelGroup, ...] | None = None  # Kernel time by the op that launched it.
    launches: Launches | None = None
    syncs: tuple[Sync, ...] | None = None
    copies: tuple[Copies, ...] | None = None
    input: Input | None = None
    communication: Communication | None = None
    memory: tuple[Memory, ...] | None = None
    allocation: AllocationCalls | None = None
    ops: tuple[Op, ...] | None = None
    functions: tuple[FunctionTime, ...] | None = None
    flops: AchievedFlops | None = None  # Achieved FLOP/s and MFU.
    spending: tuple[AttributedTime, ...] | None = None  # Where the mean recorded step goes; adds up to it.
    critical_path: tuple[PathPart, ...] | None = None  # What recorded steps wait for; adds up to their mean.
    findings: tuple[RankedFinding, ...] = ()  # What to fix, in order; with the other ranks where the same was found.
    outcomes: tuple[Outcome, ...] = ()  # How each rule ended.
    absent: tuple[Absent, ...] = ()  # What could not be looked at, and how to record it.
    integrity: tuple[IntegrityNote, ...] = ()
    replay: ReplayQuality | None = None  # None: nothing could be replayed, so that nothing has a price.
    timeline: Timeline | None = None  # What happened when, as far as a screen shows it.
    pictures: Pictures | None = None  # Samples of single launches, copies, collectives and ops.
    job: JobSummary | None = None  # What the ranks do together; None if fewer than two could be compared.
    measured: MeasuredOps | None = None  # How much of changed ops was measured; None: nothing.
    risks: tuple[ShownRisk, ...] = ()  # What may end the run and costs no time now; of all ranks.


class Diagnosis(Sections, frozen=True, kw_only=True):
    """What is known about a run. Its sections are of `rank`: the one that the others wait for.

    Where that is not known it is the one with the longest median step.
    """

    tool_version: str
    provenance: Provenance
    ranks: tuple[RankSummary, ...]
    rules: tuple[RulePage, ...]  # The pages of the rules that ran, in the order of `outcomes`.
    trials: Report | None = None  # What `diagnose try` has measured of fixes of this recording; None if it has not.
    watched: WatchedRun | None = None  # Where the whole run's time went; None if it was not watched.

    @property
    def conclusive(self) -> bool:
        """Whether anything could be measured."""
        return self.steps is not None

    @property
    def step_ns(self) -> int | None:
        """The step that savings are of: without the profiler where that was timed, else the mean recorded one."""
        if self.steps is not None and self.steps.unprofiled_step_time_ns is not None:
            return self.steps.unprofiled_step_time_ns
        return self.replay.step_time_ns if self.replay else None

    def to_json(self) -> str:
        """The Diagnosis as JSON text, indented. A field that cannot be written, by a fault of ours, is empty."""
        with failures.collected() as lost:
            encoded = attempt("the Diagnosis as a whole", None, msgspec.json.encode, self)
            encoded = encoded or msgspec.json.encode(self._writable(lost))
        return msgspec.json.format(encoded, indent=2).decode()

    def _writable(self, lost: list[Failure]) -> Diagnosis:
        """Itself without the fields that cannot be written, with a note on each."""
        fields = [name for name in self.__struct_fields__ if name != "integrity"]
        broken = [name for name in fields if not attempt(f"`{name}`", None, msgspec.json.encode, getattr(self, name))]
        notes = map(note_of, lost[1:])  # The first is of all of it.
        empty = {name: () if isinstance(getattr(self, name), tuple) else None for name in broken}
        return msgspec.structs.replace(self, **empty, integrity=(*self.integrity, *notes))

    @classmethod
    def from_json(cls, text: str | bytes) -> Diagnosis:
        """A Diagnosis from its JSON. Raises msgspec.ValidationError if it is none, or of another schema version."""
        return msgspec.json.decode(text, type=cls)


def note_of(failure: Failure) -> IntegrityNote:
    """A failure of ours among what is said about the recording."""
    return IntegrityNote(failure.what, failure.effect, Severity.WARNING)
