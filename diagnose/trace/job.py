"""A job of many ranks: what each does between its collectives, and what they do together. It crosses processes.

Packed, an integer takes some 1 to 3 bytes instead of 8: times rise, sizes repeat and positions are small.
"""

from __future__ import annotations

import io
import pickle
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.trace.intervals import IntArray

_Array = npt.NDArray[Any]
_INTEGERS = tuple((np.iinfo(one).max, one) for one in (np.int8, np.int16, np.int32, np.int64))


def packed(sequence: CollectiveSequence) -> bytes:
    """The sequence in few bytes, for a process of the same version of this program."""
    written = io.BytesIO()
    _Packer(written, protocol=5).dump(sequence)
    return zlib.compress(written.getbuffer(), 1)


def unpacked(data: bytes) -> CollectiveSequence:
    """The sequence that `packed` wrote: by pickle, so only for what our own processes sent."""
    found: CollectiveSequence = pickle.loads(zlib.decompress(data))
    return found


class _Packer(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        """How arrays of integers and long lists of ranks are written."""
        if isinstance(value, np.ndarray) and value.dtype == np.int64 and value.ndim == 1 and len(value):
            return _array, _narrowed(value)
        if isinstance(value, ProcessGroup):
            return _group, (value.name, value.use, *_narrowed(np.array(value.ranks, dtype=np.int64)))
        return NotImplemented


def _narrowed(values: _Array) -> tuple[int, bool, str, bytes]:
    """(first value, whether differences follow, their type, the values or differences): arguments of `_array`."""
    plain, steps = _narrow(values), _narrow(np.diff(values))
    first = int(values[0]) if len(values) else 0
    if len(values) and steps.itemsize < plain.itemsize:
        return first, True, steps.dtype.str, steps.tobytes()
    return first, False, plain.dtype.str, plain.tobytes()


def _narrow(values: _Array) -> _Array:
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    return values.astype(next(one for most, one in _INTEGERS if -most <= low + 1 and high <= most))


def _array(first: int, differ: bool, dtype: str, data: bytes) -> _Array:
    values = np.frombuffer(data, dtype).astype(np.int64)
    return np.cumsum(np.concatenate(([first], values))) if differ else values


@lru_cache(maxsize=1 << 16)
def _group(name: str, use: str, first: int, differ: bool, dtype: str, data: bytes) -> ProcessGroup:
    return ProcessGroup(name, use, tuple(_array(first, differ, dtype, data).tolist()))


BARRIERS = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Beginnings of the operations that no rank leaves before the last has come."""

SEND, RECV = "send", "recv"


class ProcessGroup(Struct, frozen=True):
    """Ranks that communicate with each other, as torch.distributed knows them."""

    name: str  # The same on all of its ranks.
    use: str  # What the program says it is for, such as "mesh_tp"; "" if it says nothing.
    ranks: tuple[int, ...]


class Calls(Struct, frozen=True):
    """Collectives and transfers of one rank, in the order in which they were asked for. Arrays of shape (calls,).

    Times are Unix ns by the clock of the rank's machine.
    """

    ids: IntArray  # Spans that show them; several transfers may share one.
    operation: IntArray  # Position in `CollectiveSequence.operations`.
    group: IntArray  # Position in `CollectiveSequence.groups`; -1 unknown.
    members: IntArray  # Size of the group; -1 unknown.
    sequence: IntArray  # Number within the group as recorded; -1 unknown.
    peer: IntArray  # Of a transfer: to, or from, which rank; -1 unknown.
    stage: IntArray  # Of a transfer: the pipeline's stage that gives or takes; -1 unknown. A rank may have several.
    toward: IntArray  # Of a transfer: 1 to, or from, the next stage, -1 the one before; 0 unknown.
    bytes: IntArray  # -1 unknown.
    step: IntArray  # Position in `CollectiveSequence.numbers`; -1 in none.
    begin_ns: IntArray  # When this rank was there.
    end_ns: IntArray
    queue: IntArray  # Calls of one number are carried out one after the other: a stream, a thread.
    after: IntArray  # The call of another queue that this one had to wait for; -1 none.


class Lane(Struct, frozen=True):
    """The rank's own time: what it does in order, and where it is held up. Arrays of shape (events,), in time.

    An event either asks for a call, waits until one is over, or begins a step. Between two events the rank goes on by
    itself for `own_ns`, of which it computes `compute_ns`.
    """

    call: IntArray  # Position in `Calls`; -1 where a step begins.
    waits: npt.NDArray[np.bool_]  # Waits for the call, rather than asks for it.
    from_ns: IntArray
    until_ns: IntArray  # Later than `from_ns` only where it waits.
    own_ns: IntArray  # Since the event before.
    compute_ns: IntArray


class Work(Struct, frozen=True):
    """What a rank is asked to compute in the mean step, by kind of kernel or op. Arrays of shape (kinds,)."""

    kind: IntArray  # CRC-32 of the name.
    size: npt.NDArray[np.float64]  # Threads of kernels; on the CPU elements that ops take, 0 unknown.
    ns: npt.NDArray[np.float64]  # What it takes on this rank.


class CollectiveSequence(Struct, frozen=True):
    """One rank of a job, from the begin of its first used step to the end of its last one."""

    rank: int
    world_size: int  # 0 unknown.
    machine: int  # Tells machines apart, each of which has one clock; -1 unknown.
    device: int  # Index of the device that it computes on; -1 none or several.
    on_cpu: bool
    numbers: tuple[int, ...]  # Of the used steps; (0,) of a window.
    window: bool  # No steps are marked: the recorded window stands for one.
    bounds_ns: IntArray  # Unix ns. Shape (steps + 1,).
    compute_ns: IntArray  # Shape (steps,).
    work: Work
    operations: tuple[str, ...]
    groups: tuple[ProcessGroup, ...]  # Of the calls. Where names are not recorded, `ranks` may be empty: not known.
    known_groups: tuple[ProcessGroup, ...]  # All that this rank is in, as torch.distributed tells.
    calls: Calls
    lane: Lane


class Pipeline(Struct, frozen=True):
    """Ranks that hand work on to each other."""

    ranks: tuple[int, ...]  # In order of their first stage.
    rank_of: tuple[int, ...]  # The rank of each stage.

    def peers(self, rank: int, stage: IntArray, toward: IntArray) -> IntArray:
        """The other rank of a rank's transfers, by stage (-1: the first of the rank) and direction; -1 unknown."""
        own = np.where(stage >= 0, stage, self.rank_of.index(rank))
        other = own + toward
        known = (toward != 0) & (other >= 0) & (other < len(self.rank_of))
        return np.where(known, np.array(self.rank_of)[np.clip(other, 0, len(self.rank_of) - 1)], -1)

    def peers_of(self, one: CollectiveSequence) -> IntArray:
        """The other rank of each call, by stage and direction, else as recorded if a neighbour; -1 unknown or none."""
        by_side = self.peers(one.rank, one.calls.stage, one.calls.toward)
        place = {rank: at for at, rank in enumerate(self.ranks)}
        near = [rank for rank in self.ranks if abs(place[rank] - place[one.rank]) == 1]
        return np.where((one.calls.toward == 0) & np.isin(one.calls.peer, near), one.calls.peer, by_side)


class JoinPoint(Struct, frozen=True):
    """One collective or transfer with all the ranks that took part."""

    group: int  # Position in `Job.groups`; -1 of transfers.
    transfer: bool  # From one rank to another, rather than between all.
    ranks: IntArray  # Positions of the sequences. Of a transfer: from, to.
    calls: IntArray  # Which call of each.
    arrived_ns: IntArray
    ended_ns: IntArray
    whole: bool = True  # All that took part were recorded; else the last may have come later than the last recorded.

    @property
    def last_ns(self) -> int:
        """When the last one came."""
        return int(self.arrived_ns.max())

    @property
    def wait_ns(self) -> IntArray:
        """For how long each waited for the last one."""
        return np.clip(self.last_ns - self.arrived_ns, 0, self.ended_ns - self.arrived_ns)

    @property
    def transfer_ns(self) -> IntArray:
        """What each spent in it after all had come."""
        return np.maximum(self.ended_ns - self.last_ns, 0)


class Job(Struct, frozen=True):
    """Ranks that train together, in the steps that all of them use, on one clock."""

    sequences: tuple[CollectiveSequence, ...]
    groups: tuple[ProcessGroup, ...]  # As far as their ranks are known; those of one use are told apart by ranks.
    group_of: tuple[IntArray, ...]  # Of each rank, of each call: position in `groups`; -1 unknown.
    join_points: tuple[JoinPoint, ...]
    pipelines: tuple[Pipeline, ...]
    ahead_ns: IntArray  # By how much the clock of each rank was ahead. Shape (ranks,).
    clock_error_ns: int  # By how much the ends of collectives still differ between ranks, in the median.

    @property
    def ranks(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(sequence.rank for sequence in self.sequences)

    @property
    def window(self) -> bool:
        """No steps are marked: the recorded window stands for one."""
        return any(sequence.window for sequence in self.sequences)

    @property
    def step_ns(self) -> int:
        """Mean step: from when the last rank begins to when the last one ends."""
        begin = max(int(sequence.bounds_ns[0]) for sequence in self.sequences)
        end = max(int(sequence.bounds_ns[-1]) for sequence in self.sequences)
        return (end - begin) // max(len(self.sequences[0].numbers), 1)
