"""What is moved without being changed: tensors copied, cast and transposed, and who asks for it."""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from diagnose.facts.communication.ddp import ddp_overheads
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import (
    UNKNOWN,
    Inputs,
    Mask,
    known_per_step,
    name_codes,
    name_of,
    named,
    recorded_inputs,
)
from diagnose.facts.core.spans import host_spans, launched_in, members, names_of, used_step
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import KERNEL_KINDS, WorkTable, work_table
from diagnose.facts.device.roofline import MatmulOps, matmul_ops, op_roofline
from diagnose.trace import kinds
from diagnose.trace.enums import Direction, SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import Activity, KernelKind


def traffic(facts: Facts, rows: Mask) -> tuple[IntArray, IntArray, IntArray]:
    """`traffic_of` the op of each row of the work table, 0 elsewhere than in `rows`; a reduction writes 0."""
    elements, read, written = traffic_of(facts, np.where(rows, work_table(facts).op, UNKNOWN))
    return elements, read, np.where(work_table(facts).of(KernelKind.REDUCTION), 0, written)


def traffic_of(facts: Facts, ops: IntArray) -> tuple[IntArray, ...]:
    """(elements, bytes read, bytes written) of each op, as if elementwise; 0: id -1, or unknown; no type: 4 bytes."""
    position, inputs = recorded_inputs(facts, ops)
    code, many = name_codes(facts, ops), len(facts.rank.spans["name"].cat.categories) + 1
    distinct, at = np.unique((position + 1) * many + code + 1, return_inverse=True)
    pairs = [divmod(key, many) for key in distinct.tolist()]
    names = facts.rank.spans["name"].cat.categories
    moved = [_moved(str(names[name - 1]), inputs[call - 1]) if call else (0, 0, 0) for call, name in pairs]
    return tuple(np.array(moved, dtype=np.int64).reshape(-1, 3).T[:, at.reshape(-1)])


def _moved(op: str, inputs: Inputs) -> tuple[int, int, int]:
    """Elements, bytes read and bytes written by an op that moves data; zeros if no input was recorded."""
    sizes = [
        (sum(t.elements for t in input_), sum(t.bytes or 4 * t.elements for t in input_)) for input_ in inputs if input_
    ]
    if not sizes:
        return 0, 0, 0
    (elements, largest), read = max(sizes), sum(size for _, size in sizes)
    if op == "aten::copy_":
        return elements, read - sizes[0][1], sizes[0][1]
    return elements, 0 if op in ("aten::fill_", "aten::zero_") else read, largest


def eager(facts: Facts) -> Mask:
    """Which rows of the work table torch's own ops launched; by the kernel's name where no op is known.

    Not what Triton, Transformer Engine, Liger, Apex and other extensions launch: from ops of their own, or none.
    """
    table, names = work_table(facts), facts.rank.spans["name"].cat.categories
    of_torch = np.array(["at::native::" in name for name in names], dtype=bool)
    return np.where(table.op >= 0, named(facts, table.op, "aten::*"), of_torch[name_codes(facts, table.ids)])


def for_parallelism(facts: Facts) -> Mask:
    """Which rows of the work table serve data parallelism: launched by FSDP, by DDP's own work, in collectives.

    What `FullyShardedDataParallel.forward` and `DistributedDataParallel.forward` launch is the model, and not counted.
    """
    table, names = work_table(facts), facts.rank.spans["name"].cat.categories
    collective = [name for name in names if kinds.activity(name) is Activity.COLLECTIVE]
    own = ("FSDP::", "FullyShardedDataParallel._")
    fsdp = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name.startswith(own))
    ddp = [one.work_ids for one in optional(ddp_overheads, facts) or ()]
    found = named(facts, table.asked_by, "fsdp::*", *collective) | (launched_in(facts, fsdp) >= 0)
    return found | np.isin(table.ids, np.concatenate([table.ids[:0], *ddp]))


class LayoutConversions(Struct, frozen=True):
    """Kernels that change the order of a tensor's dimensions, such as NCHW to NHWC, asked for by one op."""

    asked_by: str  # The outermost op; "" if none is known.
    op: str  # The op that launched them; "" if none is known.
    convolution: bool  # It is a convolution, or its backward.
    ids: IntArray
    calls: int  # Per step.
    ns: int  # Per step.


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
    """(asking op, op, rows, those of them in the used steps) for `rows` of the work table alike in both and in `key`.

    Groups without a row in the used steps are left out.
    """
    table = work_table(facts)
    keys = np.stack((name_codes(facts, table.asked_by[rows]), name_codes(facts, table.op[rows]), key))
    distinct, group = np.unique(keys, axis=1, return_inverse=True)
    for mine in (rows[positions] for positions in members(group.reshape(-1), distinct.shape[1])):
        inside = mine[table.in_steps[mine]]
        if len(inside):
            yield name_of(facts, int(table.asked_by[mine[0]])), name_of(facts, int(table.op[mine[0]])), mine, inside


class CopyChurn(Struct, frozen=True):
    """Copies from device memory to device memory that one op was asked for and another carried out."""

    asked_by: str  # The outermost op; "" if none is known.
    op: str  # The op that launched them; "" if none is known.
    cast: bool | None  # They change the element type; None if that cannot be told.
    ids: IntArray
    calls: int  # Per step.
    ns: int  # Per step.
    bytes: int | None  # Read and written, per step; None unless known of every call.


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
    """Whether a copying kernel casts, by names in ATen's Copy.cu and CUDALoops.cuh: 1, 0, or -1 unknown."""
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


_GENERIC = re.compile(
    r"dgrad_engine|wgrad_alg\d_engine|[dw]grad2d_alg|implicit_convolve_sgemm|winograd_?non_?fused|fft[12]d_|gcgemm"
    r"|naive_conv",
    re.IGNORECASE,
)
"""Kernels of cuDNN for any size, by FFT or in several passes, and MIOpen's last resort. A search may keep them, too."""


class Convolutions(Struct, frozen=True):
    """Convolutions on the device. Times are per step."""

    ids: IntArray  # Their kernels.
    ns: int
    reached: float | None  # Of what the device can do at best, by their time; None if no cost is known.
    generic_ns: int  # In kernels that suit any size.
    generic: tuple[str, ...]  # Names of these without arguments, longest first.
    fixed: bool | None  # All used steps run the same kernels in the same grids: sizes stay the same. None of one step.


@fact
def convolutions(facts: Facts) -> Convolutions:
    """Of the used steps; zeros without any. Raises Missing without device work."""
    ops = matmul_ops(facts)
    mine = ops.named(lambda name: "conv" in name.lower()) | (ops.kind == KERNEL_KINDS.index(KernelKind.CONV))
    ids = ops.work[mine[ops.row]]
    step, dur = used_step(facts, ids), facts.rank.spans["dur_ns"].to_numpy()[ids]
    labels = names_of(facts)
    names = [labels[code] for code in name_codes(facts, ids).tolist()]
    taken, generic = Counter[str](), {name for name in {*names} if _GENERIC.search(name)}
    for name, at, ns in zip(names, step.tolist(), dur.tolist(), strict=True):
        if at >= 0 and name in generic:
            taken[name.partition("<")[0].removeprefix("void ")] += ns
    return Convolutions(
        ids=ids,
        ns=round_half_up(int(dur[step >= 0].sum()), steps(facts).count),
        reached=_reached(facts, ops, mine & ops.in_steps),
        generic_ns=round_half_up(sum(taken.values()), steps(facts).count),
        generic=tuple(name for name, _ in taken.most_common()),
        fixed=_fixed(facts, ids, names, step),
    )


def _reached(facts: Facts, ops: MatmulOps, rows: Mask) -> float | None:
    """Mean share of the roofline that the calls reach, weighted by duration; None if it is not known."""
    roofline = optional(op_roofline, facts)
    if roofline is None:
        return None
    reached, dur = roofline.achieved_share[rows], ops.dur_ns[rows].astype(np.float64)
    valid = ~np.isnan(reached)
    return float((np.minimum(reached, 1.0) * dur)[valid].sum() / dur[valid].sum()) if dur[valid].sum() else None


def _fixed(facts: Facts, ids: IntArray, names: list[str], step: IntArray) -> bool | None:
    """Whether each step runs the same kernels with the same grids as often, in any order; None with one step."""
    grid = facts.rank.kernels[["grid_x", "grid_y", "grid_z"]].reindex(ids, fill_value=0).to_numpy().tolist()
    count = steps(facts).count
    ran = [Counter[tuple[str, tuple[int, ...]]]() for _ in range(count)]
    for name, blocks, number in zip(names, grid, step.tolist(), strict=True):
        if number >= 0:
            ran[number][name, tuple(blocks)] += 1
    return all(counts == ran[0] for counts in ran) if count > 1 else None
