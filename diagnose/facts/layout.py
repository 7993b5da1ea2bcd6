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

from diagnose.facts.base import Facts, Missing, fact, optional
from diagnose.facts.breakdown import round_half_up
from diagnose.facts.ddp import ddp_overheads
from diagnose.facts.dispatch import host_spans, launched_in, members
from diagnose.facts.fetches import name_codes, name_of
from diagnose.facts.steps import steps
from diagnose.facts.work import WorkTable, work_table
from diagnose.trace import kinds
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
_MOST, _MOST_ELEMENTS = 64, 2**44  # Dimensions of a tensor, tensors, inputs; more than a device holds: sums fit int64.


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
    if not len(table):
        return np.full(len(ops), UNKNOWN, dtype=np.int64), []
    row = table.index.get_indexer(pd.Index(ops))
    shapes, dtypes = table["shapes"].cat, table["dtypes"].cat
    keys = shapes.codes.to_numpy()[row].astype(np.int64) * len(dtypes.categories) + dtypes.codes.to_numpy()[row]
    distinct, position = np.unique(np.where(row < 0, UNKNOWN, keys), return_inverse=True)
    pairs = [divmod(key, len(dtypes.categories)) for key in distinct.tolist()]
    texts = [(str(shapes.categories[a]), str(dtypes.categories[b])) if a >= 0 else ("", "") for a, b in pairs]
    known = np.array([bool(shape) for shape, _ in texts], dtype=bool)
    return np.where(known[position], position, UNKNOWN), [_inputs(*text) for text in texts]


def _inputs(shapes: str, dtypes: str) -> Inputs:
    sizes, types = _list(shapes), _list(dtypes)
    named = [one if isinstance(one, str) else "" for one in types] + [""] * max(len(sizes) - len(types), 0)
    return tuple(tuple(_tensors(size, dtype)) for size, dtype in zip(sizes[:_MOST], named, strict=False))


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
    for one in size[:_MOST] if size and isinstance(size[0], list) else [size]:
        shape = tuple(n for n in one if type(n) is int and n >= 0) if isinstance(one, list) else ()
        whole = isinstance(one, list) and len(shape) == len(one) <= _MOST
        if whole and prod(shape) <= _MOST_ELEMENTS:
            yield Tensor(shape, "" if dtype == "TensorList" else dtype)


def traffic(facts: Facts, rows: Mask) -> tuple[IntArray, IntArray, IntArray]:
    """As `traffic_of` for the ops of some rows of the work table; what a reduction writes counts nothing."""
    elements, read, written = traffic_of(facts, np.where(rows, work_table(facts).op, UNKNOWN))
    return elements, read, np.where(work_table(facts).of(KernelKind.REDUCTION), 0, written)


def traffic_of(facts: Facts, ops: IntArray) -> tuple[IntArray, ...]:
    """Elements, bytes read and written by ops (-1: none), as if elementwise; 4 bytes if of unknown type; 0 unknown."""
    position, inputs = recorded_inputs(facts, ops)
    code, many = name_codes(facts, ops), len(facts.rank.spans["name"].cat.categories) + 1
    distinct, at = np.unique((position + 1) * many + code + 1, return_inverse=True)
    pairs = [divmod(key, many) for key in distinct.tolist()]
    names = facts.rank.spans["name"].cat.categories
    told = [_moved(str(names[name - 1]), inputs[call - 1]) if call else (0, 0, 0) for call, name in pairs]
    return tuple(np.array(told, dtype=np.int64).reshape(-1, 3).T[:, at.reshape(-1)])


def _moved(op: str, inputs: Inputs) -> tuple[int, int, int]:
    sizes = [(sum(t.elements for t in one), sum(t.bytes or 4 * t.elements for t in one)) for one in inputs if one]
    if not sizes:
        return 0, 0, 0
    (elements, largest), read = max(sizes), sum(size for _, size in sizes)
    if op == "aten::copy_":
        return elements, read - sizes[0][1], sizes[0][1]
    return elements, 0 if op in ("aten::fill_", "aten::zero_") else read, largest


def named(facts: Facts, ids: IntArray, *wanted: str) -> Mask:
    """Which of these spans (-1: none) have one of the names, or one that begins with it if it ends in `*`."""
    exact = {name for name in wanted if not name.endswith("*")}
    heads = tuple(name[:-1] for name in wanted if name.endswith("*"))
    names = facts.rank.spans["name"].cat.categories
    accepted = np.array([*(name in exact or name.startswith(heads) for name in names), False], dtype=bool)
    return accepted[name_codes(facts, ids)]


def eager(facts: Facts) -> Mask:
    """Which rows of the work table torch's own ops launched; by the kernel's name where no op is known.

    Not what Triton, Transformer Engine, Liger, Apex and other extensions launch: from ops of their own, or none.
    """
    table, names = work_table(facts), facts.rank.spans["name"].cat.categories
    of_torch = np.array(["at::native::" in name for name in names], dtype=bool)
    return np.where(table.op >= 0, named(facts, table.op, "aten::*"), of_torch[name_codes(facts, table.ids)])


def for_parallelism(facts: Facts) -> Mask:
    """Which rows of the work table serve data parallelism: launched by FSDP, by DDP's own work, in collectives.

    `FullyShardedDataParallel.forward` and `DistributedDataParallel.forward` hold the whole model: not by them.
    """
    table, names = work_table(facts), facts.rank.spans["name"].cat.categories
    collective = [name for name in names if kinds.activity(name) is Activity.COLLECTIVE]
    own = ("FSDP::", "FullyShardedDataParallel._")
    fsdp = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name.startswith(own))
    ddp = [one.work_ids for one in optional(ddp_overheads, facts) or ()]
    found = named(facts, table.asked_by, "fsdp::*", *collective) | (launched_in(facts, fsdp) >= 0)
    return found | np.isin(table.ids, np.concatenate([table.ids[:0], *ddp]))


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
    found = []
    for asked_by, op, mine, inside in _groups(facts, rows, np.zeros_like(rows)):
        calls, ns = round_half_up(len(inside), used.count), round_half_up(int(table.dur_ns[inside].sum()), used.count)
        found.append(LayoutConversions(asked_by, op, "conv" in op, table.ids[mine], calls, ns))
    return tuple(sorted(found, key=lambda one: (-one.ns, one.asked_by, one.op)))


def _groups(facts: Facts, rows: IntArray, key: IntArray) -> Iterator[tuple[str, str, IntArray, IntArray]]:
    """Asking op, op and rows of the work table that are alike in these and in `key`, and which are in the used steps.

    Of `rows`, and only groups that occur in the used steps.
    """
    table = work_table(facts)
    keys = np.stack((name_codes(facts, table.asked_by[rows]), name_codes(facts, table.op[rows]), key))
    distinct, group = np.unique(keys, axis=1, return_inverse=True)
    for mine in (rows[positions] for positions in members(group.reshape(-1), distinct.shape[1])):
        inside = mine[table.in_steps[mine]]
        if len(inside):
            yield name_of(facts, int(table.asked_by[mine[0]])), name_of(facts, int(table.op[mine[0]])), mine, inside


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
    kernels = ~table.of(KernelKind.MEMORY) & named(facts, table.op, *_COPIES.split())
    kernels |= table.of(KernelKind.COPY) & eager(facts)
    rows = np.flatnonzero((on_device | kernels) & ~for_parallelism(facts))
    casts, size = np.full((2, len(table.ids)), UNKNOWN, dtype=np.int64)
    casts[rows], size[rows] = _cast_and_bytes(facts, table, rows)
    found = [
        CopyChurn(
            asked_by=asked_by,
            op=op,
            cast=None if casts[mine[0]] < 0 else bool(casts[mine[0]]),
            ids=table.ids[mine],
            calls=round_half_up(len(inside), used.count),
            ns=round_half_up(int(table.dur_ns[inside].sum()), used.count),
            bytes=known_per_step(size[inside], used.count),
        )
        for asked_by, op, mine, inside in _groups(facts, rows, casts[rows])
    ]
    return tuple(sorted(found, key=lambda one: (-one.ns, one.asked_by, one.op)))


def known_per_step(amounts: IntArray, count: int) -> int | None:
    """Their sum per step; None if one of them is negative, which is unknown."""
    return round_half_up(int(amounts.sum()), count) if (amounts >= 0).all() else None


def _cast_and_bytes(facts: Facts, table: WorkTable, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Whether each row changes the element type (1, 0, or -1 unknown), and the bytes it moves, or -1."""
    ids, names = table.ids[rows], facts.rank.spans["name"].cat.categories
    cast = np.array([_cast_by_name(name) for name in names], dtype=np.int64)[name_codes(facts, ids)]
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
