"""Every table of an export: its rows and its columns, with their types, units and meaning. docs/queries.md shows it.

Every table begins with `rank`. Ids are those of spans, and count within a rank. Times are integer nanoseconds from the
rank's zero (`ranks.zero_unix_ns`). Unknown, and none, is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

DType = Literal["int64", "int32", "float64", "bool", "text"]
"""`text` is kept as a dictionary: a number in each row, and each text once."""


@dataclass(frozen=True)
class Column:
    """One column."""

    dtype: DType
    unit: str
    meaning: str
    null: int | None = None
    """What stands for unknown, or none, where it is made: null in the file. A float's NaN and a text's "" always do."""


@dataclass(frozen=True)
class Table:
    """One table."""

    name: str
    row: str
    """What a row is."""
    columns: dict[str, Column]
    """By name, in order, without `rank`."""


RANK = Column("int32", "", "number of the rank")

_ID = Column("int64", "", "span id")
_START = Column("int64", "ns", "start, from the rank's zero")
_DUR = Column("int64", "ns", "duration")
_NAME = Column("text", "", "name, as recorded")
_USED = Column("bool", "", "it is of a step that the report's figures are of")
_SITE = {
    "file": Column("text", "", "file of the user's code that led to it; null without call stacks"),
    "line": Column("int32", "", "line of that file", null=-1),
    "function": Column("text", "", "function there"),
}
_STEP = Column("int32", "", "number of the step; null outside of steps", null=-1)
_WORK = {
    "id": _ID,
    "name": _NAME,
    "start_ns": _START,
    "dur_ns": _DUR,
    "step": Column("int32", "", "number of the step that launched it; null outside of steps", null=-1),
    "used": _USED,
    "device": Column("int32", "", "ordinal of the device, as the process sees it", null=-1),
    "stream": Column("int64", "", "stream id", null=-1),
    "op": Column("text", "", "innermost op that was open at the launch"),
    "op_id": Column("int64", "", "its id in `ops`", null=-1),
    "outer_op": Column("text", "", "outermost op that was open at the launch: the one that the program called"),
    "outer_op_id": Column("int64", "", "its id in `ops`", null=-1),
    "launch_id": Column("int64", "", "span id of the launching call", null=-1),
    "launch_start_ns": Column("int64", "ns", "when that call starts", null=-1),
    "launch_dur_ns": Column("int64", "ns", "how long it takes", null=-1),
    "queue_delay_ns": Column("int64", "ns", "from the start of the call to the start of the work", null=-1),
    "queue_depth": Column(
        "int32",
        "",
        "work on the same stream, launched before and not finished when the call starts; 0: the queue is empty",
        null=-1,
    ),
}

RANKS = Table(
    "ranks",
    "A rank in brief. Times are of the mean step, as in the report.",
    {
        "file": Column("text", "", "name of its trace"),
        "format": Column("text", "", "of the trace"),
        "backend": Column("text", "", "cuda, rocm, cpu, or unknown: a device whose maker is not recorded"),
        "device_name": Column("text", "", "device that it works on; of several, all names"),
        "world_size": Column("int32", "", "ranks of the run"),
        "zero_unix_ns": Column("int64", "ns", "what 0 in the other tables is in Unix time: add it to compare ranks"),
        "measure": Column("text", "", "what bounds steps: device, host, one_step, or window where none are marked"),
        "recorded_steps": Column("int32", "", "marked steps"),
        "used_steps": Column("int32", "", "steps that figures are of; 0 where none are marked"),
        "window_start_ns": Column("int64", "ns", "start of what figures are of"),
        "window_end_ns": Column("int64", "ns", "end of what figures are of"),
        "step_ns": Column("int64", "ns", "mean step, as recorded"),
        "unprofiled_step_ns": Column("int64", "ns", "mean step without the profiler"),
        "overhead_ratio": Column("float64", "", "how many times as long recorded steps take"),
        "busy_ns": Column("int64", "ns", "the device works"),
        "compute_ns": Column("int64", "ns", "the device computes"),
        "exposed_communication_ns": Column("int64", "ns", "it communicates, and computes nothing"),
        "exposed_copy_ns": Column("int64", "ns", "it copies, and does nothing else"),
        "idle_ns": Column("int64", "ns", "it does nothing"),
        "work_not_recorded_ns": Column("int64", "ns", "while work ran that was not recorded"),
        "flops": Column("int64", "FLOP", "of matrix products, convolutions and attention, per step"),
        "mfu": Column("float64", "share", "model FLOPs utilisation, 0 to 1"),
        "peak_allocated_bytes": Column("int64", "bytes", "most that the allocator had in use, of its fullest device"),
        "peak_reserved_bytes": Column("int64", "bytes", "most that the allocator held, of its fullest device"),
    },
)
STEPS = Table(
    "steps",
    "A marked step.",
    {
        "step": Column("int32", "", "number in its mark"),
        "host_start_ns": Column("int64", "ns", "start of its mark on the host"),
        "host_end_ns": Column("int64", "ns", "end of its mark on the host"),
        "used": Column("bool", "", "the report's figures are of it"),
        "start_ns": Column("int64", "ns", "start, as figures count: the last device end of the step before", null=-1),
        "end_ns": Column("int64", "ns", "end, as figures count; null if it is not used", null=-1),
    },
)
KERNELS = Table(
    "kernels",
    "A kernel on a device.",
    {
        **_WORK,
        "kind": Column("text", "", "what it computes, as its name tells: gemm, attention, elementwise, ..."),
        "tensor_cores": Column("bool", "", "it uses Tensor Cores, as its name tells"),
        "dtype": Column("text", "", "what it multiplies in, as its name tells"),
        "grid_x": Column("int32", "blocks", "grid size", null=0),
        "grid_y": Column("int32", "blocks", "grid size", null=0),
        "grid_z": Column("int32", "blocks", "grid size", null=0),
        "block_x": Column("int32", "threads", "block size", null=0),
        "block_y": Column("int32", "threads", "block size", null=0),
        "block_z": Column("int32", "threads", "block size", null=0),
        "registers": Column("int32", "", "registers of a thread", null=-1),
        "shared_bytes": Column("int64", "bytes", "shared memory of a block", null=-1),
        "occupancy": Column("float64", "share", "the recorder's estimate of achieved occupancy, 0 to 1"),
        "graph_id": Column("int64", "", "CUDA graph that it belongs to", null=0),
        **_SITE,
    },
)
COPIES = Table(
    "copies",
    "A copy to, from or between devices.",
    {
        **_WORK,
        "bytes": Column("int64", "bytes", "size", null=-1),
        "direction": Column("text", "", "HtoD, DtoH, DtoD, PtoP, HtoH or unknown"),
        "host_memory": Column("text", "", "pageable, pinned, managed, none or unknown"),
        **_SITE,
    },
)
COLLECTIVES = Table(
    "collectives",
    "A collective, a send or a receive: a communication kernel, or what gloo or MPI runs on the host.",
    {
        **_WORK,
        "on_host": Column("bool", "", "carried out by a host thread"),
        "operation": Column("text", "", "as allreduce"),
        "bytes": Column("int64", "bytes", "the larger of input and output of one rank", null=-1),
        "group": Column("text", "", "name of the process group, the same on all of its ranks"),
        "group_description": Column("text", "", "what the program says of the group, as mesh_tp"),
        "group_ranks": Column("text", "", "ranks of the group, as recorded"),
        "group_size": Column("int64", "", "ranks in the group", null=-1),
        "sequence": Column("int64", "", "number within the group", null=-1),
        "peer": Column("int64", "", "rank that a send goes to, or a receive comes from", null=-1),
        "dtype": Column("text", "", "type of its elements"),
        **_SITE,
    },
)
OPS = Table(
    "ops",
    "A framework op on a host thread.",
    {
        "id": _ID,
        "name": _NAME,
        "start_ns": _START,
        "dur_ns": _DUR,
        "self_ns": Column("int64", "ns", "duration without the ops that it calls"),
        "parent_id": Column("int64", "", "op that calls it", null=-1),
        "step": _STEP,
        "used": _USED,
        "track": Column("int32", "", "host thread in `tracks`"),
        "shapes": Column("text", "", "shapes of its inputs, as JSON"),
        "dtypes": Column("text", "", "types of its inputs, as JSON"),
        "strides": Column("text", "", "strides of its inputs, as JSON"),
        "sequence": Column("int64", "", "shared by a forward op and its backward op", null=-1),
        "finished": Column("bool", "", "false: it was open when recording ended, so its end is not real"),
        **_SITE,
    },
)
LINES = Table(
    "lines",
    "A stretch of host time in a function of the user's own code. Functions that it calls have rows of their own.",
    {
        "start_ns": _START,
        "dur_ns": _DUR,
        "track": Column("int32", "", "host thread in `tracks`"),
        "file": Column("text", "", "file"),
        "line": Column("int32", "", "line where the function starts, or of the call"),
        "function": Column("text", "", "function"),
    },
)
IDLE_GAPS = Table(
    "idle_gaps",
    "A gap in which no device of the rank works, in the steps that figures are of.",
    {
        "start_ns": _START,
        "dur_ns": _DUR,
        "step": _STEP,
        "cause": Column("text", "", "why, as in the report's JSON: sync, loader, ops, python, ..."),
        "next_id": Column("int64", "", "span id of the work that ends it", null=-1),
        **_SITE,
    },
)
SPENDING = Table(
    "spending",
    "What part of the mean step goes to one thing; the rows add up to the mean step, as `diagnose compare` uses them.",
    {
        "part": Column(
            "text",
            "",
            "compute, exposed_communication, exposed_copy, idle, work_not_recorded; host without device work",
        ),
        "kind": Column("text", "", "kind of kernel, cause of the idle time, or what the host's threads do"),
        "op": Column("text", "", "innermost op that launched the work, or that ran on the host"),
        "name": Column("text", "", "of the kernel, collective or copy; null where small ones are put together"),
        "shapes": Column("text", "", "of the op's inputs"),
        "calls": Column("int64", "", "kernels, copies, gaps or calls of the op, in all used steps"),
        "ns": Column("int64", "ns", "per step"),
        **_SITE,
    },
)
SYNCS = Table(
    "syncs",
    "A synchronisation, as the device's recorder saw it.",
    {
        "id": _ID,
        "name": _NAME,
        "start_ns": _START,
        "dur_ns": _DUR,
        "step": _STEP,
        "kind": Column("text", "", "stream, context, event, stream_wait_event or unknown"),
        "stream": Column("int64", "", "stream that waits, or is waited for", null=-1),
        "wait_on_stream": Column("int64", "", "stream on which the event was recorded", null=-1),
    },
)
MEMORY = Table(
    "memory",
    "An allocation, or a free, of the framework's allocator.",
    {
        "id": _ID,
        "start_ns": Column("int64", "ns", "when, from the rank's zero"),
        "step": _STEP,
        "track": Column("int32", "", "host thread in `tracks`"),
        "device": Column("int32", "", "ordinal of the device; null on the host", null=-1),
        "bytes": Column("int64", "bytes", "size; negative when freed"),
        "allocated_bytes": Column("int64", "bytes", "in use afterwards", null=-1),
        "reserved_bytes": Column("int64", "bytes", "held afterwards", null=-1),
    },
)
SPANS = Table(
    "spans",
    "Everything that has a time: ops, calls, kernels, copies, annotations, Python frames, ...",
    {
        "id": _ID,
        "kind": Column("text", "", "op, runtime, driver, kernel, memcpy, memset, annotation, python, ..."),
        "name": _NAME,
        "start_ns": _START,
        "dur_ns": _DUR,
        "track": Column("int32", "", "host thread or device stream in `tracks`"),
        "step": Column("int32", "", "number of the step; device work is of the step that launched it", null=-1),
        "correlation": Column("int64", "", "joins a call to the device work that it starts", null=-1),
    },
)
TRACKS = Table(
    "tracks",
    "A host thread, or a stream of a device.",
    {
        "track": Column("int32", "", "its number"),
        "process": Column("text", "", "process id, or ordinal of the device"),
        "thread": Column("text", "", "thread id, or stream"),
        "name": Column("text", "", "name of the thread"),
        "device": Column("int32", "", "ordinal of the device; null of a thread", null=-1),
        "stream": Column("int64", "", "stream id; null of a thread", null=-1),
    },
)
LINKS = Table(
    "links",
    "That one span caused another.",
    {
        "from_id": Column("int64", "", "span id of the cause"),
        "to_id": Column("int64", "", "span id of the effect"),
        "kind": Column(
            "text",
            "",
            "launch: call to work; forward_of: forward op to backward op; waits_for: launch of awaited work to sync",
        ),
    },
)
FINDINGS = Table(
    "findings",
    "A finding of the report. They are of one rank: the one that the others wait for.",
    {
        "number": Column("int32", "", "place in the report, from 1 on"),
        "rule": Column("text", "", "id of the rule"),
        "code": Column("text", "", "its code, as DL02"),
        "title": Column("text", "", "what is found"),
        "saving_low_ns": Column("int64", "ns", "saving per step, at least"),
        "saving_ns": Column("int64", "ns", "saving per step, most likely"),
        "saving_high_ns": Column("int64", "ns", "saving per step, at most"),
        "share_of_step": Column("float64", "share", "likely saving over the step"),
        "confidence": Column("text", "", "high, medium or low"),
        "minor": Column("bool", "", "it is below 1 % of the step"),
        "ranks": Column("int32", "", "on how many ranks the same was found"),
        "evidence": Column("text", "", "its first sentence"),
        "fix": Column("text", "", "its first fix"),
        **_SITE,
    },
)

TABLES = (
    RANKS,
    STEPS,
    KERNELS,
    COPIES,
    COLLECTIVES,
    OPS,
    LINES,
    IDLE_GAPS,
    SPENDING,
    SYNCS,
    MEMORY,
    SPANS,
    TRACKS,
    LINKS,
    FINDINGS,
)
"""In the order in which they are shown."""


def named(names: Sequence[str]) -> tuple[str, ...]:
    """These tables, or all if none is named. Raises ValueError if there is no such table."""
    every = tuple(table.name for table in TABLES)
    for name in names:
        if name not in every:
            raise ValueError(f"There is no table {name}. There are: {', '.join(every)}.")
    return tuple(names) or every
