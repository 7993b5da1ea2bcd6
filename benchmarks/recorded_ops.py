"""What single ops took in recordings: distinct ones, each with the median of its calls.

Calls that something else on the device overlaps are left out.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diagnose.costs.known import Family, Grade
from diagnose.costs.ops import FAMILIES, GRADES, costed_ops, grades_in
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.inputs import Inputs, peaks, recorded_inputs
from diagnose.facts.core.work import WorkTable, work_table
from diagnose.source import recording
from diagnose.trace import intervals
from diagnose.trace.costs import DTYPES
from diagnose.trace.hardware import Peaks

Kind = tuple[Family, str, Grade]
Mask = npt.NDArray[np.bool_]

SHORTEST_NS = 10_000  # Shorter ops tell little of rates (our choice). Of those that multiply these are left out.


@dataclass(frozen=True)
class Timed:
    """One op that was timed."""

    flops: float
    bytes: float
    took_ns: float


@dataclass(frozen=True)
class Recorded:
    """A distinct op of a recording."""

    source: str  # The recording, as a path in the corpus.
    device: Peaks
    kind: Kind
    name: str
    dims: tuple[int, ...]  # As `MatmulOps.dims`; of what multiplies nothing none.
    timed: Timed
    rows: tuple[int, ...] = ()  # Its calls, in `costs.ops.Products`.

    @property
    def op(self) -> tuple[object, ...]:
        """What makes it the same op as one of another recording."""
        return self.device.name, self.kind, self.name, self.dims, self.timed.flops, self.timed.bytes


def recordings(corpus: Path) -> Iterator[tuple[str, Facts]]:
    """Recordings in a corpus of devices whose peaks are known, and where they are in it."""
    public = [one for one in (corpus / "kineto").rglob("*") if one.name.endswith((".json", ".json.gz"))]
    own = {one.parent for one in (corpus / "h100").rglob("rank0.trace.*")}
    for path in sorted([*public, *own]):
        facts = Facts(recording.read(recording.find([path]).ranks[0]))
        if optional(peaks, facts) is not None and optional(work_table, facts) is not None:
            yield path.relative_to(corpus).as_posix(), facts


def ops_of(source: str, facts: Facts) -> list[Recorded]:
    """Distinct ops of a recording. Raises Missing without device work, or if the device's peaks are not known."""
    return [*_multiplying(source, facts), *_memory_bound(source, facts)]


def _multiplying(source: str, facts: Facts) -> Iterator[Recorded]:
    products, device = costed_ops(facts).products, peaks(facts)
    table, calls = products.table, defaultdict[tuple[int, ...], list[int]](list)
    grade, undisturbed = grades_in(products, np.maximum(products.dtype, 0)), _undisturbed(facts)
    columns = (products.family, products.dtype, grade, table.name, *table.dims.T, table.flops, table.bytes)
    for row in np.flatnonzero((table.flops > 0) & (table.bytes > 0) & (products.dtype >= 0)).tolist():
        calls[tuple(int(column[row]) for column in columns)].append(row)
    for (family, dtype, graded, name, *dims, flops, moved), rows in calls.items():
        took = table.dur_ns[rows][undisturbed[rows]]
        if len(took) and np.median(took) >= SHORTEST_NS:
            kind = (FAMILIES[family], DTYPES[dtype], GRADES[graded])
            timed = Timed(flops, moved, float(np.median(took)))
            yield Recorded(source, device, kind, table.names[name], tuple(dims), timed, tuple(rows))


def _undisturbed(facts: Facts) -> Mask:
    """Which rows of `Products` have no kernel that anything else on the device overlaps."""
    ops = costed_ops(facts)
    overlapped = ops.row[(ops.row >= 0) & ~alone(work_table(facts))]
    return ~np.isin(np.arange(len(ops.products.flops)), overlapped)


def alone(table: WorkTable) -> Mask:
    """Which device operations nothing on another stream overlaps."""
    found = np.ones(len(table.ids), dtype=bool)
    for track in np.unique(table.track):
        mine = table.track == track
        others = intervals.union(intervals.of(table.start_ns[~mine], table.end_ns[~mine]))
        found[mine] = intervals.covered(intervals.of(table.start_ns[mine], table.end_ns[mine]), others) == 0
    return found


MEMORY = (Family.MEMORY, "", Grade.ANY)
_POINTWISE = """
add add_ sub mul mul_ div div_ pow neg exp relu relu_ gelu silu sigmoid tanh sqrt rsqrt clamp_min clamp_min_ addcmul_
addcdiv_ threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward copy_
"""
READ_AND_WRITTEN = frozenset(_POINTWISE.split())
"""Ops of aten that read each input once and write one output, in one kernel."""

_ESCAPED = re.compile(r"\\[nrt]")  # White space of indented JSON, as the reader keeps it.


def _memory_bound(source: str, facts: Facts) -> Iterator[Recorded]:
    """Memory-bound ops whose tensors are dense and of one shape, however short these ops are."""
    table, device, names = work_table(facts), peaks(facts), facts.rank.spans["name"].cat
    position, inputs = recorded_inputs(facts, table.op)
    name = names.codes.to_numpy()[table.op]
    _, at, kernels = np.unique(table.op, return_inverse=True, return_counts=True)
    strides = facts.rank.ops["strides"].reindex(table.op).astype(str).to_numpy()
    calls = defaultdict[tuple[int, int, str], list[int]](list)
    for row in np.flatnonzero((position >= 0) & alone(table) & (kernels[at.reshape(-1)] == 1)).tolist():
        calls[int(name[row]), int(position[row]), strides[row]].append(int(table.dur_ns[row]))
    for (code, place, laid), took in calls.items():
        op = str(names.categories[code])
        moved = _streamed(op.removeprefix("aten::"), inputs[place], laid)
        if moved:
            yield Recorded(source, device, MEMORY, op, (), Timed(0.0, moved, float(np.median(took))))


def _streamed(op: str, inputs: Inputs, strides: str) -> int:
    """Bytes that a memory-bound op reads and writes; 0 of what is not dense and of one shape, and of other ops."""
    tensors = [tensor for one in inputs for tensor in one if tensor.elements != 1]
    sizes = [tensor.bytes or 0 for tensor in tensors]
    if op not in READ_AND_WRITTEN or len({tensor.shape for tensor in tensors}) != 1 or not all(sizes):
        return 0
    laid = [tuple(one) for one in json.loads(_ESCAPED.sub(" ", strides) or "[]") if one][: len(tensors)]
    if laid and (len(set(laid)) != 1 or not _dense(tensors[0].shape, laid[0])):
        return 0
    if op == "copy_":
        return sum(sizes) if len(sizes) == 2 else 0
    return sum(sizes) + (sizes[0] if op.endswith("_") else max(sizes))


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor's elements lie one beside the other, in whatever order of its dimensions."""
    told = sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1)
    return [stride for stride, _ in told] == list(accumulate((size for _, size in told[:-1]), mul, initial=1))
