"""Which collectives run, of which process group, how big are they, and how much of them is exposed?

NCCL's collectives name their group. Of gloo's nothing is recorded, but each group has two worker threads of its own,
made one after the other when the group is made: their numbers are neighbours, and those of other groups are not (torch
2.13, 2 and 4 ranks). What torch coalesces (batch_isend_irecv) is one kernel that tells none of its transfers: launched
when the batch ends, it carries what its thread has asked for since the launch before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, once
from diagnose.facts.core.breakdown import NO_DEVICE, round_half_up
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.inputs import recorded_inputs
from diagnose.facts.core.spans import HostSpans, host_spans, launched_in
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.job import RECV, SEND, ProcessGroup

NO_SIZES = Missing("sizes of collectives", "Record with PyTorch 2.2 or newer and NCCL.")
SMALL_BYTES = 1 << 20  # A collective smaller than this is bound by latency, not bandwidth (our choice).

_ELEMENT_BYTES = (
    (1, ("byte", "char", "bool", "uint8", "int8", "float8")),
    (2, ("short", "half", "bfloat16", "uint16", "int16", "float16")),
    (4, ("int", "float", "uint32", "int32", "float32", "complexhalf")),
    (8, ("long", "double", "uint64", "int64", "float64", "complexfloat")),
    (16, ("complexdouble",)),
)
"""By the names of c10::ScalarType, in small letters and up to the first `_` (Float8_e4m3fn)."""


@dataclass(frozen=True)
class CollectiveTable:
    """Communication kernels, then collectives carried out on the host (gloo, mpi). Arrays of shape (collectives,)."""

    ids: IntArray
    times: Intervals
    operation: npt.NDArray[np.object_]
    """As recorded, else from the name of the op that launched it, else from its own, else "unknown"."""
    group_ranks: npt.NDArray[np.object_]  # Ranks of the process group as recorded; "" unknown.
    group_description: npt.NDArray[np.object_]  # What the program says of the process group, as mesh_tp; "" unknown.
    group_size: IntArray  # -1 unknown.
    bytes: IntArray  # The larger of input and output of one rank; -1 unknown.
    element_bytes: IntArray  # 0 unknown.
    on_host: npt.NDArray[np.bool_]
    in_steps: npt.NDArray[np.bool_]  # Starts in a used step.

    @cached_property
    def plain(self) -> npt.NDArray[np.str_]:
        """`operation` in small letters without `_`: backends and versions of PyTorch write it in several ways."""
        return np.array([str(one).replace("_", "").lower() for one in self.operation], dtype=str)


@fact
def collective_table(facts: Facts) -> CollectiveTable:
    """All collectives of the recording. Raises Missing without device work and without collectives on the host."""
    work, used, names = device_work(facts), steps(facts), facts.rank.spans["name"].cat
    host = _on_host(facts)
    if not len(work.ids) and not len(host.ids):
        raise NO_DEVICE
    mine = np.flatnonzero(work.work_class == WorkClass.COMMUNICATION)
    ids = np.concatenate((work.ids[mine], host.ids))
    start = np.concatenate((work.start_ns[mine], host.start_ns))
    told, row = facts.rank.collectives, told_rows(facts)
    tells = np.concatenate((_launched_by(facts)[mine], host.ids))
    codes = names.codes.to_numpy()[np.where(tells >= 0, tells, ids)]
    by_name = np.full(len(names.categories), "", dtype=object)
    for code in np.unique(codes):
        by_name[code] = _operation(str(names.categories[code]))
    return CollectiveTable(
        ids=ids,
        times=Intervals(start, np.concatenate((work.end_ns[mine], host.end_ns))),
        operation=np.where(row >= 0, texts(told["operation"], row), by_name[codes]),
        group_ranks=texts(told["group_ranks"], row),
        group_description=texts(told["group_description"], row),
        group_size=np.append(told["group_size"].to_numpy(), -1)[row],
        bytes=told_bytes(told, row),
        element_bytes=_element_bytes(told, row),
        on_host=np.arange(len(ids)) >= len(mine),
        in_steps=(start >= used.start_ns) & (start < used.end_ns),
    )


@once
def told_rows(facts: Facts) -> IntArray:
    """Row of `Rank.collectives` about each row of the table; -1 where nothing was recorded of it."""
    work = device_work(facts)
    mine = np.flatnonzero(work.work_class == WorkClass.COMMUNICATION)
    return np.append(_rows(facts)[mine], np.full(len(_on_host(facts).ids), -1))


def _on_host(facts: Facts) -> HostSpans:
    return host_spans(facts, SpanKind.COLLECTIVE, named=lambda name: name.startswith(("gloo:", "mpi:")))


def _rows(facts: Facts) -> IntArray:
    """Row of `Rank.collectives` of each device operation: its own, else that of the op it was launched in, or -1."""
    told, ops = facts.rank.collectives, host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)
    ops = ops.where(np.isin(ops.ids, told.index[told["operation"] != "wait"]))
    around = np.append(ops.ids, intervals.NONE)[launched_in(facts, ops)]
    own: IntArray = told.index.get_indexer(pd.Index(device_work(facts).ids)).astype(np.int64)
    return np.where(own >= 0, own, told.index.get_indexer(pd.Index(around)))


def _launched_by(facts: Facts) -> IntArray:
    """Id of the `nccl:` span that launched each device operation, or -1. Its name tells what a SendRecv kernel does."""
    started = host_spans(facts, SpanKind.COLLECTIVE, named=lambda name: name.startswith("nccl:"))
    return np.append(started.ids, intervals.NONE)[launched_in(facts, started)]


def texts(column: pd.Series[str], row: IntArray) -> npt.NDArray[np.object_]:
    """The text in each row of a column of `Rank.collectives`; "" in row -1."""
    labels = np.array([*column.cat.categories, ""], dtype=object)
    found: npt.NDArray[np.object_] = labels[np.append(column.cat.codes.to_numpy(), -1)[row]]
    return found


def _operation(name: str) -> str:
    """The operation in the name of a communication kernel or of a collective on the host."""
    started = name.startswith(("gloo:", "mpi:", "nccl:"))
    return name.partition(":")[2] if started else kinds.collective_of(name) or "unknown"


def _element_bytes(recorded: pd.DataFrame, row: IntArray) -> IntArray:
    """Bytes of one element by the dtype in each `row` of `Rank.collectives`; 0 where unknown or the row is -1."""
    names = [str(dtype).lower().partition("_")[0] for dtype in recorded["dtype"].cat.categories]
    sizes = [next((size for size, types in _ELEMENT_BYTES if name in types), 0) for name in names]
    found: IntArray = np.array([*sizes, 0], dtype=np.int64)[np.append(recorded["dtype"].cat.codes.to_numpy(), -1)[row]]
    return found


def told_bytes(told: pd.DataFrame, row: IntArray) -> IntArray:
    """The larger of input and output in each row of `Rank.collectives`; -1 unknown, as in row -1."""
    size = _element_bytes(told, row)
    most = told[["in_elements", "out_elements"]].max(axis=1).to_numpy().astype(np.int64)
    elements = np.append(most, -1)[row]
    known = (size > 0) & (elements >= 0) & (elements < 1 << 48)
    return np.where(known, elements * known * size, -1)


def bytes_of_inputs(facts: Facts, ids: IntArray, total: Callable[[list[int]], int]) -> IntArray:
    """`total` of the bytes of each span's inputs; -1 if no shape is known. Elements of unknown type take 4 bytes."""
    position, inputs = recorded_inputs(facts, ids)
    sizes = [[sum(one.bytes or 4 * one.elements for one in some) for some in given if some] for given in inputs]
    return np.array([*(total(size) if size else -1 for size in sizes), -1], dtype=np.int64)[position]


class SmallCollectives(Struct, frozen=True):
    """Collectives on the device in the used steps. Numbers are per step."""

    total_calls: int  # In all used steps together, of any size, and on the host too.
    calls: int  # Of less than SMALL_BYTES.
    unknown_calls: int  # Those whose size was not recorded.


@fact
def small_collectives(facts: Facts) -> SmallCollectives:
    """Raises Missing like the table, and if the size of none on the device is known."""
    table, count = collective_table(facts), steps(facts).count
    unknown, small = (~table.on_host & chosen for chosen in (table.bytes < 0, table.bytes < SMALL_BYTES))
    if unknown.any() and unknown[~table.on_host].all():
        raise NO_SIZES
    return SmallCollectives(
        total_calls=int(table.in_steps.sum()),
        calls=round_half_up(int((small & ~unknown & table.in_steps).sum()), count),
        unknown_calls=round_half_up(int((unknown & table.in_steps).sum()), count),
    )


class Uncoalesced(Struct, frozen=True):
    """Calls: each collective, and in place of a batch each of its transfers. Arrays of shape (calls,)."""

    row: IntArray  # Of the table of collectives.
    told: IntArray  # Row of `Rank.collectives`; -1 where nothing was recorded.


@once
def uncoalesced(facts: Facts) -> Uncoalesced:
    """The calls, in the order of the table. Raises Missing like it."""
    table, told = collective_table(facts), told_rows(facts)
    batches = np.flatnonzero((told < 0) & ~table.on_host & (table.operation == "coalesced"))
    transfers, kernel = _asked_for(facts)
    row = np.full(len(facts.rank.spans) + 1, intervals.NONE, dtype=np.int64)
    row[table.ids[batches]] = batches
    batch = row[kernel]
    alone = np.setdiff1d(np.arange(len(told)), batch)
    rows = np.concatenate((alone, batch[batch >= 0]))
    found = np.concatenate((told[alone], transfers[batch >= 0]))
    order = np.argsort(rows, kind="stable")
    return Uncoalesced(rows[order], found[order])


def _asked_for(facts: Facts) -> tuple[IntArray, IntArray]:
    """Rows of `Rank.collectives` that are sends and recvs on the host; id of the kernel launched next, or -1."""
    told, spans, work = facts.rank.collectives, facts.rank.spans, device_work(facts)
    start, track = spans["start_ns"].to_numpy(), spans["track"].to_numpy().astype(np.int64)
    asked = np.flatnonzero(told["operation"].isin([SEND, RECV]).to_numpy() & ~told.index.isin(work.ids))
    asked = asked[np.argsort(start[told.index.to_numpy()[asked]], kind="stable")]
    at = told.index.to_numpy()[asked]
    kernel = np.full(len(asked), intervals.NONE, dtype=np.int64)
    launched = np.flatnonzero((work.work_class == WorkClass.COMMUNICATION) & (work.launch >= 0))
    launched = launched[np.argsort(start[work.launch[launched]], kind="stable")]
    for thread in np.unique(track[at]).tolist():
        mine, some = np.flatnonzero(track[at] == thread), launched[track[work.launch[launched]] == thread]
        ids = np.append(work.ids[some], intervals.NONE)
        kernel[mine] = ids[np.searchsorted(start[work.launch[some]], start[at[mine]])]
    return asked, kernel


WORKERS = 2  # Threads of a group of gloo's (ProcessGroupGloo, threads of its default options).
APART = 4  # Thread numbers of one group differ by less.


class CallGroups(Struct, frozen=True):
    """For each call of `uncoalesced` its process group. Arrays of shape (calls,)."""

    group: IntArray  # Position in `groups`; -1 unknown.
    sequence: IntArray  # Number in the group, as recorded; -1 unknown.
    peer: IntArray  # The other rank of a transfer, as recorded; -1 unknown.
    groups: tuple[ProcessGroup, ...]


@once
def call_groups(facts: Facts) -> CallGroups:
    """The groups of all calls. Raises Missing like the table of collectives."""
    table, told, calls = collective_table(facts), facts.rank.collectives, uncoalesced(facts)
    row, on_host = calls.told, table.on_host[calls.row]
    known = {one.name: one for one in facts.rank.provenance.groups}
    keys = zip(*(texts(told[name], row) for name in ("group", "group_description", "group_ranks")), strict=True)
    named: dict[tuple[str, str, str], int] = {}
    group = np.array([named.setdefault(key, len(named)) if any(key) else -1 for key in keys], dtype=np.int64)
    groups = [known.get(name) or ProcessGroup(name, use, _ranks(ranks)) for name, use, ranks in named]
    workers = _workers(facts, table.ids[table.on_host])
    group[on_host] = np.where(workers >= 0, workers + len(groups), group[on_host])
    groups += [ProcessGroup("", "", ()) for _ in range(int(workers.max(initial=-1)) + 1)]
    return CallGroups(
        group=group,
        sequence=np.append(told["sequence"].to_numpy(), -1)[row],
        peer=np.append(told["peer"].to_numpy(), -1)[row],
        groups=tuple(groups),
    )


def _ranks(text: str) -> tuple[int, ...]:
    """The ranks in a recorded list; () where that was cut off or cannot be read."""
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    whole = isinstance(found, list) and all(isinstance(one, int) and 0 <= one < 1 << 31 for one in found)
    return tuple(found) if whole else ()


def _workers(facts: Facts, ids: IntArray) -> IntArray:
    """A number for the group of each collective on the host, by its worker thread; -1 of transfers, and if unknown."""
    track = facts.rank.spans["track"].to_numpy()[ids].astype(np.int64)
    joint = ~facts.rank.spans["name"].iloc[ids].isin(["gloo:send", "gloo:recv", "gloo:recvAnySource"]).to_numpy(bool)
    used = np.unique(track[joint]).tolist()
    names = [(str(facts.rank.tracks["thread"].iloc[one]), one) for one in used]
    threads = sorted((int(number), one) for number, one in names if number.isdecimal())
    found, last, group, count = dict[int, int](), -1 << 40, -1, 0
    for number, one in threads:
        if number - last > APART or count == WORKERS:
            group, count = group + 1, 0
        found[one], last, count = group, number, count + 1
    return np.where(joint, [found.get(one, -1) for one in track.tolist()], -1).astype(np.int64)
