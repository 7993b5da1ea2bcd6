"""The recorded run as values: ranks with their tables, steps, and what is known about the recording itself."""

from enum import Enum

import pandas as pd
from msgspec import Struct, field

from diagnose.trace.intervals import IntArray
from diagnose.trace.job import Job, ProcessGroup
from diagnose.trace.manifest import Host, RankManifest
from diagnose.trace.measured import Measurements


class Severity(str, Enum):
    """How much an integrity note matters."""

    NOTE = "note"  # Nothing in the report is wrong; something is not in it.
    WARNING = "warning"  # Some figures are less reliable than they look.
    ERROR = "error"  # Part of the recording is lost, or the figures it names are unreliable.


class Ground(str, Enum):
    """What a finding can rest on, and an integrity note can doubt."""

    HOST_TIMES = "host_times"  # What the host did, and for how long.
    DEVICE_TIMES = "device_times"  # How long recorded device work takes.
    DEVICE_IDLE = "device_idle"  # That the device did nothing while no work is recorded.
    LAUNCHES = "launches"  # Which call launched which device work.
    CLOCKS = "clocks"  # What came first of what host and device did.
    RANKS = "ranks"  # What came first of what several ranks did.


class IntegrityNote(Struct, frozen=True):
    """Something missing or damaged in a recording."""

    what: str  # One sentence: what is wrong, with the count.
    effect: str  # One sentence: what that makes unreliable or impossible, and how to record it where that is known.
    severity: Severity
    doubts: tuple[Ground, ...] = ()  # A finding that rests on one of these is less sure. Of a NOTE none.


class Device(Struct, frozen=True):
    """A device as the recorder described it. 0 where the recorder says nothing."""

    index: int
    name: str
    memory_bytes: int
    multiprocessors: int
    compute_capability: tuple[int, int]
    max_threads_per_multiprocessor: int
    warp_size: int


class Step(Struct, frozen=True):
    """One recorded training step, as its marker delimits it on the host."""

    number: int  # The number in the marker's name; the position where it has none.
    start_ns: int
    end_ns: int


class Provenance(Struct, frozen=True):
    """Where a rank's tables come from and what could be known at all."""

    path: str
    format: str
    bytes: int  # Size of the file on disk.
    events: int  # Events read, of every phase.
    rank: int | None  # As recorded; None when the recording does not say.
    world_size: int | None
    backend: str  # "cuda", "rocm", "cpu", or "unknown": a device whose maker the recording does not tell.
    devices: tuple[Device, ...]  # Devices that did work in this trace, where the recording describes them.
    recorded: frozenset[str]
    """Of shapes, stacks, samples, memory, sync_events, device, launches, ops: what this recording holds. Samples tell
    lines as stacks do, but not every call."""
    resolution_ns: int  # Smallest time the recording can tell apart: 1 or 1000.
    versions: dict[str, str]  # Of cuda_runtime, cuda_driver, hip_runtime, hip_driver, cupti, nccl: what is known.
    step_marker: str  # What the steps were found by, in words; empty when there are none.
    python: bool | None  # Whether the process has a name of Python's; None if no name is recorded. It is not kept.
    begin_unix_ns: int
    end_unix_ns: int
    """When the first event starts and the last one ends, in Unix time, if that is what the recorder counts from."""
    detail: str | None = None  # Path of the detail recording, of other steps of the same run; None if there is none.
    timed_by: str | None = None  # Path of the recording whose times these are, of other steps; None: its own.
    groups: tuple[ProcessGroup, ...] = ()  # That this rank is in, in the order in which they were made.
    joined: frozenset[str] = frozenset()  # Shapes and stacks that the detail recording alone has.
    machine: int = -1  # Tells the machines of ranks apart; -1 unknown.
    process: str = ""  # Id of the recorded process, as its host has it; "" unknown.
    machine_devices: int = 0  # That the process could see, whether they did work or not; 0 unknown.

    def knows(self, option: str) -> bool:
        """Whether shapes or stacks are known, from this recording or the detail recording; stacks also by samples."""
        return option in self.recorded | self.joined or (option == "stacks" and "samples" in self.recorded)


class Context(Struct, frozen=True):
    """What is known of a rank besides its trace, where `diagnose profile` recorded it."""

    rank: RankManifest
    host: Host
    ranks: int  # Processes recorded on that machine.
    environment: dict[str, str] = field(default_factory=dict)  # That change speed; empty if not recorded.
    versions: dict[str, str] = field(default_factory=dict)  # As `Manifest.versions`.
    command: tuple[str, ...] = ()  # What ran, its values without what may be secret; empty if that is not known.


class Peers(Struct, frozen=True):
    """What the recordings of the other ranks tell of the steps and collectives of one rank."""

    rank: int
    ranks: tuple[int, ...]  # All that were compared, this one too, in order.
    steps: tuple[int, ...]  # Numbers of the steps that all of them use.
    machines: IntArray  # Tells the machine of each rank apart; -1 unknown. Shape (ranks,).
    devices: IntArray  # Index of the device that each rank computes on; -1 none or several. Shape (ranks,).
    compute_ns: IntArray  # For how long each rank computed in each step. Shape (ranks, steps).
    waited_ns: IntArray  # For how long each rank waited for others at collectives, in all these steps. Shape (ranks,).
    met: IntArray  # Collectives that all of their group came to, by span id in order.
    from_ns: IntArray  # When this rank came to each of them. Shape as `met`.
    waits_ns: IntArray  # For how long this rank waited at each of them for the last one to come. Shape as `met`.
    job: Job  # All ranks together.


class AutogradGraph(Struct, frozen=True):
    """The nodes that the backward passes of one step go through, which `diagnose profile` looked at after recording.

    Arrays of shape (nodes,), and (edges,) where a node and another are said by their positions.
    """

    names: tuple[str, ...]  # Of kinds of nodes, as "AddmmBackward0".
    name: IntArray  # Position in `names`.
    number: IntArray  # Order in which ops made them; -1 of those that add to the gradient of a weight.
    uses: IntArray  # The op of this node took ...
    used: IntArray  # ... what the op of this one made.
    optimizer: IntArray
    """Of nodes that add to a weight's gradient the optimizer that has it, from 1; 0 none; -1 of others, or unknown."""


class ValueGraph(Struct, frozen=True):
    """The ops that torch's dispatcher ran in two steps, and which made equal values; looked at after recording.

    Arrays of shape (ops,) in the order in which ops were called, and (edges,) where two are said by their positions.
    None: nobody looked.
    """

    names: tuple[str, ...]  # As "aten::mm".
    name: IntArray  # Position in `names`.
    thread: IntArray  # Threads are numbered from 0, in the order in which they ran the first op.
    step: IntArray  # 0 or 1.
    backward: IntArray  # 1 in a backward pass.
    makes: IntArray  # 1 where the op makes or changes values, 0 where it makes a view of what there is.
    same: IntArray  # The first op that made the same values of the same; -1 if there is none before.
    uses: IntArray  # This op took ...
    used: IntArray  # ... what this one made; -1: what is in memory that no op was seen to fill, such as a batch.
    sparse: IntArray | None = None
    """Thousandths that are zero of a matrix that a product takes and that depends on nothing that is learnt."""
    looked_up: IntArray | None = None
    """The op that took rows of a table, if this depends on them and nothing else that changes or is learnt; else -1."""
    repeats: IntArray | None = None
    """1 where sizes and 64 elements of the result are those of the so-many-th such op in the step before."""


class VaryingShapes(Struct, frozen=True):
    """What ops took in consecutive steps, each of those that took another shape in each."""

    steps: tuple[int, ...]  # Their numbers, in order.
    shapes: tuple[tuple[str, ...], ...]  # Of each such op in each of the steps, as in the table `ops`.
    ids: IntArray  # Spans of the rank, in whichever step, that are one of these ops. Shape (spans,).
    which: IntArray  # Position in `shapes`. Shape as `ids`.


class Rank(Struct, frozen=True):
    """One process of the run: columnar tables (see `trace.schema`), immutable once made."""

    index: int
    zero_unix_ns: int  # What 0 in the tables is in Unix time; ranks are compared after adding it.
    spans: pd.DataFrame
    kernels: pd.DataFrame
    copies: pd.DataFrame
    syncs: pd.DataFrame
    collectives: pd.DataFrame
    ops: pd.DataFrame
    memory: pd.DataFrame
    tracks: pd.DataFrame
    links: pd.DataFrame
    lines: pd.DataFrame
    steps: tuple[Step, ...]
    provenance: Provenance
    integrity: tuple[IntegrityNote, ...]
    context: Context | None = None  # None: the trace is all there is.
    peers: Peers | None = None  # None: no other rank was looked at.
    graph: AutogradGraph | None = None  # None: nobody looked at it.
    values: ValueGraph | None = None  # None: nobody looked at them.
    varying: VaryingShapes | None = None  # Of the detail recording; None: there is none that shapes are from.
    measured: Measurements | None = None  # What changed ops take; None: nothing was measured.

    @property
    def times_ns(self) -> tuple[int, ...]:
        """Durations of the marked steps on the host."""
        return tuple(step.end_ns - step.start_ns for step in self.steps)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Modules that are known to be installed, rather than the user's own."""
        return () if self.context is None else self.context.rank.libraries


class Run(Struct, frozen=True):
    """All ranks of a run that were given, in order of their index."""

    ranks: tuple[Rank, ...]
    integrity: tuple[IntegrityNote, ...]  # What is wrong with the set of files, rather than with one of them.
