"""Device operations with all that their cost depends on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.costs.changes import FloatArray, Mask
from diagnose.costs.known import Family, Grade, grade_of
from diagnose.facts.autograd.backward import backward_nodes
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.inputs import Inputs, name_codes, recorded_inputs
from diagnose.facts.core.spans import launched_in
from diagnose.facts.core.work import KERNEL_KINDS, WorkTable, work_table
from diagnose.facts.device.roofline import MatmulOps, inner_sizes, math_dtypes, matmul_ops
from diagnose.trace.costs import DTYPE_BYTES, DTYPES
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import KernelKind

FAMILIES = (Family.PRODUCT, Family.CONVOLUTION, Family.ATTENTION)
GRADES = tuple(Grade)
NO_CASTS = -1
_SIZES = (4.0, 2.0, 1.0)
_FLOATING = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2}


class CostedOps(Struct, frozen=True):
    """Operations of `work_table`, in its order. Those that multiply have a row in `products`; shapes (operations,)."""

    ids: IntArray
    dur_ns: IntArray
    op: IntArray  # The op that launched it, of what multiplies the one whose cost is known; or -1.
    in_steps: Mask
    row: IntArray  # In `products`, or -1.
    products: Products
    element_bytes: FloatArray  # Of what an op works on that multiplies nothing: 4 unknown, 0 no floating-point numbers.
    elements: FloatArray  # Of its largest input; 0 unknown.
    casts: npt.NDArray[np.int8]  # What autocast casts around it, as `casts`; -1 of what does not stay in fp32.
    copied: FloatArray  # Bytes of a copy; 0 unknown, and of what is none.
    filled: FloatArray  # Share of the multiprocessors that have a block of it; 1 unknown.


class Products(Struct, frozen=True):
    """Rows of `matmul_ops` by what they cost; shapes (rows,)."""

    table: MatmulOps
    family: npt.NDArray[np.int8]  # Position in FAMILIES.
    dtype: npt.NDArray[np.int8]  # What it multiplies in: position in DTYPES, or -1.
    grade: npt.NDArray[np.int8]  # For elements of 4, 2 and 1 bytes: position in GRADES. Shape (3, rows).
    flops: FloatArray  # NaN unknown.
    bytes: FloatArray  # NaN unknown.
    weights: FloatArray  # Elements of its smallest matrix, if that may be a weight; 0 of batches, and unknown.


@fact
def costed_ops(facts: Facts) -> CostedOps:
    """The table. Raises Missing without device work."""
    table, ops = work_table(facts), matmul_ops(facts)
    row = np.full(len(facts.rank.spans), -1, dtype=np.int64)
    row[ops.work] = ops.row
    position, inputs = recorded_inputs(facts, table.op)
    sizes = np.array([*map(_floats, inputs), (4.0, 0.0)], dtype=np.float64)[position]
    return CostedOps(
        ids=table.ids,
        dur_ns=table.dur_ns,
        op=np.where(row[table.ids] >= 0, np.append(ops.op, -1)[row[table.ids]], table.op),
        in_steps=table.in_steps,
        row=row[table.ids],
        products=_products(facts, ops),
        element_bytes=sizes[:, 0],
        elements=sizes[:, 1],
        casts=_casts(facts, table),
        copied=np.maximum(facts.rank.copies["bytes"].reindex(table.ids, fill_value=0).to_numpy(np.float64), 0.0),
        filled=_filled(facts, table.ids),
    )


def _casts(facts: Facts, table: WorkTable) -> npt.NDArray[np.int8]:
    """How often autocast casts around each operation's op, as `casts`; NO_CASTS if it does not stay in fp32. In
    backward passes autocast is off: an op there that is no backward op takes the type of its gradient."""
    names = [*facts.rank.spans["name"].cat.categories, ""]
    found = np.array([NO_CASTS if (many := casts(name)) is None else many for name in names], dtype=np.int8)
    forward = np.array(["_backward" not in name for name in names])
    code, nodes = name_codes(facts, table.op), optional(backward_nodes, facts)
    in_backward = launched_in(facts, nodes.spans) >= 0 if nodes is not None else np.zeros(len(table.ids), dtype=bool)
    return np.where(in_backward & forward[code], NO_CASTS, found[code]).astype(np.int8)


def _floats(inputs: Inputs) -> tuple[float, float]:
    """Bytes of an element of the largest floating-point input, and how many it has."""
    tensors = [tensor for one in inputs for tensor in one if tensor.dtype in _FLOATING]
    largest = max(tensors, key=lambda one: one.elements, default=None)
    if largest is not None:
        return _FLOATING[largest.dtype], largest.elements
    typed = any(tensor.dtype for one in inputs for tensor in one)
    return 0.0 if typed else 4.0, max((tensor.elements for one in inputs for tensor in one), default=0)


def _filled(facts: Facts, ids: IntArray) -> FloatArray:
    """Share of the multiprocessors that each kernel's blocks fill, at most 1; 1 where unknown."""
    devices = facts.rank.provenance.devices
    grid = facts.rank.kernels[["grid_x", "grid_y", "grid_z"]].reindex(ids, fill_value=0).to_numpy(np.float64)
    blocks, many = grid.prod(axis=1), max((one.multiprocessors for one in devices), default=0)
    return np.where(blocks > 0, np.minimum(blocks / many, 1.0), 1.0) if many else np.ones(len(ids))


def _products(facts: Facts, ops: MatmulOps) -> Products:
    """Matrix products, convolutions and attention, with what the cost of each depends on."""
    names = (*ops.names, "")
    conv = np.array(["conv" in name.lower() for name in names])[ops.name]
    conv |= ops.kind == KERNEL_KINDS.index(KernelKind.CONV)
    attention = np.array(["attention" in name or "flash_attn" in name for name in names])[ops.name]
    attention |= ops.kind == KERNEL_KINDS.index(KernelKind.ATTENTION)
    backward = np.array(["backward" in name for name in names])[ops.name]
    batched = np.array([name in ("aten::bmm", "aten::baddbmm", "aten::matmul") for name in names])[ops.name]
    m, n, k = ops.dims.T.astype(np.float64)
    smallest = np.minimum(np.minimum(m * n, n * k), m * k)
    math = math_dtypes(ops)
    return Products(
        table=ops,
        family=np.where(attention, 2, np.where(conv, 1, 0)).astype(np.int8),
        dtype=np.where(math >= 0, math, ops.dtype).astype(np.int8),
        grade=_grades(ops, conv, attention, backward),
        flops=np.where(ops.flops >= 0, ops.flops, np.nan),
        bytes=np.where(ops.bytes >= 0, ops.bytes, np.nan),
        weights=np.where((ops.dims > 0).all(axis=1) & ~batched & ~attention, smallest, 0.0),
    )


def _grades(ops: MatmulOps, conv: Mask, attention: Mask, backward: Mask) -> npt.NDArray[np.int8]:
    """Grades of products by their inner sizes; of convolutions and attention by direction. As `Products.grade`."""
    found = np.full((3, len(ops.op)), GRADES.index(Grade.ALIGNED), dtype=np.int8)
    distinct, which = np.unique(inner_sizes(ops), axis=0, return_inverse=True)
    for place, size in enumerate(_SIZES):
        of_sizes = [GRADES.index(grade_of(sizes, size)) for sizes in distinct.tolist()]
        found[place] = np.array(of_sizes, dtype=np.int8)[which.reshape(-1)]
    two_ways = attention | conv
    found[:, two_ways] = np.where(backward[two_ways], GRADES.index(Grade.BACKWARD), GRADES.index(Grade.FORWARD))
    return found


def grades_in(products: Products, dtype: npt.NDArray[np.integer]) -> npt.NDArray[np.int8]:
    """The grade of each row where it multiplies in a type (position in DTYPES). Shape (rows,)."""
    of_type = np.array([_SIZES.index(min(max(DTYPE_BYTES[one], 1.0), 4.0)) for one in DTYPES])
    found: npt.NDArray[np.int8] = products.grade[of_type[dtype], np.arange(products.grade.shape[1])]
    return found


_ONCE = """
binary_cross_entropy_with_logits cdist cosine_embedding_loss cosine_similarity cumprod cumsum dist hinge_embedding_loss
huber_loss kl_div kl_div_forward kl_div_backward l1_loss _log_softmax margin_ranking_loss mse_loss nll_loss_forward
nll_loss2d_forward native_layer_norm native_group_norm linalg_vector_norm norm prod renorm smooth_l1_loss
soft_margin_loss sum triplet_margin_loss
"""
_NO_CASTS = "acos asin cosh erfinv exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh softplus softmin tan"

CASTS: dict[str, int] = {**dict.fromkeys(_ONCE.split(), 1), **dict.fromkeys(_NO_CASTS.split(), 0), "_softmax": 2}
"""Ops that stay in fp32, and how often what they work on is cast for them: on one side, or, as softmax lies between
products, on both. What is written out of several of them is cast around the whole, which is not known: 0. Other ops
take the widest type of what they are given. Source: ATen's autocast_mode.h, and
https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32"""


def casts(op: str) -> int | None:
    """How often autocast casts what an op, or its backward, works on; None if it does not stay in fp32."""
    name = op.removeprefix("aten::").rstrip("_")
    for end in ("_backward_data", "_backward"):
        name = name.removesuffix(end)
    return CASTS.get(name)
