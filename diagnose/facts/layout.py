"""What is moved without being changed: tensors copied, cast and transposed, and who asks for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from diagnose.facts.base import Facts, Missing, fact
from diagnose.facts.breakdown import round_half_up
from diagnose.facts.steps import steps
from diagnose.facts.work import WorkTable, work_table
from diagnose.trace import enums, kinds, nesting
from diagnose.trace.enums import Direction, SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import Activity, KernelKind

Mask = npt.NDArray[np.bool_]

NO_SHAPES = Missing("shapes", "Record with record_shapes=True.")

UNKNOWN = -1

_SIZES = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::complex<float>": 8, "short int": 2, "bool": 1}
_SIZES |= {"c10::BFloat16": 2, "c10::Half": 2, "unsigned char": 1, "signed char": 1}
_SIZES |= {f"c10::Float8_{kind}": 1 for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")}
_ESCAPED = re.compile(r"\\[nrt]")  # White space of indented JSON, as the reader keeps it.
_MOST_DIMENSIONS, _MOST_ELEMENTS = 64, 2**48  # Torch's most, and more than any device holds: bounds hostile sizes.


class Tensor(NamedTuple):
    """A tensor that was an op's input."""

    shape: tuple[int, ...]
    dtype: str
    """As torch writes it; "" if not recorded."""

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def bytes(self) -> int | None:
        """Its size; None if its type is not known."""
        size = _SIZES.get(self.dtype)
        return size * self.elements if size else None


Inputs = tuple[tuple[Tensor, ...], ...]
"""The inputs of a call: of a tensor one, of a list of tensors all; of what is no tensor, or was not recorded, none."""


def recorded_inputs(facts: Facts, ops: IntArray) -> tuple[IntArray, list[Inputs]]:
    """The inputs of ops: for each op its position in the list of distinct inputs, or -1. Shape (ops,).

    Ops that are -1 or whose shapes were not recorded have none. Lists of more than 30 tensors are recorded empty
    (torch's TENSOR_LIST_DISPLAY_LENGTH_LIMIT), and so are single numbers in recordings without types.
    """
    table = facts.rank.ops
    row = table.index.get_indexer(pd.Index(ops))
    shapes, dtypes = table["shapes"].cat, table["dtypes"].cat
    pairs = np.stack((shapes.codes.to_numpy()[row], dtypes.codes.to_numpy()[row])).astype(np.int64)
    pairs[:, row < 0] = -1
    distinct, position = np.unique(pairs, axis=1, return_inverse=True)
    texts = [(str(shapes.categories[a]), str(dtypes.categories[b])) if a >= 0 else ("", "") for a, b in distinct.T]
    found = [_inputs(*text) for text in texts]
    known = np.array([bool(text) for text, _ in texts], dtype=bool)
    position = position.reshape(-1)
    return np.where(known[position], position, UNKNOWN) if len(known) else position, found


def _inputs(shapes: str, dtypes: str) -> Inputs:
    sizes, types = _list(shapes), _list(dtypes)
    named = [one if isinstance(one, str) else "" for one in types] + [""] * max(len(sizes) - len(types), 0)
    return tuple(tuple(_tensors(size, dtype)) for size, dtype in zip(sizes, named, strict=False))


def _list(text: str) -> list[object]:
    try:
        value = json.loads(_ESCAPED.sub(" ", text)) if text else []
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _tensors(size: object, dtype: str) -> Iterator[Tensor]:
    """The tensors of one input. An empty size is a tensor of one element where the type says that it is a tensor."""
    if not isinstance(size, list) or (not size and dtype not in _SIZES):
        return
    for one in size if size and isinstance(size[0], list) else [size]:
        shape = tuple(n for n in one if type(n) is int and n >= 0) if isinstance(one, list) else ()
        whole = isinstance(one, list) and len(shape) == len(one) <= _MOST_DIMENSIONS
        if whole and prod(shape) <= _MOST_ELEMENTS:
            yield Tensor(shape, "" if dtype == "TensorList" else dtype)


def named(facts: Facts, ids: IntArray, *wanted: str) -> Mask:
    """Which of these spans (-1: none) have one of the names, or one that begins with it if it ends in `*`."""
    names = facts.rank.spans["name"].cat
    exact = {name for name in wanted if not name.endswith("*")}
    heads = tuple(name[:-1] for name in wanted if name.endswith("*"))
    accepted = np.array([name in exact or name.startswith(heads) for name in names.categories], dtype=bool)
    return np.append(accepted, False)[np.where(ids >= 0, names.codes.to_numpy()[ids], -1)]


def eager(facts: Facts) -> Mask:
    """Which rows of the work table torch's own ops launched, one kernel after the other; by name where no op is known.

    Not what Triton, Transformer Engine, Liger, Apex and other extensions launch: that is in ops of their own, or none.
    """
    table, names = work_table(facts), facts.rank.spans["name"].cat
    of_torch = np.array(["at::native::" in name for name in names.categories], dtype=bool)
    return np.where(table.op >= 0, named(facts, table.op, "aten::*"), of_torch[names.codes.to_numpy()[table.ids]])


def under(facts: Facts, rows: Mask, *annotations: str) -> IntArray:
    """Id of the innermost annotation of such a name open at the launch of each row of the work table, or -1.

    Only for `rows`, as a mask; -1 for the others. Names are as in `named`. Shape (operations,).
    """
    table, spans = work_table(facts), facts.rank.spans
    ids = np.flatnonzero(spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.ANNOTATION))
    ids = ids[named(facts, ids, *annotations)]
    start, track = spans["start_ns"].to_numpy(), spans["track"].to_numpy().astype(np.int64)
    end = start + spans["dur_ns"].to_numpy()
    asked = np.flatnonzero(rows & (table.launch >= 0))
    launch = table.launch[asked]
    found = nesting.innermost_at(start[launch], track[launch], track[ids], start[ids], end[ids])
    result = np.full(len(table.ids), UNKNOWN, dtype=np.int64)
    result[asked[found >= 0]] = ids[found[found >= 0]]
    return result


def sharding(facts: Facts, rows: Mask) -> Mask:
    """Which of `rows` serve data parallelism: launched by collectives, by FSDP, by DDP before the model begins.

    DDP copies a model's buffers at the start of `DistributedDataParallel.forward`, which also holds the whole model:
    the model begins with the first matmul or convolution in it.
    """
    table, spans = work_table(facts), facts.rank.spans
    collective = [str(one) for one in spans["name"].cat.categories if kinds.activity(str(one)) is Activity.COLLECTIVE]
    own = ("fsdp::*", "torch.distributed.*", "torch::distributed::*")
    found = rows & named(facts, table.asked_by, *collective, *own)
    found |= under(facts, rows, "FSDP::*", "FullyShardedDataParallel._*") >= 0
    math = table.of(KernelKind.GEMM, KernelKind.CONV, KernelKind.ATTENTION, KernelKind.TRITON_TEMPLATE)
    parallel = under(facts, rows | math, "DistributedDataParallel.forward")
    launched = np.append(spans["start_ns"].to_numpy(), 0)[table.launch]
    begins = np.full(len(spans) + 1, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(begins, parallel[math], launched[math])
    return found | (rows & (parallel >= 0) & (launched < begins[parallel]))


_Group = tuple[str, str, int, IntArray, IntArray]
"""Names of the asking and the launching op, a further key, span ids, and rows of the work table in the used steps."""


def _groups(facts: Facts, rows: IntArray, key: IntArray) -> Iterator[_Group]:
    """Rows of the work table by op and a further key of theirs, those that occur in the used steps."""
    table, names = work_table(facts), facts.rank.spans["name"].cat
    labels = [*map(str, names.categories), ""]
    codes = np.append(names.codes.to_numpy().astype(np.int64), UNKNOWN)
    keys = np.stack((codes[table.asked_by[rows]], codes[table.op[rows]], key))
    distinct, group, sizes = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    members = np.split(rows[order], np.cumsum(sizes)[:-1])
    for (asked_by, op, other), mine in zip(distinct.T.tolist(), members, strict=False):
        inside = mine[table.in_steps[mine]]
        if len(inside):
            yield labels[asked_by], labels[op], other, table.ids[mine], inside


@dataclass(frozen=True)
class LayoutConversions:
    """Kernels that change the order of a tensor's dimensions, such as NCHW to NHWC, asked for by one op."""

    asked_by: str
    """The outermost op; "" if none is known."""
    op: str
    """The op that launched them; "" if none is known."""
    convolution: bool
    """It is a convolution, or its backward."""
    ids: IntArray
    calls: int
    """Per step."""
    ns: int
    """Per step."""


@fact
def layout_conversions(facts: Facts) -> tuple[LayoutConversions, ...]:
    """Conversions in the used steps by op, longest first; empty if there are none. Raises Missing without device work.

    MIOpen's SubTensorOp kernels set or cast a tensor, whatever its layout: they are not in it.
    """
    table, used = work_table(facts), steps(facts)
    rows = np.flatnonzero(table.of(KernelKind.LAYOUT) & ~named(facts, table.ids, "SubTensorOp*"))
    found = [
        LayoutConversions(
            asked_by=asked_by,
            op=op,
            convolution="conv" in op,
            ids=ids,
            calls=round_half_up(len(inside), used.count),
            ns=round_half_up(int(table.dur_ns[inside].sum()), used.count),
        )
        for asked_by, op, _, ids, inside in _groups(facts, rows, np.zeros_like(rows))
    ]
    return tuple(sorted(found, key=lambda one: (-one.ns, one.asked_by, one.op)))


@dataclass(frozen=True)
class CopyChurn:
    """Copies from device memory to device memory that one op was asked for and another carried out."""

    asked_by: str
    """The outermost op; "" if none is known."""
    op: str
    """The op that launched them; "" if none is known."""
    cast: bool | None
    """They change the element type; None if that cannot be told."""
    ids: IntArray
    calls: int
    """Per step."""
    ns: int
    """Per step."""
    bytes: int | None
    """Read and written, per step; None unless known of every call."""


_COPIES = (
    "aten::copy_ aten::_to_copy aten::contiguous aten::clone aten::cat aten::_cat aten::stack aten::_foreach_copy_"
)


@fact
def copy_churn(facts: Facts) -> tuple[CopyChurn, ...]:
    """Copies in the used steps by op and kind, longest first; empty if there are none. Raises Missing like work_table.

    Kernels of copying ops, copying kernels of torch's other ops, and DtoD copies; not those of data parallelism.
    """
    table, used = work_table(facts), steps(facts)
    on_device = np.isin(table.ids, facts.rank.copies.index[facts.rank.copies["direction"] == Direction.D2D.value])
    is_kernel = ~table.of(KernelKind.MEMORY)
    copying = is_kernel & (table.of(KernelKind.COPY) & eager(facts) | named(facts, table.op, *_COPIES.split()))
    copying |= on_device
    rows = np.flatnonzero(copying & ~sharding(facts, copying))
    cast, size = _cast_and_bytes(facts, table, rows)
    moved = np.full(len(table.ids), UNKNOWN, dtype=np.int64)
    moved[rows] = size
    found = [
        CopyChurn(
            asked_by=asked_by,
            op=op,
            cast=None if casts < 0 else bool(casts),
            ids=ids,
            calls=round_half_up(len(inside), used.count),
            ns=round_half_up(int(table.dur_ns[inside].sum()), used.count),
            bytes=known_per_step(moved[inside], used.count),
        )
        for asked_by, op, casts, ids, inside in _groups(facts, rows, cast)
    ]
    return tuple(sorted(found, key=lambda one: (-one.ns, one.asked_by, one.op)))


def known_per_step(amounts: IntArray, count: int) -> int | None:
    """Their sum per step; None if one of them is negative, which is unknown."""
    return round_half_up(int(amounts.sum()), count) if (amounts >= 0).all() else None


def _cast_and_bytes(facts: Facts, table: WorkTable, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Whether each row changes the element type (1, 0, or -1 unknown), and the bytes it moves, or -1."""
    names, ids = facts.rank.spans["name"].cat, table.ids[rows]
    told = np.array([_cast_by_name(str(name)) for name in names.categories], dtype=np.int64)
    cast = told[names.codes.to_numpy()[ids]]
    size = 2 * facts.rank.copies["bytes"].reindex(ids, fill_value=UNKNOWN).to_numpy()
    position, inputs = recorded_inputs(facts, table.op[rows])
    recorded = named(facts, table.op[rows], "aten::copy_") & (size < 0) & (position >= 0)
    casts, sizes = np.array([*map(_copied, inputs), (UNKNOWN, UNKNOWN)], dtype=np.int64).T
    cast = np.where(recorded & (casts[position] >= 0), casts[position], cast)
    return cast, np.where(recorded, sizes[position], size)


def _cast_by_name(kernel: str) -> int:
    """As in ATen's Copy.cu and CUDALoops.cuh: casting kernels are called so, or load with a cast."""
    if kinds.kernel_kind(kernel) is KernelKind.CAST_QUANT or "LoadWithCast" in kernel:
        return 1
    plain = ("CatArray", "_nocast", "LoadWithoutCast", "vectorized_elementwise_kernel", "Memcpy")
    return 0 if any(part in kernel for part in plain) else UNKNOWN


def _copied(inputs: Inputs) -> tuple[int, int]:
    """Of `copy_(to, from)`: whether the types differ, and the bytes written and read, each -1 if unknown."""
    if len(inputs) < 2 or not inputs[0] or not inputs[1]:
        return UNKNOWN, UNKNOWN
    target, origin = inputs[0][0], inputs[1][0]
    differ = int(target.dtype != origin.dtype) if target.dtype and origin.dtype else UNKNOWN
    if target.bytes is None or origin.bytes is None:
        return differ, UNKNOWN
    return differ, target.bytes + origin.bytes
