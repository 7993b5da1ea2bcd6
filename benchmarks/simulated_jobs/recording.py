"""What happened on a rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_STREAM = 7
MAIN, AUTOGRAD = 0, 1


@dataclass(frozen=True)
class Work:
    """A kernel or copy: what the device does, and how Kineto names it."""

    category: str  # kernel or gpu_memcpy.
    name: str
    dur_ns: int
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    size: int | None = None  # Bytes of a copy.
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HostEvent:
    """A range or call on a host thread."""

    category: str
    name: str
    thread: int
    start_ns: int
    end_ns: int
    op: int  # External id: its own of an op, of the innermost op of a call; 0 if none.
    correlation: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)
    sequence: int | None = None
    is_backward: bool = False


@dataclass(frozen=True)
class DeviceEvent:
    """Work on a stream."""

    work: Work
    stream: int
    start_ns: int
    end_ns: int
    op: int
    correlation: int


@dataclass(frozen=True)
class Recording:
    """Of a rank."""

    rank: int
    world: int
    steps: tuple[tuple[int, int], ...]  # Start and end of each step on the main thread.
    done_ns: tuple[int, ...]  # When what each step launched was done, and before them what the step before launched.
    host: tuple[HostEvent, ...]
    device: tuple[DeviceEvent, ...]
