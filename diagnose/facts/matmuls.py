"""Matrix multiplications, convolutions, attention: in what precision, how near the peak, how well they fill the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from diagnose.facts.base import Facts, Missing, fact
from diagnose.facts.breakdown import breakdown, round_half_up
from diagnose.facts.steps import steps
from diagnose.facts.work import WorkTable, work_table
from diagnose.trace import hardware, kinds, op_costs
from diagnose.trace.hardware import Peaks
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import KernelKind

MATMULS = (KernelKind.GEMM, KernelKind.CONV, KernelKind.ATTENTION, KernelKind.TRITON_TEMPLATE)

REACHED = {
    "A100": 0.87, "H100": 0.80, "H200": 0.80, "GH200": 0.84, "B200": 0.78, "GB200": 0.73, "MI300X": 0.52,
    "MI325X": 0.62,
}  # fmt: skip
"""Share of the peak that the best matrix multiplication reaches (ml-engineering's MAMF finder, gpu-knowledge 5.1)."""

REACHED_ELSEWHERE = 0.75
"""The same for devices without a measurement (gpu-knowledge 5.1: 75 to 80 %)."""

BANDWIDTH_REACHED = 0.85
"""Share of the memory's rate that a large streaming kernel reaches (gpu-knowledge 5.2: 0.6 to 0.9)."""

SHORTEST_NS = 2_000
"""The shortest useful kernel (gpu-knowledge 3)."""

ALIGNED = 8
"""Elements: sizes that are multiples of it suit 16-bit matrix units (NVIDIA's matrix multiplication guide)."""

HALF = ("fp16", "bf16")

Mask = npt.NDArray[np.bool_]


@fact
def peaks(facts: Facts) -> Peaks:
    """The peak rates of the device that did the work. Raises Missing if it is not known, or there are several kinds."""
    devices = facts.rank.provenance.devices
    known = {hardware.peaks(device) for device in devices}
    found = known.pop() if len(known) == 1 else None
    if found is None:
        name = devices[0].name if devices else "not recorded"
        raise Missing(
            f"peak rates of the device ({name})",
            "Record on a device whose name torch.profiler writes and diagnose knows.",
        )
    return found


@dataclass(frozen=True)
class MatmulTable:
    """Matmul-like kernels of the whole recording; all arrays of shape (kernels,)."""

    ids: IntArray
    dur_ns: IntArray
    in_steps: Mask
    dtype: npt.NDArray[np.object_]
    """What it multiplies in, as `kinds.math_dtype`; "" unknown."""
    tensor_cores: npt.NDArray[np.int8]
    """1 yes, 0 no, -1 unknown."""
    convolution: Mask
    """Of a convolution, as far as the op or the kernel's name says."""
    flops: npt.NDArray[np.float64]
    """Its part of its op's; NaN if unknown."""
    bytes: npt.NDArray[np.float64]
    misaligned: Mask
    """Some size of the op is no multiple of ALIGNED; False if unknown."""

    def ns(self, chosen: Mask, count: int) -> int:
        """Device time of some of them, per step of `count`."""
        return round_half_up(int(self.dur_ns[chosen & self.in_steps].sum()), count)


@fact
def matmul_table(facts: Facts) -> MatmulTable:
    """The table. Raises Missing without device work."""
    work = work_table(facts)
    rows = np.flatnonzero(work.of(*MATMULS))
    names = facts.rank.spans["name"].cat
    codes = names.codes.to_numpy()
    kernel = codes[work.ids[rows]]
    told = {code: names.categories[code] for code in np.unique(kernel).tolist()}
    tensor = {code: {True: 1, False: 0, None: -1}[kinds.uses_tensor_cores(name)] for code, name in told.items()}
    flops, size, misaligned, conv_op = _op_costs(facts, work, rows)
    return MatmulTable(
        ids=work.ids[rows],
        dur_ns=work.dur_ns[rows],
        in_steps=work.in_steps[rows],
        dtype=np.array([kinds.math_dtype(told[code]) or "" for code in kernel.tolist()], dtype=object),
        tensor_cores=np.array([tensor[code] for code in kernel.tolist()], dtype=np.int8),
        convolution=conv_op | work.of(KernelKind.CONV)[rows],
        flops=flops,
        bytes=size,
        misaligned=misaligned,
    )


def _op_costs(
    facts: Facts, work: WorkTable, rows: IntArray
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], Mask, Mask]:
    """(flops, bytes, misaligned, is a convolution) of each kernel: its op's cost, shared out by duration."""
    ops, spans = facts.rank.ops, facts.rank.spans
    asked, position = np.unique(work.op[rows], return_inverse=True)
    row_of = ops.index.get_indexer(pd.Index(asked))
    flops, size = np.full((2, len(asked)), np.nan)
    misaligned, convolution = np.zeros((2, len(asked)), dtype=bool)
    shapes, dtypes = (ops[name].cat for name in ("shapes", "dtypes"))
    for k, (op, row) in enumerate(zip(asked.tolist(), row_of.tolist(), strict=True)):
        if row < 0:
            continue
        name = str(spans["name"].iloc[op])
        convolution[k] = "conv" in name
        found = op_costs.cost(
            name, str(shapes.categories[shapes.codes.iloc[row]]), str(dtypes.categories[dtypes.codes.iloc[row]])
        )
        if found is not None:
            flops[k], size[k] = found.flops, found.bytes
            misaligned[k] = any(one % ALIGNED for one in found.inner)
    taken = np.bincount(position, weights=work.dur_ns[rows], minlength=len(asked))
    part = work.dur_ns[rows] / np.maximum(taken[position], 1)
    return flops[position] * part, size[position] * part, misaligned[position], convolution[position]


def floor_share(facts: Facts, table: MatmulTable, chosen: Mask, dtype: str) -> float | None:
    """Share of their time that some kernels would at least take when multiplying in `dtype`, weighted by time.

    From flops and bytes where they are known; for the others from the ratio of peak rates. None if the device cannot,
    or nothing is chosen. Raises Missing as `peaks`.
    """
    known = peaks(facts)
    rate = known.tflops(dtype)
    total = float(table.dur_ns[chosen].sum())
    if rate is None or not total:
        return None
    reached = reached_share(known)
    width = 0.5 if dtype in HALF else 1.0
    compute = table.flops[chosen] / (rate * reached * 1e3)
    memory = table.bytes[chosen] * width / (known.memory_gbps * BANDWIDTH_REACHED)
    least = np.maximum(np.maximum(compute, memory), SHORTEST_NS)
    dur = table.dur_ns[chosen]
    own_rate = np.where(table.dtype[chosen] == "tf32", known.tf32_tflops or known.fp32_tflops, known.fp32_tflops)
    least = np.where(np.isnan(least), dur * np.minimum(own_rate / rate, 1.0), np.minimum(least, dur))
    return float(least.sum()) / total


def reached_share(known: Peaks) -> float:
    """Share of a device's peak that the best matrix multiplication reaches."""
    return next((share for name, share in REACHED.items() if known.name.startswith(name)), REACHED_ELSEWHERE)


@dataclass(frozen=True)
class Precision:
    """Matmul-like kernels by what they multiply in; times per step."""

    fp32_ids: IntArray
    """fp32 without matrix units, convolutions left out: what `set_float32_matmul_precision` changes."""
    fp32_ns: int
    fp32_conv_ns: int
    """fp32 without matrix units, in convolutions."""
    full_ids: IntArray
    """Everything that multiplies fp32 or tf32: what autocast changes."""
    full_ns: int
    full_share: float
    """Of the step."""
    half_ns: int
    """fp16, bf16 or fp8."""
    matmul_ns: int
    """All matmul-like kernels."""
    tf32_floor: float | None
    """Share of `fp32_ns` that tf32 would at least take; None if the device has none."""
    half_floor: float | None
    """Share of `full_ns` that 16 bits would at least take; None if the device has no fast 16-bit type."""
    half_dtype: str
    """bf16 where the device has it, else fp16."""
    pointwise_ids: IntArray
    """Memory-bound kernels beside them: with 16 bits they move half the bytes."""
    device: str


_MEMORY_BOUND = (
    KernelKind.ELEMENTWISE, KernelKind.REDUCTION, KernelKind.NORM, KernelKind.SOFTMAX_LOSS, KernelKind.RNG_DROPOUT,
    KernelKind.POOL_INTERP, KernelKind.COPY, KernelKind.ROPE,
)  # fmt: skip


@fact
def precision(facts: Facts) -> Precision:
    """Time by precision. Raises Missing without device work, or if the device's rates are not known."""
    table, work, count, known = matmul_table(facts), work_table(facts), steps(facts).count, peaks(facts)
    simt = (table.dtype == "fp32") & (table.tensor_cores == 0)
    full = simt | np.isin(table.dtype, ("fp32", "tf32"))
    half = np.isin(table.dtype, (*HALF, "fp8"))
    dtype = "bf16" if known.bf16_tflops else "fp16"
    full_ns = table.ns(full, count)
    return Precision(
        fp32_ids=table.ids[simt & ~table.convolution],
        fp32_ns=table.ns(simt & ~table.convolution, count),
        fp32_conv_ns=table.ns(simt & table.convolution, count),
        full_ids=table.ids[full],
        full_ns=full_ns,
        full_share=full_ns / max(breakdown(facts).step_ns, 1),
        half_ns=table.ns(half, count),
        matmul_ns=table.ns(np.ones(len(table.ids), dtype=bool), count),
        tf32_floor=floor_share(facts, table, simt & ~table.convolution, "tf32"),
        half_floor=floor_share(facts, table, full, dtype),
        half_dtype=dtype,
        pointwise_ids=work.ids[work.of(*_MEMORY_BOUND)],
        device=known.name,
    )


@dataclass(frozen=True)
class Roofline:
    """16-bit and tf32 kernels whose op's cost is known, against what the device reaches at best; times per step."""

    known_ns: int
    """Time of the kernels that could be judged."""
    slow_ids: IntArray
    """Those that take over twice what they would at best."""
    slow_ns: int
    slow_floor: float | None
    """Share of `slow_ns` that they would at least take."""
    misaligned_ids: IntArray
    """16-bit kernels with a size that is no multiple of ALIGNED, slow as well."""
    misaligned_ns: int
    misaligned_floor: float | None


@fact
def roofline(facts: Facts) -> Roofline:
    """Kernels against the roofline. Raises Missing without shapes, or if the device's rates are not known."""
    if "shapes" not in facts.rank.provenance.recorded:
        raise Missing("shapes", "Record with record_shapes=True.")
    table, count, known = matmul_table(facts), steps(facts).count, peaks(facts)
    least = np.full(len(table.ids), np.nan)
    for dtype in np.unique(table.dtype.astype(str)).tolist():
        rate, mine = known.tflops(dtype), table.dtype == dtype
        if rate is not None:
            compute = table.flops[mine] / (rate * reached_share(known) * 1e3)
            memory = table.bytes[mine] / (known.memory_gbps * BANDWIDTH_REACHED)
            least[mine] = np.maximum(np.maximum(compute, memory), SHORTEST_NS)
    judged = ~np.isnan(least)
    slow = judged & (least < 0.5 * table.dur_ns)
    misaligned = slow & table.misaligned & np.isin(table.dtype, HALF)
    slow &= ~misaligned

    def floor(chosen: Mask) -> float | None:
        total = float(table.dur_ns[chosen].sum())
        return float(least[chosen].sum()) / total if total else None

    return Roofline(
        known_ns=table.ns(judged, count),
        slow_ids=table.ids[slow],
        slow_ns=table.ns(slow, count),
        slow_floor=floor(slow),
        misaligned_ids=table.ids[misaligned],
        misaligned_ns=table.ns(misaligned, count),
        misaligned_floor=floor(misaligned),
    )
