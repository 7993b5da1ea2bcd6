"""What is known about a recorded run besides its traces: `manifest.json`, written by `diagnose profile`.

Everything is optional to a reader but the version: an older or interrupted recording knows less. Unknown is None.
"""

from collections.abc import Sequence

import msgspec

from diagnose.trace.frames import Site
from diagnose.trace.measured import Screened

SCHEMA_VERSION = 1


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine."""

    system: str | None = None  # For instance "Linux 6.1.0".
    cpu: str | None = None
    cpus: int | None = None  # Logical ones of the machine.
    cpus_allowed: int | None = None  # Those that the process may run on (affinity, container).
    memory_bytes: int | None = None
    cpu_flags: tuple[str, ...] | None = None  # What its processor has, as Linux names it, of vectors and matrices.


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """A device as its driver describes it, read between the recordings."""

    index: int
    name: str | None = None
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    sm_clock_mhz: int | None = None
    most_sm_clock_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    throttled_by: tuple[str, ...] | None = None  # Why the clock is below its most, by NVML's names; () if nothing is.


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """What connects two devices."""

    devices: tuple[int, int]
    kind: str  # "nvlink" or "pcie".


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the user's own that the run imported."""

    file: str
    sha256: str | None = None  # Of all of it, in hexadecimal; None if it is large, or was written since the start.
    script: bool = False  # It is what was run.


class RowsFilled(msgspec.Struct, frozen=True, kw_only=True):
    """How far the rows of batches were filled: of the largest sequences of each of some batches of the warm-up.

    A place is one position of one row. What is at the end, or the beginning, of rows over and over is padding.
    """

    batches: int
    rows: int  # Of the largest batch.
    shortest: int
    longest: int  # Of the batches: to so many positions their rows were padded.
    places: int
    to_longest: int  # Places, if each batch were as long as its fullest row.
    used: int  # Places that hold more than padding.


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """Where the script makes something: the innermost line outside libraries, and its call without longer texts."""

    file: str
    line: int
    function: str
    call: str = ""

    @property
    def site(self) -> Site:
        """The line."""
        return Site(self.file, self.line, self.function)


class SampledLine(msgspec.Struct, frozen=True, kw_only=True):
    """Where workers were while they made batches."""

    file: str  # Of the script's own; empty, and line 0: none of it ran.
    line: int
    function: str
    calls: str = ""  # Function of a library that it calls there, as "numpy.load"; "": its own work, or built-in ones.
    share: float  # Of the time of all samples.


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """A DataLoader that the process iterated over, and what its work took."""

    dataset: str = "Dataset"  # Name of the class.
    dataset_length: int | None = None
    batch_size: int | None = None
    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    drop_last: bool = False
    in_order: bool | None = None
    sampler: str | None = None
    sampler_at: Made | None = None  # Where its `__iter__` begins, if that is the script's own.
    collate: str | None = None
    start_method: str | None = None  # Of the workers: fork, spawn, forkserver.
    batches: int = 0  # That were timed.
    fetch_ns: int | None = None  # Mean time to make a batch, items and collation, in timed steps if it was there.
    items_ns: int | None = None  # Of that, mean time in the dataset.
    collate_ns: int | None = None
    fetch_cpu_ns: int | None = None  # Mean CPU time of that, of all threads: over `fetch_ns` if several cores work.
    fetch_queued_ns: int | None = None  # Mean time of it for which the worker's thread waited for a core.
    blocked_ns: int | None = None  # Mean time of that in which its thread waited for storage, a network, a lock.
    blocked_most_ns: int | None = None  # The same of the slowest of ten batches.
    sending_ns: int | None = None
    """Mean CPU time of a worker to send a batch. Without workers this and `handed_ns` are of doing so within one."""
    sampled: int = 0  # Batches during which a worker was sampled.
    lines: tuple[SampledLine, ...] = ()  # Those with most of the time, most first.
    asked: int = 0  # How often the training asked for a batch.
    asked_timed: int | None = None  # Of those, while steps were timed without the profiler; None: not counted.
    wait_ns: int | None = None  # Mean time until it got one, in timed steps if there were any.
    sampling_ns: int | None = None  # Of that, mean time of the sampler, which runs in the process that trains.
    empty_share: float | None = None  # Share of the times when none was ready; None without workers.
    handed_ns: int | None = None  # Mean time from when a batch was made, and asked for, until the training had it.
    handing_share: float | None = None
    """Of the time that the training waited for batches but for the sampler, that of those made before it asked."""
    tensors: int | None = None  # Median number of tensors in a batch, wherever in it they are.
    objects: int | None = None  # Of all Python objects in it.
    batch_bytes: int | None = None  # Of its tensors and numpy arrays.
    looks: int = 0  # Batches of the warm-up that were looked into.
    sequences: RowsFilled | None = None  # None where they hold none, in tensors on the CPU.
    made: Made | None = None


class Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer that stepped; with diagnose.record one that was there."""

    name: str = "Optimizer"  # Its class.
    foreach: bool | None = None
    fused: bool | None = None
    capturable: bool | None = None
    momentum: float | None = None  # Largest of its groups, as `weight_decay`; None where it has none to set.
    weight_decay: float | None = None
    groups: int | None = None
    distinct_groups: int | None = None  # By their settings; None in recordings that do not say.
    parameters: int | None = None  # Tensors.
    elements: int | None = None
    bytes: int | None = None
    dtypes: dict[str, int] = {}  # Elements by dtype, as in {"float32": 25557032}.
    devices: tuple[str, ...] = ()  # Types of the devices that hold its parameters, as "cuda"; empty: not recorded.
    made: Made | None = None


class FailedGuard(msgspec.Struct, frozen=True, kw_only=True):
    """What compiled code checks, and by which it was found not to fit, so that code was compiled again or ran eager."""

    source: str  # What is checked, as in "self.calls".
    said: str  # As dynamo says it, as in "self.calls == 7".
    is_size: bool  # It is on a size or stride of a tensor.
    forms: int  # Compiled forms of the function that failed by it.
    file: str  # The user's line that made the check, or where the compiled function begins.
    line: int
    function: str


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of PyTorch that change which kernels run, read while training."""

    float32_matmul_precision: str | None = None
    cuda_matmul_allow_tf32: bool | None = None
    cudnn_allow_tf32: bool | None = None
    cudnn_benchmark: bool | None = None
    cudnn_deterministic: bool | None = None
    deterministic_algorithms: bool | None = None
    onednn: bool | None = None  # None where torch is built without it.
    fill_uninitialized_memory: bool | None = None  # Of deterministic algorithms; by itself it does nothing.
    anomaly_mode: bool | None = None
    threads: int | None = None  # Of CPU ops (torch.get_num_threads).
    autocast: dict[str, str] = {}  # dtype by device type of autocasts that were entered, as in {"cuda": "bfloat16"}.
    grad_scaler: bool | None = None
    compiled: bool | None = None  # Whether torch.compile was called.


class Distributed(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks work together."""

    backend: str | None = None
    ddp: tuple[dict[str, bool | int | str | None], ...] = ()  # Options of each, as bucket_cap_mb, static_graph.
    fsdp: tuple[dict[str, bool | int | str | None], ...] = ()
    ddp_made: tuple[Made, ...] = ()


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """How long steps took, by the process's own clock and, on a GPU, by events on the device."""

    first_step: int  # Number of the first of them; steps are numbered from 0 in the order of the run.
    wall_ns: tuple[int, ...]
    began_s: float | None = None  # Seconds from the start of the process to that of the first step.
    device_ns: tuple[int, ...] | None = None  # None without a device.
    bounds_unix_ns: tuple[int, ...] = ()  # When each step began and the last ended. Shape (steps + 1,); () unknown.
    settling: int | None = None  # Of these steps the first, in which the recorder became faster; None: no recorder.
    fetched_bytes: int | None = None  # Memory that the process touched for the first time, per step.
    cpu_ns: int | None = None  # CPU time of all threads of the process, per step; not that of loader workers.
    cpu_times_ns: tuple[int, ...] = ()  # The same of each step.
    waited_ns: int | None = None  # In which the training's thread could run and got no CPU, per step; 0 also: not told.
    nodes: tuple[int, ...] = ()  # Of autograd's graph that each step made: how much it did. Empty if not counted.
    phases_ns: dict[str, tuple[int, ...]] = {}
    """Of each step, in loader, backward, optimizer, save and collection; the rest is forward passes and Python."""

    @property
    def busy_cores(self) -> float | None:
        """How many cores the process kept busy, on average; None if that is not known."""
        wall_ns = sum(self.wall_ns)
        return None if self.cpu_ns is None or not wall_ns else self.cpu_ns * len(self.wall_ns) / wall_ns


class EventCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one recorded event adds to the time of the host, measured in the process after its timing recording."""

    op_ns: float | None = None  # An op of torch. None: the machine got slower or faster meanwhile by more than that.
    call_ns: float | None = None  # A call that launches, with what it launches; None without a device as well.


class PythonThread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread of Python beside the one that trains."""

    name: str
    cpu_share: float  # CPU time over the time of the steps without the profiler: 1 is a core.


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm of a trial measured beside its steps."""

    injected: dict[str, tuple[str, ...]] = {}  # Setting -> places, as "DataLoader at train.py:41: num_workers 0 -> 4".
    refused: dict[str, str] = {}  # Fix that took no effect -> a clause on why, where that is known.
    losses: tuple[str, ...] = ()  # What each backward pass began at, as `float.hex` writes it: NaN is no JSON.
    peak_bytes: int | None = None  # Most memory on the GPU, where torch uses one; else of the process.
    reread: tuple[str, ...] = ()  # Read and not written, but the recorded run had: it may continue what that began.


class Epochs(msgspec.Struct, frozen=True, kw_only=True):
    """Passes over the DataLoader that gives the training its batches. Times are without any profiler."""

    began: tuple[int, ...] = ()  # Number of the first step of each, the latest ones.
    steps: int | None = None  # Of the latest whole one; None if none was seen.
    timed: int = 0  # Steps that the times are of: the latest before the recording, as many as are in whole epochs.
    step_ns: int | None = None  # Mean, with all that is between epochs; None: too few once steps were steady.
    first_step_ns: int | None = None  # Of an epoch's first step, from the end of the one before; a mean as well.
    between_ns: int | None = None  # Of that, until an iterator is asked for: evaluation, saving, workers that end.
    starting_ns: int | None = None  # From then until its first batch is there: workers that start, and make it.

    def place(self, number: int) -> int | None:
        """How many steps of its epoch are before the step of this number; None if that is not known."""
        before = [first for first in self.began if first <= number]
        place = number - before[-1] if before else 0
        return place if before and (self.steps is None or place < self.steps) else None


class RankManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of the run knows of itself."""

    rank: int = -1  # Its number in the job; -1: not known.
    world_size: int = 1
    peers: int | None = None  # Ranks on its machine, itself included; None in recordings that do not say.
    node: int | None = None  # Its machine, as the launcher counts them, else in the order of ranks; never a name.
    machine: int | None = None  # Tells machines apart, each of which has one clock; None in recordings that do not say.
    recorded: bool = True  # False: it was only timed, as --ranks does not name it.
    pid: int | None = None
    trace: str | None = None  # Name of the timing recording in the same folder; None if there is none.
    detail: str | None = None  # Name of the attribution recording (stacks, shapes).
    graph: str | None = None  # Name of the file that has autograd's graph of one step.
    values: str | None = None  # Name of the file that tells which ops of a step compute what has been computed before.
    steps_by: str | None = None  # By optimizer, backward, loader, call (of the model), code (our calls) or time.
    loop: str | None = None  # What owns the training loop, as `fixes.setting.Loop`; None also: not recorded.
    steps_made: int | None = None  # Steps until recording ended, in recordings that say.
    steady: bool | None = None  # Whether step times had become steady before anything was measured.
    warm_up: Timed | None = None
    unprofiled: Timed | None = None  # Steps without any profiler: the truth that recordings are compared with.
    cycle: int = 1  # Steps from one long step to the next, if long ones came at a period in these.
    python_threads: tuple[PythonThread, ...] | None = None  # That computed in these steps, most first.
    unprofiled_after: Timed | None = None  # As `unprofiled`, after the timing recordings.
    device: str | None = None  # Name of the recording without ops, whose times are the truest; None without a GPU.
    device_timing: Timed | None = None  # Steps of that, by the same clocks.
    timing: Timed | None = None  # Steps of the timing recording, by the same clocks.
    attribution: Timed | None = None  # Steps of the attribution recording.
    marked: tuple[str, ...] = ()  # What has ranges in the timing recording: "garbage_collection", "checkpoint".
    loaders: tuple[Loader, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    flags: Flags = Flags()
    failed_guards: tuple[FailedGuard, ...] = ()  # Of torch.compile, those first by which the most forms failed.
    distributed: Distributed | None = None
    arm: Arm | None = None  # None: it was recorded, and is no arm of a trial.
    screened: tuple[Screened, ...] | None = None  # None: nothing was screened.
    writes: tuple[str, ...] | None = None  # What the script wrote: files, and folders, which end in a slash.
    allocator: dict[str, int] = {}  # Of torch.cuda.memory_stats: {allocated,reserved}_bytes, retries, ooms, segments.
    libraries: tuple[str, ...] = ()  # Installed packages that were imported: their frames are not the user's own.
    ended: str | None = None  # How the process ended: "recorded", "itself", "interrupted", "crashed".
    epochs: Epochs | None = None  # None also where no loader gives the training its batches.
    event_cost: EventCost | None = None  # None: not measured.
    notes: tuple[str, ...] = ()  # Sentences for the user.


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded run."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str | None = None
    complete: bool = False  # Whether the recording came to its end.
    command: tuple[str, ...] = ()
    started: str | None = None  # ISO 8601, in UTC.
    exit_code: int | None = None  # Of the command, if it ended by itself.
    host: Host = Host()
    versions: dict[str, str] = {}  # Of python, torch, cuda, cudnn, nccl, hip, driver, and frameworks imported.
    environment: dict[str, str] = {}  # Variables that change speed, of an allow-list; never others.
    devices: tuple[DeviceState, ...] = ()
    links: tuple[Links, ...] = ()
    sources: tuple[SourceFile, ...] = ()  # Empty: not known.
    ranks: tuple[RankManifest, ...] = ()
    notes: tuple[str, ...] = ()


def most_asked(loaders: Sequence[Loader]) -> Loader | None:
    """The loader that the training asked most often for batches, so likely its own; None without loaders."""
    return max(loaders, key=lambda loader: (loader.asked_timed or 0, loader.asked, loader.batches), default=None)


def training_loaders(rank: RankManifest) -> tuple[Loader, ...]:
    """The loader that the training takes its batches from; where that is not known, all of them."""
    most = most_asked(rank.loaders)
    return rank.loaders if most is None or not most.asked_timed else (most,)
