"""Every table of a trace: its columns, their dtypes, units and meaning, and which formats can fill them.

The row label of `spans` is the span id; side tables are labelled by the id of the span they describe. Spans are in
order of start. Times are int64 nanoseconds from the rank's zero (`Rank.zero_unix_ns`). An int that was not recorded is
-1 where its column says no other, a float NaN, a name the empty category "". `check` is called once, at the border
(`source.assemble`).
"""

from enum import Enum

import numpy as np
import pandas as pd
from msgspec import Struct

from diagnose.trace.enums import Direction, HostMemory, LinkKind, SpanKind, SyncKind


class Column(Struct, frozen=True):
    """One column: `dtype` is a numpy name, "names" (any category) or the name of an enum above."""

    dtype: str
    unit: str
    meaning: str
    formats: str = "kineto, nsight"
    unknown: int | None = -1  # What stands for what was not recorded, of an int; None: it always is.


class Table(Struct, frozen=True):
    """A table by name, with its columns in order."""

    name: str
    meaning: str
    columns: dict[str, Column]


class SchemaError(ValueError):
    """A frame does not have the columns or dtypes its table promises: a bug in a reader, never the user's fault."""


ENUMS: dict[str, type[Enum]] = {
    "SpanKind": SpanKind,
    "LinkKind": LinkKind,
    "Direction": Direction,
    "HostMemory": HostMemory,
    "SyncKind": SyncKind,
}

SPANS = Table(
    "spans",
    "Everything that has a time on a host thread or a device stream.",
    {
        "start_ns": Column("int64", "ns", "start, from the rank's zero", unknown=None),
        "dur_ns": Column("int64", "ns", "duration, never negative"),
        "kind": Column("SpanKind", "", "what it is"),
        "name": Column("names", "", "as recorded"),
        "track": Column("int32", "", "row of `tracks`: host thread or device stream"),
        "step": Column("int32", "", "position in `Rank.steps`; device work belongs to the step that launched it"),
        "correlation": Column("int64", "", "joins an API call to the device work it starts"),
        "external_id": Column("int64", "", "the recorder's id of an op, or of the op open when this was called"),
    },
)
KERNELS = Table(
    "kernels",
    "Device kernels.",
    {
        "device": Column("int32", "", "ordinal as the process sees it"),
        "stream": Column("int64", "", "stream id"),
        "grid_x": Column("int32", "blocks", "grid size", unknown=0),
        "grid_y": Column("int32", "blocks", "grid size", unknown=0),
        "grid_z": Column("int32", "blocks", "grid size", unknown=0),
        "block_x": Column("int32", "threads", "block size", unknown=0),
        "block_y": Column("int32", "threads", "block size", unknown=0),
        "block_z": Column("int32", "threads", "block size", unknown=0),
        "registers": Column("int32", "per thread", "registers", "kineto on NVIDIA, nsight"),
        "shared_bytes": Column(
            "int64", "bytes", "static and dynamic shared memory of a block", "kineto on NVIDIA, nsight"
        ),
        "occupancy": Column(
            "float64", "share", "the recorder's estimate of achieved occupancy, 0..1", "kineto on NVIDIA"
        ),
        "graph_id": Column("int64", "", "CUDA graph it belongs to", "kineto since 2026, nsight", unknown=0),
    },
)
COPIES = Table(
    "copies",
    "Copies to, from and between devices.",
    {
        "device": Column("int32", "", "ordinal as the process sees it"),
        "stream": Column("int64", "", "stream id"),
        "bytes": Column("int64", "bytes", "size"),
        "direction": Column("Direction", "", "from where to where"),
        "host_memory": Column("HostMemory", "", "pageable or pinned"),
    },
)
SYNCS = Table(
    "syncs",
    "Synchronisations as the device recorder saw them (off by default in torch.profiler).",
    {
        "sync_kind": Column("SyncKind", "", "what waits on what"),
        "stream": Column("int64", "", "the waiting, or awaited, stream"),
        "wait_on_stream": Column("int64", "", "stream on which the awaited event was recorded", "kineto"),
        "wait_on_correlation": Column("int64", "", "correlation of the call that recorded the event", "kineto"),
    },
)
COLLECTIVES = Table(
    "collectives",
    "Communication kernels and the host calls that issued them, where their arguments were recorded.",
    {
        "operation": Column("names", "", "for example allreduce, _allgather_base"),
        "group": Column("names", "", "name of the process group; the same on all of its ranks", "kineto since 2024"),
        "group_ranks": Column("names", "", "ranks of the process group, as recorded (lists over 30 are cut)"),
        "group_description": Column("names", "", "for example mesh_tp, as the program described the process group"),
        "group_size": Column("int64", "ranks", "size of the process group"),
        "sequence": Column("int64", "", "number within the group", "kineto since 2026"),
        "peer": Column("int64", "rank", "of a send or recv: to, or from, which rank", "kineto since 2024"),
        "dtype": Column("names", "", "element type"),
        "in_elements": Column("int64", "elements", "per rank"),
        "out_elements": Column("int64", "elements", "per rank"),
    },
)
OPS = Table(
    "ops",
    "Framework ops.",
    {
        "shapes": Column("names", "", "input shapes as JSON text; empty when not recorded"),
        "dtypes": Column("names", "", "input types as JSON text; empty when not recorded"),
        "strides": Column("names", "", "input strides as JSON text; empty when not recorded", "kineto since 2024"),
        "scalars": Column(
            "names",
            "",
            "inputs that are numbers, as a JSON list of texts, of ops that compute by them; empty when not recorded",
            "kineto since 2023",
        ),
        "sequence": Column("int64", "", "shared by a forward op and its backward op"),
        "forward_thread": Column("int64", "", "of a backward op: the thread its forward op ran on; else 0 or -1"),
        "stack": Column(
            "names", "", "call stack, outermost last, `;` between frames; empty when not recorded", "kineto, old"
        ),
        "finished": Column("bool", "", "false: still open when recording ended, so its end is not real"),
    },
)
MEMORY = Table(
    "memory",
    "Allocations and frees of the framework's allocator.",
    {
        "device_type": Column("int32", "", "0 host, 1 CUDA or HIP, as torch numbers them"),
        "device": Column("int32", "", "ordinal; -1 host"),
        "bytes": Column("int64", "bytes", "size; negative when freed", unknown=None),
        "allocated_bytes": Column("int64", "bytes", "allocator's total in use afterwards"),
        "reserved_bytes": Column("int64", "bytes", "allocator's total reserved afterwards"),
    },
)
TRACKS = Table(
    "tracks",
    "Host threads and device streams.",
    {
        "process": Column("str", "", "process id, or device ordinal"),
        "thread": Column("str", "", "thread id, or stream id"),
        "device": Column("int32", "", "ordinal; -1 for a host thread"),
        "stream": Column("int64", "", "stream id; -1 for a host thread"),
        "name": Column("str", "", "as recorded"),
    },
)
LINKS = Table(
    "links",
    "Which span caused which.",
    {
        "from_id": Column("int64", "span id", "cause"),
        "to_id": Column("int64", "span id", "effect"),
        "kind": Column("LinkKind", "", "how"),
    },
)
LINES = Table(
    "lines",
    "Stretches of host time whose line of the user's code a second recording tells (see `trace.joining`), or samples "
    "(`trace.sampling`): rows without ids, of which the innermost counts. Empty where there is neither.",
    {
        "start_ns": Column("int64", "ns", "start, from the rank's zero", unknown=None),
        "dur_ns": Column("int64", "ns", "duration"),
        "track": Column("int32", "", "row of `tracks`: host thread"),
        "name": Column("names", "", "Python frame of the user's own code, as recorded"),
        "framework": Column("names", "", "innermost frame of what owns the training loop; empty: none, or not known"),
        "callee": Column("names", "", "function of a library that the line calls; empty: none, or not known"),
        "calls": Column("int64", "", "of it, that begin in this stretch"),
    },
)

TABLES = (SPANS, KERNELS, COPIES, SYNCS, COLLECTIVES, OPS, MEMORY, TRACKS, LINKS, LINES)


def enum_dtype(enum: type[Enum]) -> pd.CategoricalDtype:
    """The category dtype of an enum column: codes are positions in the enum."""
    return pd.CategoricalDtype([member.value for member in enum])


def check(frame: pd.DataFrame, table: Table) -> None:
    """Raise SchemaError unless `frame` has exactly the columns and dtypes of `table`."""
    if list(frame.columns) != list(table.columns):
        raise SchemaError(f"{table.name}: columns {list(frame.columns)}, expected {list(table.columns)}")
    for name, column in table.columns.items():
        dtype = frame[name].dtype
        if column.dtype in ENUMS:
            good = dtype == enum_dtype(ENUMS[column.dtype])
        elif column.dtype == "names":
            good = isinstance(dtype, pd.CategoricalDtype)
        elif column.dtype == "str":
            good = pd.api.types.is_string_dtype(dtype)
        else:
            good = dtype == np.dtype(column.dtype)
        if not good:
            raise SchemaError(f"{table.name}.{name}: dtype {dtype}, expected {column.dtype}")
