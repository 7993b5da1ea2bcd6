"""How near does each call that multiplies matrices come to what the device could do?"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.inputs import SHORTEST_NS, peaks
from diagnose.facts.core.spans import host_spans, names_of
from diagnose.facts.core.work import work_table
from diagnose.trace import intervals, kinds
from diagnose.trace.costs import DTYPE_BYTES, DTYPES, Convolved, Cost, Shape, convolved, cost, has_cost
from diagnose.trace.enums import SpanKind
from diagnose.trace.hardware import Peaks
from diagnose.trace.intervals import IntArray

FloatArray = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]

UNKNOWN = -1

ALIGNED_BYTES = 16
"""Rows of operands that are multiples of it suit Tensor Cores: 8 numbers of 16 bits, 4 of tf32 (NVIDIA's guide to
matrix multiplication)."""
_ODD = 8  # Elements: multiples of it are odd in no type.

# Share of the peak that the best matrix product reaches, by `Peaks.name` and longest name first: TFLOP/s of
# ml-engineering's MAMF finder over the peak, of MI300X and MI325X the higher ones of TraceLens (both published).
_REACHED_16 = {
    "A100 PCIe": 253 / 312,
    "A100": 271 / 312,
    "H100 SXM": 794.5 / 989,
    "H200": 794.5 / 989,
    "GH200": 828.6 / 989,
    "GB200": 1822 / 2500,
    "B200": 1745 / 2250,
    "MI300X": 708 / 1307,
    "MI325X": 843 / 1307,
    "MI355X": 1565 / 2500,
}
_REACHED_8 = {
    "H100 SXM": 1403 / 1979,
    "H200": 1453 / 1979,
    "GH200": 1535 / 1979,
    "GB200": 3616 / 5000,
    "B200": 3432 / 4500,
    "MI300X": 1273 / 2615,
    "MI325X": 1519 / 2615,
}
_REACHED_16_ELSEWHERE, _REACHED_8_ELSEWHERE = 0.78, 0.70  # 75 to 80 % and 70 % were published.
_REACHED_SIMT = 0.95  # Without Tensor Cores the peak is nearly reached: cuBLAS sgemm, our choice.

# Share of the memory's rate that a kernel reaches, by the bytes it moves; between them by log.
_MOVED = np.log([1e6, 1e8])
_RATE_REACHED = np.array([0.60, 0.90])


class MatmulOps(Struct, frozen=True):
    """Calls that launched matmul-like kernels, in the whole recording; arrays of shape (rows,) if not said otherwise.

    A row is the innermost op around its kernels whose cost is known, or if there is none the innermost op; a kernel
    without op has a row of its own. Rows are in order of their first kernel.
    """

    op: IntArray  # Span id of the op, or -1.
    name: IntArray  # Position of the op's name in `names`, or -1.
    names: tuple[str, ...]
    flops: IntArray  # As `costs.Cost`, like the next three; -1 unknown.
    bytes: IntArray
    exact: Mask
    dims: IntArray  # M, N, K. Shape (rows, 3); -1 unknown.
    dtype: Codes  # Type of the inputs: position in `costs.DTYPES`, or -1.
    math_dtype: Codes  # What its longest kernel multiplies in, by the kernel's name: position in `costs.DTYPES`, or -1.
    kind: Codes  # Of its longest kernel: position in `work.KERNEL_KINDS`.
    tensor_cores: Codes  # Whether its longest kernel runs on Tensor Cores: 1 yes, 0 no, -1 unknown.
    dur_ns: IntArray  # Sum of durations of its matmul-like kernels.
    blocks: IntArray  # Grid of its longest kernel; -1 unknown.
    in_steps: Mask  # Its longest kernel starts in a used step.
    work: IntArray  # Span ids of the kernels, in order of start. Shape (kernels,).
    row: IntArray  # The row of each kernel. Shape (kernels,).

    def named(self, fits: Callable[[str], bool]) -> Mask:
        """Whether each row's op has a name that `fits` accepts; False without an op. Shape (rows,)."""
        return np.append([fits(name) for name in self.names], False)[self.name].astype(bool)


@fact
def matmul_ops(facts: Facts) -> MatmulOps:
    """The table. Raises Missing without device work; without shapes or ops, costs are unknown."""
    table = work_table(facts)
    chosen = np.flatnonzero(table.of(*kinds.MATMULS))
    owner, code, told = _owners(facts, table.op[chosen])
    key = np.where(owner >= 0, owner, UNKNOWN - np.arange(len(chosen)))
    _, first, row = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    first, row = first[order], np.argsort(order)[row.reshape(-1)]
    dur, of_row = table.dur_ns[chosen], np.zeros(len(first), dtype=np.int64)
    np.add.at(of_row, row, dur)
    longest = np.lexsort((dur, row))[np.cumsum(np.bincount(row, minlength=len(first))) - 1]
    op = owner[first]
    known = np.where(_holds_another(facts, op), UNKNOWN, code[first])
    spans, kernel = facts.rank.spans, table.ids[chosen][longest]
    names, name = _distinct(spans["name"].cat.codes.to_numpy(), op)
    said = [names_of(facts)[one] for one in names.tolist()]
    multiplied, units = _by_name(facts, kernel)
    figures = np.array([(UNKNOWN, UNKNOWN, 0, -1, -1, -1, UNKNOWN), *map(_figures, told)], dtype=np.int64)[known + 1]
    return MatmulOps(
        op=op,
        name=name,
        names=tuple(said),
        flops=figures[:, 0],
        bytes=figures[:, 1],
        exact=figures[:, 2] == 1,
        dims=figures[:, 3:6],
        dtype=figures[:, 6].astype(np.int8),
        math_dtype=multiplied,
        kind=table.kind[chosen][longest],
        tensor_cores=units,
        dur_ns=of_row,
        blocks=_blocks(facts, kernel),
        in_steps=table.in_steps[chosen][longest],
        work=table.ids[chosen],
        row=row,
    )


def _figures(found: Cost) -> tuple[int, ...]:
    size = UNKNOWN if found.bytes is None else found.bytes
    return found.flops, size, int(found.exact), *found.dims, DTYPES.index(found.dtype) if found.dtype else UNKNOWN


def _owners(facts: Facts, op: IntArray) -> tuple[IntArray, IntArray, list[Cost]]:
    """For each op (-1: none) the innermost op with a cost at or around it, else itself; its cost's number; costs."""
    ops = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)
    code, told = costs_of(facts, ops.ids)
    root = len(ops.ids)
    up = np.append(ops.parents, root)
    up[up < 0] = root
    up[:-1] = np.where(code >= 0, np.arange(root), up[:-1])
    while not np.array_equal(further := up[up], up):
        up = further
    found = np.where(op >= 0, up[np.searchsorted(ops.ids, op)], root)
    costed = found < root
    return (
        np.where(costed, np.append(ops.ids, UNKNOWN)[found], op),
        np.where(costed, np.append(code, UNKNOWN)[found], UNKNOWN),
        told,
    )


def costs_of(facts: Facts, ids: IntArray) -> tuple[IntArray, list[Cost]]:
    """For each op the position of its cost in the list of distinct costs, or -1 if unknown; and that list."""
    table, names = facts.rank.ops, facts.rank.spans["name"].cat
    code = np.full(len(ids), UNKNOWN, dtype=np.int64)
    costly = np.array([has_cost(name) for name in names.categories], dtype=bool)
    name_of = names.codes.to_numpy().astype(np.int64)
    row = table.index.get_indexer(pd.Index(ids))
    mine = np.flatnonzero((row >= 0) & costly[name_of[ids]])
    if not len(mine):
        return code, []
    calls = pd.DataFrame({one: table[one].cat.codes.to_numpy()[row[mine]] for one in ("shapes", "dtypes")})
    calls.insert(0, "name", name_of[ids[mine]])
    which = calls.groupby(["name", "shapes", "dtypes"], sort=False).ngroup().to_numpy()
    shapes, dtypes = (table[one].cat.categories for one in ("shapes", "dtypes"))
    distinct = calls.drop_duplicates().to_numpy().tolist()
    texts = [(str(names.categories[a]), str(shapes[b]), str(dtypes[c])) for a, b, c in distinct]
    outputs = _outputs(texts)
    found = [cost(*text, outputs) for text in texts]
    has = np.array([one is not None for one in found])
    code[mine] = np.where(has, np.cumsum(has) - 1, UNKNOWN)[which]
    return code, [one for one in found if one is not None]


def _outputs(texts: list[tuple[str, str, str]]) -> dict[Convolved, Shape]:
    """What convolutions put out, where all backward calls for the same input and weight sizes agree on it."""
    told: dict[Convolved, set[Shape]] = {}
    for name, shapes, _ in texts:
        if (found := convolved(name, shapes)) is not None:
            told.setdefault(found[0], set()).add(found[1])
    return {sizes: next(iter(outputs)) for sizes, outputs in told.items() if len(outputs) == 1}


def _holds_another(facts: Facts, op: IntArray) -> Mask:
    """Which of these ops (-1: none) have another of them inside: what they multiply is counted there."""
    spans, holds = facts.rank.spans, np.zeros(len(op), dtype=bool)
    at = np.flatnonzero(op >= 0)
    start = spans["start_ns"].to_numpy()[op[at]]
    up = intervals.parents(spans["track"].to_numpy()[op[at]], start, start + spans["dur_ns"].to_numpy()[op[at]])
    holds[at[up[up >= 0]]] = True
    return holds


def _by_name(facts: Facts, kernel: IntArray) -> tuple[Codes, Codes]:
    """What kernels multiply in, as a position in DTYPES, and whether on Tensor Cores; -1 where unknown."""
    names = facts.rank.spans["name"].cat
    distinct, which = _distinct(names.codes.to_numpy(), kernel)
    said = [str(names.categories[one]) for one in distinct.tolist()]
    dtypes = [kinds.math_dtype(name) for name in said]
    units = [kinds.uses_tensor_cores(name) for name in said]
    multiplied = np.array([DTYPES.index(dtype) if dtype else UNKNOWN for dtype in dtypes], dtype=np.int8)
    return multiplied[which], np.array([UNKNOWN if unit is None else int(unit) for unit in units], dtype=np.int8)[which]


def _distinct(codes: npt.NDArray[np.integer], ids: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct codes of spans, and for each span its position among them, or -1 where the id is -1."""
    distinct, which = np.unique(codes[ids[ids >= 0]].astype(np.int64), return_inverse=True)
    position = np.full(len(ids), UNKNOWN, dtype=np.int64)
    position[ids >= 0] = which.reshape(-1)
    return distinct, position


def _blocks(facts: Facts, kernel: IntArray) -> IntArray:
    """Blocks of kernels' grids; -1 where not recorded."""
    grid = facts.rank.kernels[["grid_x", "grid_y", "grid_z"]].reindex(kernel, fill_value=0).to_numpy(np.float64)
    blocks = np.where((grid > 0).all(axis=1), np.minimum(grid.prod(axis=1), 2.0**53), UNKNOWN)
    return blocks.astype(np.int64)


def inner_sizes(ops: MatmulOps) -> IntArray:
    """M, N and K of each row as far as they should be aligned; 0 if unknown, and for most M. Shape (rows, 3).

    M counts if it is an N or K of some row that is no multiple of _ODD, as in the product of a weight's gradient. Else
    it is a number of tokens, which needs no alignment.
    """
    sizes = np.maximum(ops.dims, 0)
    inner = sizes[:, 1:]
    odd = np.unique(inner[inner % _ODD > 0])
    found: IntArray = np.column_stack((np.where(np.isin(sizes[:, 0], odd), sizes[:, 0], 0), inner))
    return found


class OpRoofline(Struct, frozen=True):
    """What each row of `matmul_ops` would take at best: max(compute, memory, shortest kernel)."""

    table: MatmulOps
    peaks: Peaks

    def floor_ns(self, dtype: str) -> FloatArray:
        """The least time of each row if it multiplied in `dtype` (of `costs.DTYPES`) and its tensors had that type.

        NaN where its flops are not known, and everywhere if the device does not have the type. Shape (rows,).
        """
        recorded = np.array([*(DTYPE_BYTES[one] for one in DTYPES), np.nan])[self.table.dtype]
        return self._floor(dtype, self._bytes * DTYPE_BYTES[dtype] / recorded)

    @property
    def achieved_share(self) -> FloatArray:
        """The least time in the type that each row multiplied in, over the time taken; NaN unknown. Shape (rows,).

        An upper bound where the cost is not exact. Over 1: operands came from the cache rather than from memory.
        """
        share, math = np.full(len(self.table.op), np.nan), self.math_dtype
        for code in np.unique(math[math >= 0]):
            mine = math == code
            share[mine] = self._floor(DTYPES[code], self._bytes)[mine]
        return share / np.maximum(self.table.dur_ns, 1)

    @property
    def math_dtype(self) -> Codes:
        """As `math_dtypes` says."""
        return math_dtypes(self.table)

    @property
    def _bytes(self) -> FloatArray:
        return np.where(self.table.bytes >= 0, self.table.bytes, np.nan)

    def _floor(self, dtype: str, moved_bytes: FloatArray) -> FloatArray:
        """Least ns of each call in this dtype, by compute or memory, at reachable rates; NaN if unknown."""
        rate = self.peaks.tflops(dtype)
        if rate is None:
            return np.full(len(self.table.op), np.nan)
        compute = self.table.flops / (rate * 1e3 * reached_share(self.peaks, dtype))
        reached = np.interp(np.log(np.maximum(moved_bytes, 1.0)), _MOVED, _RATE_REACHED)
        least = np.fmax(compute, moved_bytes / (self.peaks.memory_gbps * reached))
        return np.where(self.table.flops >= 0, np.maximum(least, SHORTEST_NS), np.nan)


def math_dtypes(table: MatmulOps) -> Codes:
    """Position in DTYPES of what each row multiplies in: by its kernel's name, else a narrow input type; -1 unknown."""
    by_name, recorded = table.math_dtype, table.dtype
    narrow = np.isin(recorded, [DTYPES.index(one) for one in ("fp16", "bf16", "fp8")])
    return np.where((by_name < 0) & narrow, recorded, by_name)


def reached_share(known: Peaks, dtype: str) -> float:
    """Share of the peak in `dtype` that the best matrix product reaches."""
    if dtype == "fp32":
        return _REACHED_SIMT
    measured, otherwise = (_REACHED_8, _REACHED_8_ELSEWHERE) if dtype == "fp8" else (_REACHED_16, _REACHED_16_ELSEWHERE)
    return next((share for name, share in measured.items() if known.name.startswith(name)), otherwise)


@fact
def op_roofline(facts: Facts) -> OpRoofline:
    """The roofline. Raises Missing without device work, without shapes, or if the device's rates are not known."""
    if not facts.rank.provenance.knows("shapes"):
        raise Missing("shapes", "Record with record_shapes=True.")
    return OpRoofline(matmul_ops(facts), peaks(facts))
