"""In what precision does the training multiply, and how near the peak: by class of call, for rules to act on."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import breakdown, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.inputs import NO_SHAPES, Inputs, name_codes, recorded_inputs, type_rates
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.spans import host_spans, launched_in, on_training_threads, require_ops, sites_of
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import work_table
from diagnose.facts.device.roofline import ALIGNED_BYTES, MatmulOps, costs_of, inner_sizes, matmul_ops, op_roofline
from diagnose.trace.costs import DTYPE_BYTES, DTYPES
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import KernelKind

SLOW_SHARE = 0.5  # Calls that reach less than this share of the roofline are slow (our choice).

_MEMORY_BOUND = (
    KernelKind.ELEMENTWISE,
    KernelKind.REDUCTION,
    KernelKind.NORM,
    KernelKind.SOFTMAX_LOSS,
    KernelKind.RNG_DROPOUT,
    KernelKind.POOL_INTERP,
    KernelKind.COPY,
    KernelKind.ROPE,
)

LARGE = 2_048
"""Rows, columns and inner size of products from which on fp8 pays for its casts (our choice; torchao measures gains
from some thousands on)."""
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::linear", "aten::matmul")

Mask = npt.NDArray[np.bool_]


class Precision(Struct, frozen=True):
    """Calls that multiply matrices, by what they multiply in; times per step."""

    fp32_ids: IntArray  # In fp32 without Tensor Cores, no convolutions: what `set_float32_matmul_precision` changes.
    fp32_ns: int
    full_ids: IntArray  # Kernels in fp32 or tf32: what autocast changes.
    full_ns: int
    full_share: float  # Of the step.
    tf32_left: float | None  # Share of `fp32_ns` left in tf32 at best; None without any, or if the device has no tf32.
    half_left: float | None  # Share of `full_ns` left in 16 bits at best; None without any, or without such a type.
    half_dtype: str  # bf16 where the device has it, else fp16.
    pointwise_ids: IntArray  # Memory-bound kernels beside them: with 16 bits they move half the bytes.
    device: str
    rates_known: bool  # Else they are those of the device's family.


@fact
def precision(facts: Facts) -> Precision:
    """Time by precision. Raises Missing without device work, or if the device's rates are not known."""
    ops, work, known = matmul_ops(facts), work_table(facts), type_rates(facts)
    simt = _in(ops, "fp32") & (ops.tensor_cores == 0)
    full = _in(ops, "fp32", "tf32")
    convolution = ops.named(lambda name: "conv" in name.lower())
    dtype = "bf16" if known.bf16_tflops else "fp16"
    full_ns = _ns(facts, ops, full)
    return Precision(
        fp32_ids=_kernels(ops, simt & ~convolution),
        fp32_ns=_ns(facts, ops, simt & ~convolution),
        full_ids=_kernels(ops, full),
        full_ns=full_ns,
        full_share=full_ns / max(breakdown(facts).step_ns, 1),
        tf32_left=_left(facts, ops, simt & ~convolution, "tf32"),
        half_left=_left(facts, ops, full, dtype),
        half_dtype=dtype,
        pointwise_ids=work.ids[work.of(*_MEMORY_BOUND)],
        device=known.name,
        rates_known=not known.estimated,
    )


def _in(ops: MatmulOps, *dtypes: str) -> Mask:
    return np.isin(ops.math_dtype, [DTYPES.index(dtype) for dtype in dtypes])


def _kernels(ops: MatmulOps, chosen: Mask) -> IntArray:
    return ops.work[chosen[ops.row]]


def _ns(facts: Facts, ops: MatmulOps, chosen: Mask) -> int:
    return round_half_up(int(ops.dur_ns[chosen & ops.in_steps].sum()), steps(facts).count)


def _left(facts: Facts, ops: MatmulOps, chosen: Mask, dtype: str) -> float | None:
    """Share of their time that some rows would take at best when multiplying in `dtype`.

    By the roofline where their cost is known, else by the ratio of the device's rates.
    """
    known, dur = type_rates(facts), ops.dur_ns[chosen].astype(np.float64)
    rate = known.tflops(dtype)
    if rate is None or not dur.sum():
        return None
    own = np.where(_in(ops, "tf32")[chosen], known.tf32_tflops or known.fp32_tflops, known.fp32_tflops)
    least = dur * np.minimum(own / rate, 1.0)
    if (roofline := optional(op_roofline, facts)) is not None:
        floor = roofline.floor_ns(dtype)[chosen]
        least = np.where(np.isnan(floor), least, np.minimum(floor, dur))
    return float(least.sum() / dur.sum())


class OddSize(Struct, frozen=True):
    """The misaligned inner size whose calls take the most time."""

    size: int
    other: int  # The other inner size of its first call in the used steps: of the weights.
    calls: int  # Misaligned calls, whatever their sizes, per step.
    site: Site | None  # Of its first call, which is one of the forward pass.


class Roofline(Struct, frozen=True):
    """Calls whose cost is known, attention left out, against what the device reaches at best; times per step."""

    known_ns: int  # Time of the calls that could be judged.
    slow_ids: IntArray  # Kernels of those that reach less than SLOW_SHARE of it, without the misaligned ones.
    slow_ns: int
    slow_floor: float | None  # Share of `slow_ns` that they would at least take; None if there are none.
    slow_conv_share: float  # Of `slow_ns` in convolutions.
    misaligned_ids: IntArray
    """Kernels of slow calls on Tensor Cores with an inner size (channels of a convolution) that is no multiple of
    ALIGNED_BYTES."""
    misaligned_ns: int
    misaligned_floor: float | None
    odd_size: OddSize | None  # None if there are none in the used steps.


@fact
def roofline(facts: Facts) -> Roofline:
    """Calls against the roofline. Raises Missing without shapes, or if the device's rates are not known."""
    ops, reached = matmul_ops(facts), op_roofline(facts).achieved_share
    judged = ~np.isnan(reached)
    # Attention is left out: what part of it a mask spares is not recorded, and its sizes are lengths of sequences.
    judged &= ~ops.named(lambda name: "attention" in name or "fmha" in name)
    slow = judged & (np.nan_to_num(reached, nan=1.0) < SLOW_SHARE)
    math = op_roofline(facts).math_dtype
    on_units = np.isin(math, [DTYPES.index(one) for one in ("tf32", "fp16", "bf16")])
    grain = ALIGNED_BYTES / np.array([*(DTYPE_BYTES[one] for one in DTYPES), 1.0])[math]
    depthwise = (ops.dims[:, 1] == 1) & (ops.dims[:, 2] == 1)
    odd = inner_sizes(ops) % grain[:, None] > 0
    misaligned = slow & on_units & odd.any(axis=1) & ~depthwise
    slow &= ~misaligned

    def floor(chosen: Mask) -> float | None:
        dur = ops.dur_ns[chosen].astype(np.float64)
        return float((dur * reached[chosen]).sum() / dur.sum()) if dur.sum() else None

    slow_ns = _ns(facts, ops, slow)
    return Roofline(
        known_ns=_ns(facts, ops, judged),
        slow_ids=_kernels(ops, slow),
        slow_ns=slow_ns,
        slow_floor=floor(slow),
        slow_conv_share=_ns(facts, ops, slow & ops.named(lambda name: "conv" in name)) / max(slow_ns, 1),
        misaligned_ids=_kernels(ops, misaligned),
        misaligned_ns=_ns(facts, ops, misaligned),
        misaligned_floor=floor(misaligned),
        odd_size=_odd_size(facts, ops, np.flatnonzero(misaligned & ops.in_steps), odd),
    )


def _odd_size(facts: Facts, ops: MatmulOps, rows: IntArray, odd: Mask) -> OddSize | None:
    """The misaligned size that takes the most time, and another size of that call; None without calls."""
    if not len(rows):
        return None
    sizes, row = inner_sizes(ops)[rows], np.nonzero(odd[rows])[0]
    odd_sizes, number = np.unique(sizes[odd[rows]], return_inverse=True)
    size = int(odd_sizes[np.bincount(number.reshape(-1), ops.dur_ns[rows][row]).argmax()])
    first = int((sizes == size).any(axis=1).argmax())
    other = next((one for one in sizes[first, 1:].tolist() if one != size), size)
    op = ops.op[rows[first]]
    (site,) = sites_of(facts, np.array([op])) if op >= 0 else (None,)
    return OddSize(size, other, round_half_up(len(rows), steps(facts).count), site)


class LargeProducts(Struct, frozen=True):
    """Products in 16 bits that are large enough for fp8, on a device that has it; times per step."""

    ids: IntArray
    ns: int
    device: str


@fact
def large_products(facts: Facts) -> LargeProducts | None:
    """None on a device without fp8. Raises Missing without shapes, or if the device's rates are not known."""
    ops, known = op_roofline(facts).table, type_rates(facts)
    if known.fp8_tflops is None:
        return None
    large = ops.named(_PRODUCTS.__contains__) & _in(ops, "fp16", "bf16") & (ops.dims >= LARGE).all(axis=1)
    return LargeProducts(_kernels(ops, large), _ns(facts, ops, large), known.name)


class Doubles(Struct, frozen=True):
    """Ops with an input of float64. Times are per step, on what trains: the device, or the host where the CPU does."""

    ids: IntArray  # Such ops, none inside another.
    work_ids: IntArray  # Device work launched in them.
    ns: int
    longest: str  # The op that takes most of it; "" without any.
    site: Site | None  # The first line of the user's code that runs one.
    on_cpu: bool


def _in_double(inputs: Inputs) -> bool:
    """Whether one is a tensor of float64. A number of Python is recorded as one without dimensions, and is none."""
    return any(tensor.dtype == "double" and tensor.shape for input_ in inputs for tensor in input_)


@fact
def doubles(facts: Facts) -> Doubles:
    """Raises Missing without ops, and if the types of their inputs were not recorded."""
    require_ops(facts)
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    used, on_cpu = steps(facts), trains_on_cpu(facts)
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP))
    position, inputs = recorded_inputs(facts, ops.ids)
    ops = ops.where(np.array([*map(_in_double, inputs), False], dtype=bool)[position]).outermost()
    work = device_work(facts)
    inside = launched_in(facts, ops)
    counted = ops.in_steps(facts)
    dur = counted.end_ns - counted.start_ns
    if not on_cpu:
        chosen = (inside >= 0) & (work.start_ns >= used.start_ns) & (work.start_ns < used.end_ns)
        dur = np.bincount(inside[chosen], (work.end_ns - work.start_ns)[chosen], len(ops.ids)).astype(np.int64)
        counted = ops
    codes = name_codes(facts, counted.ids)
    by_name = np.bincount(codes, dur) if len(codes) else dur
    names = facts.rank.spans["name"].cat.categories
    return Doubles(
        ids=ops.ids,
        work_ids=work.ids[inside >= 0],
        ns=round_half_up(int(dur.sum()), used.count),
        longest=str(names[int(by_name.argmax())]) if len(codes) else "",
        site=next((site for site in sites_of(facts, ops.ids[:1])), None),
        on_cpu=on_cpu,
    )


UNITS = {
    "bf16": {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16", "svebf16", "sve_bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp", "fphp"},
}
"""Flags of processors that multiply in these types, as Linux names them (arch/x86 cpufeatures.h, arm64 hwcap)."""


def half_on_cpu(facts: Facts) -> tuple[str, int] | None:
    """A 16-bit type that a CPU training computes in without units for it, and ns per step; None also if not known."""
    flags = None if facts.rank.context is None else facts.rank.context.host.cpu_flags
    if flags is None or not trains_on_cpu(facts):
        return None
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).in_steps(facts)
    code, costs = costs_of(facts, ops.ids)
    dtype = np.array([*(cost.dtype or "" for cost in costs), ""])[code]
    taken = {name: ops.where(dtype == name).times.total // steps(facts).count for name in UNITS}
    return next(((name, ns) for name, ns in taken.items() if ns and UNITS[name].isdisjoint(flags)), None)
