"""What a training step asks of the machine: ranges of host time, and calls of the CUDA runtime within them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

DEFAULT_STREAM = 7
"""torch's default stream is 7 of the first context in every trace."""
COPY_STREAM = 13
COLLECTIVE_STREAM = 20


@dataclass(frozen=True)
class Work:
    """A kernel, copy or memset: what the device does, and how Kineto names it."""

    category: str
    """kernel, gpu_memcpy or gpu_memset."""
    name: str
    dur_ns: int
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    size: int | None = None
    """Bytes of a copy or memset."""
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Host:
    """Time of the host between two other things."""

    dur_ns: int


@dataclass(frozen=True)
class Range:
    """An op, an annotation or a Python frame, and what it holds."""

    name: str
    body: tuple[Node, ...]
    category: str = "cpu_op"
    args: Mapping[str, Any] = field(default_factory=dict)
    sequence: int | None = None
    """Of the forward op in autograd, and of its backward."""
    is_backward: bool = False


@dataclass(frozen=True)
class Launch:
    """A call that puts work onto a stream. `host_dur_ns` is what the call takes where nothing holds it up."""

    work: Work
    stream: int = DEFAULT_STREAM
    call: str = "cudaLaunchKernel"
    host_dur_ns: int = 4_000
    waits: bool = False
    """The call returns when the device is done: a copy from or to pageable memory."""


@dataclass(frozen=True)
class GraphLaunch:
    """A CUDA graph: one call, and all its kernels."""

    works: tuple[Work, ...]
    stream: int = DEFAULT_STREAM


@dataclass(frozen=True)
class Call:
    """A call of the runtime that only costs its host: cudaMalloc, cudaFuncSetAttribute."""

    name: str
    dur_ns: int
    drains: bool = False
    """It waits for the device first: cudaFree."""


@dataclass(frozen=True)
class RecordEvent:
    """cudaEventRecord."""

    event: str
    stream: int = DEFAULT_STREAM


@dataclass(frozen=True)
class WaitEvent:
    """cudaStreamWaitEvent: work that is put onto `stream` later waits for the event."""

    event: str
    stream: int = DEFAULT_STREAM


@dataclass(frozen=True)
class Synchronize:
    """The host waits for an event, a stream, or, without either, for the device."""

    stream: int | None = None
    event: str | None = None


@dataclass(frozen=True)
class NextBatch:
    """The main thread takes a batch from loader workers."""

    handing_over_ns: int = 300_000


@dataclass(frozen=True)
class Collective:
    """An all-reduce or the like: it starts when all ranks are there, and then takes `work.dur_ns`."""

    work: Work
    stream: int = COLLECTIVE_STREAM


@dataclass(frozen=True)
class Backward:
    """What autograd's thread runs while the main thread waits."""

    body: tuple[Node, ...]


Node: TypeAlias = (
    Host
    | Range
    | Launch
    | GraphLaunch
    | Call
    | RecordEvent
    | WaitEvent
    | Synchronize
    | NextBatch
    | Collective
    | Backward
)


@dataclass(frozen=True)
class Loader:
    """Worker processes that make batches ahead; each batch takes one of them `batch_ns`."""

    workers: int
    batch_ns: int
    prefetch: int = 2
    """Batches that each worker may be ahead: DataLoader's prefetch_factor."""


@dataclass(frozen=True)
class Program:
    """What one rank runs: a body for each step."""

    steps: tuple[tuple[Node, ...], ...]
    loader: Loader | None = None
    slower: float = 1.0
    """How long this rank's kernels take, as a multiple: a GPU that runs hot."""
    blocking: bool = False
    """CUDA_LAUNCH_BLOCKING=1: each launch returns when its work is done."""
