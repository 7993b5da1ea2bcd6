"""A rank between its collectives: what a job of many ranks is put together from, small enough to cross processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.trace.intervals import IntArray
from diagnose.trace.model import ProcessGroup

BARRIERS = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Beginnings of the operations that no rank leaves before the last has come."""

FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("reduce", "gather")
SEND, RECV = "send", "recv"


@dataclass(frozen=True)
class Calls:
    """Collectives and transfers of one rank, in the order in which they were asked for. Arrays of shape (calls,).

    Times are Unix ns by the clock of the rank's machine.
    """

    ids: IntArray
    """Spans that show them; several transfers may share one."""
    operation: IntArray
    """Position in `Course.operations`."""
    group: IntArray
    """Position in `Course.groups`; -1 unknown."""
    sequence: IntArray
    """Number within the group as recorded; -1 unknown."""
    peer: IntArray
    """Of a transfer: to, or from, which rank; -1 unknown."""
    stage: IntArray
    """Of a transfer: the stage of the pipeline that gives or takes; -1 unknown. A rank may have several."""
    toward: IntArray
    """Of a transfer: 1 to, or from, the next stage, -1 the one before; 0 unknown."""
    bytes: IntArray
    """-1 unknown."""
    step: IntArray
    """Position in `Course.numbers`; -1 in none."""
    begin_ns: IntArray
    """When this rank was there."""
    end_ns: IntArray
    queue: IntArray
    """Calls of one number are carried out one after the other: a stream, a thread."""


@dataclass(frozen=True)
class Lane:
    """The rank's own time: what it does in order, and where it is held up. Arrays of shape (events,), in time.

    An event either asks for a call, waits until one is over, or begins a step. Between two events the rank goes on by
    itself for `own_ns`, of which it computes `compute_ns`.
    """

    call: IntArray
    """Position in `Calls`; -1 where a step begins."""
    waits: npt.NDArray[np.bool_]
    """Waits for the call, rather than asks for it."""
    from_ns: IntArray
    until_ns: IntArray
    """Later than `from_ns` only where it waits."""
    own_ns: IntArray
    """Since the event before."""
    compute_ns: IntArray


@dataclass(frozen=True)
class Course:
    """One rank of a job, from the begin of its first used step to the end of its last one."""

    rank: int
    world_size: int
    """0 unknown."""
    host: str
    """Ranks of one host share its clock; "" unknown."""
    on_cpu: bool
    numbers: tuple[int, ...]
    """Of the used steps."""
    bounds_ns: IntArray
    """Unix ns. Shape (steps + 1,)."""
    compute_ns: IntArray
    """Shape (steps,)."""
    operations: tuple[str, ...]
    groups: tuple[ProcessGroup, ...]
    """Of the calls. Where names are not recorded, `ranks` may be empty: not known."""
    known_groups: tuple[ProcessGroup, ...]
    """All that this rank is in, as torch.distributed tells."""
    calls: Calls
    lane: Lane
