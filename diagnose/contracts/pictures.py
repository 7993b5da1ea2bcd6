"""Pictures as a Diagnosis holds them: bounded samples of single launches, copies, collectives, ops and memory."""

from msgspec import Struct

from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.kinds import KernelKind


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
