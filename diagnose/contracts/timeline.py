"""What a page draws, as a Diagnosis holds it: a timeline, and bounded samples of launches, copies, ops and memory.

A timeline is lanes, and marks in them as columns. Times are ns from its start.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.breakdown import IDLE_CAUSES, PATH_CAUSES, TimeCause
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.kinds import KernelKind


class MarkKind(str, Enum):
    """What a mark is, for its colour.

    Idle gaps have their cause, with IDLE before it; stretches of the critical path that no mark of another lane is like
    have their kind, with PATH before it.
    """

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    OP = "op"
    ANNOTATION = "annotation"
    LOADER = "loader"
    COLLECTIVE = "collective"
    LAUNCH = "launch"
    COPY_CALL = "copy_call"
    SYNC = "sync"
    ALLOCATION = "allocation"
    CALL = "call"
    WORK_NOT_RECORDED = "work_not_recorded"


IDLE = "idle/"
PATH = "path/"
MARK_OF_PATH = {
    TimeCause.COMPUTE: MarkKind.COMPUTE,
    TimeCause.COMMUNICATION: MarkKind.COMMUNICATION,
    TimeCause.COPY: MarkKind.COPY,
    TimeCause.LAUNCH: MarkKind.LAUNCH,
    TimeCause.ALLOCATION: MarkKind.ALLOCATION,
    TimeCause.SYNC: MarkKind.SYNC,
    TimeCause.LOADER: MarkKind.LOADER,
    TimeCause.OTHER_RANK: MarkKind.COLLECTIVE,
    TimeCause.HOST_COPY: MarkKind.COPY_CALL,
    TimeCause.OPS: MarkKind.OP,
}
"""Stretches of the critical path that look like the marks that they run through."""
MARK_KINDS = list(MarkKind)
KINDS = (
    *(kind.value for kind in MarkKind),
    *(IDLE + cause.value for cause in IDLE_CAUSES),
    *(PATH + cause.value for cause in PATH_CAUSES if cause not in MARK_OF_PATH),
)
"""The kinds of marks, by number."""


class Lane(Struct, frozen=True):
    """One row of the timeline."""

    name: str
    group: str  # "idle", "path", "device" or "host".


class Column(Struct, frozen=True):
    """Numbers as base64 text in JSON, little-endian, as plotly takes them."""

    dtype: str  # As numpy and plotly name it: "f8", "u2", ...
    bdata: bytes

    @property
    def values(self) -> npt.NDArray[np.generic]:
        """The numbers."""
        return np.frombuffer(self.bdata, dtype=f"<{self.dtype}")

    @classmethod
    def of(cls, values: npt.NDArray[np.generic], dtype: str) -> Column:
        """A column of these numbers; they must fit into `dtype`."""
        return cls(dtype, values.astype(f"<{dtype}").tobytes())


class MarkTable(Struct, frozen=True):
    """Marks of a part of the timeline, as columns. Times are ns from the timeline's start."""

    start_ns: int
    end_ns: int  # The part of the timeline they cover.
    resolution_ns: int  # What is shorter was joined to its neighbours; 0: nothing was.
    lane: Column  # Position in `Timeline.lanes`.
    start: Column
    dur: Column
    label: Column  # Position in `Timeline.labels`.
    kind: Column  # Position in `Timeline.kinds`.
    count: Column  # How many operations were joined to it; label and kind are the longest one's.
    filled: Column  # ns of `dur` in which these ran; the rest lies between them.


class Timeline(Struct, frozen=True):
    """The used steps as marks in lanes. Times are ns from the first mark that belongs to them."""

    dur_ns: int
    steps: tuple[int, ...]  # Numbers of the used steps; empty where no marked one could be used.
    bounds_ns: tuple[int, ...]  # Step k is [k, k + 1). The first begins after 0 where the host had run ahead.
    lanes: tuple[Lane, ...]
    labels: tuple[str, ...]
    kinds: tuple[str, ...]
    tables: tuple[MarkTable, ...]  # All steps; then, where that had to be merged, one step in more detail.
    left_out: tuple[str, ...]  # What has no lane, in words.


class Spot(Struct, frozen=True):
    """A place on the timeline; ns from its start."""

    lane: int
    start_ns: int
    dur_ns: int


class LaunchCurve(Struct, frozen=True):
    """How far the host was ahead of the device, over time: one row for each of up to MOST_POINTS equal pieces of time
    in which something was launched."""

    moment_ns: tuple[int, ...]  # Middle of the piece, from the timeline's start.
    depth_least: tuple[int, ...]
    depth_median: tuple[int, ...]  # Operations launched and not finished when a call began.
    delay_median_ns: tuple[int, ...]  # From the call's start to the operation's.


class CopySize(Struct, frozen=True):
    """Copies of one direction, kind of host memory and size, in the used steps."""

    direction: Direction
    host_memory: HostMemory
    bytes: int
    calls: int  # In all used steps.
    ns: int  # Median of one copy.


class CopySizes(Struct, frozen=True):
    """Copies by size, those that take longest together first, MOST_POINTS at most."""

    sizes: tuple[CopySize, ...]
    link_bytes_per_s: float | None  # Nominal rate of the link to the host, one direction; None if not known.


class CollectiveBar(Struct, frozen=True):
    """One communication kernel."""

    operation: str
    start_ns: int  # From the timeline's start.
    dur_ns: int
    exposed_ns: int  # Of it, while no compute ran.
    bytes: int | None


class RooflineOp(Struct, frozen=True):
    """Calls of one op with one size, in the used steps."""

    name: str
    dims: tuple[int, int, int]  # M, N, K of the product it comes down to; -1 unknown.
    dtype: str  # What it multiplies in; "" unknown.
    calls: int  # In all used steps.
    ns: int  # Device time, per step.
    flops: int  # Of one call.
    bytes: int  # That one call must move at least.
    flops_per_s: float


class RooflineKind(Struct, frozen=True):
    """All kernels of one kind whose op has a known cost, in the used steps."""

    kind: KernelKind
    calls: int  # Ops, in all used steps.
    ns: int  # Device time, per step.
    flops: int  # Of all calls, in all used steps, as `bytes`.
    bytes: int  # That they must move at least: each operand once.
    flops_per_s: float


class RooflinePicture(Struct, frozen=True):
    """Ops under the device's roof."""

    ops: tuple[RooflineOp, ...]  # Longest first, MOST_POINTS at most.
    device: str
    bytes_per_s: float  # Of the device's memory, nominal.
    flops_per_s: dict[str, float]  # Nominal, by what is multiplied in: of those that the ops use.
    kinds: tuple[RooflineKind, ...] = ()  # All ops together by kind of kernel, longest first.


class MemoryCurve(Struct, frozen=True):
    """The allocator's memory on one device over time, in up to MOST_POINTS equal pieces of time."""

    device: int
    moment_ns: tuple[int, ...]  # Start of the piece, from the timeline's start; before it where it is negative.
    allocated_bytes: tuple[int, ...]  # The most in each piece, as `reserved_bytes`.
    reserved_bytes: tuple[int, ...]
    allocated_least_bytes: tuple[int, ...] = ()  # The least in each piece.


class Pictures(Struct, frozen=True):
    """What a page draws besides the timeline. None: this recording cannot give it."""

    launches: LaunchCurve | None
    copies: CopySizes | None
    collectives: tuple[CollectiveBar, ...] | None
    roofline: RooflinePicture | None
    memory: tuple[MemoryCurve, ...] | None
