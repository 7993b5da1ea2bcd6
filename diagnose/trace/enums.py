"""The kinds that columns of a trace's tables hold. Free of pandas, so that names can be classified without it."""

from enum import Enum


class SpanKind(str, Enum):
    """What a span is. Device work is KERNEL, MEMCPY and MEMSET, and nothing else."""

    OP = "op"
    RUNTIME = "runtime"
    DRIVER = "driver"
    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    SYNC = "sync"
    ANNOTATION = "annotation"
    GPU_ANNOTATION = "gpu_annotation"
    PYTHON = "python"
    OVERHEAD = "overhead"
    SYSTEM = "system"
    MEMORY = "memory"
    LOADER = "loader"
    COLLECTIVE = "collective"
    OTHER = "other"


CALLS = (SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.LOADER, SpanKind.RUNTIME, SpanKind.DRIVER)
"""Host spans that a line of code led to."""


class LinkKind(str, Enum):
    """What a link says: LAUNCH call -> device work; FORWARD_OF forward op -> backward op; WAITS_FOR launch call of the
    awaited work -> sync row."""

    LAUNCH = "launch"
    FORWARD_OF = "forward_of"
    WAITS_FOR = "waits_for"


class Direction(str, Enum):
    """Where a copy goes, as the recorder names it (H host, D device, A array, P peer device)."""

    H2D = "HtoD"
    D2H = "DtoH"
    D2D = "DtoD"
    P2P = "PtoP"
    H2H = "HtoH"
    UNKNOWN = "unknown"


class HostMemory(str, Enum):
    """The kind of host memory a copy touches. NONE: it touches none."""

    PAGEABLE = "pageable"
    PINNED = "pinned"
    MANAGED = "managed"
    NONE = "none"
    UNKNOWN = "unknown"


class SyncKind(str, Enum):
    """What a recorded synchronisation waits on, and who waits: the host, or (STREAM_WAIT_EVENT) a stream."""

    STREAM = "stream"
    CONTEXT = "context"
    EVENT = "event"
    STREAM_WAIT_EVENT = "stream_wait_event"
    UNKNOWN = "unknown"


def code(member: Enum) -> int:
    """The category code of an enum member: its position."""
    return list(type(member)).index(member)
