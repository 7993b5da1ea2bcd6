"""Which kernels could be one? Chains of memory-bound kernels, losses over a vocabulary, attention written out."""

from enum import Enum
from math import prod

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import breakdown, round_half_up
from diagnose.facts.core.inputs import NO_SHAPES, Inputs, Mask, inputs_of, name_codes, name_of, named, recorded_inputs
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.spans import NO_OPS, HostSpans, launched_in, members, names_of, sites_of
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import work_table
from diagnose.facts.device.chains import LONG, WHOLE, PointwiseChains, bytes_left, chained, chains_on_cpu
from diagnose.facts.device.layout import eager, for_parallelism, traffic
from diagnose.facts.device.roofline import MatmulOps, matmul_ops
from diagnose.facts.optimizer.optimizer import for_parameters
from diagnose.trace import intervals
from diagnose.trace.costs import DTYPES
from diagnose.trace.enums import LinkKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import KernelKind

_POINTWISE = (KernelKind.ELEMENTWISE, KernelKind.ROPE, KernelKind.RNG_DROPOUT, KernelKind.CAST_QUANT, KernelKind.COPY)
MEMORY_BOUND = (*_POINTWISE, KernelKind.FILL, KernelKind.REDUCTION, KernelKind.NORM, KernelKind.SOFTMAX_LOSS)

FORWARD_FLOPS, BACKWARD_FLOPS = 4, 10
"""For each query, key and element of a head: two matmuls, and five in a backward pass that computes scores again."""
MOST_FLOPS = 1 << 62  # Of a pass: shapes of a damaged trace may be any.
FloatArray = npt.NDArray[np.float64]
Dims = tuple[int, int, int, int]
_MATMULS = ("aten::bmm", "aten::baddbmm")
_MASKING = ("aten::masked_fill*", "aten::where", "aten::tril*", "aten::triu*")
FORWARD_TENSORS, BACKWARD_TENSORS = 4, 8  # Queries, keys, values, the result; backward these and the gradient of each.


@fact
def pointwise_chains(facts: Facts) -> PointwiseChains:
    """The chains; there may be none. Raises Missing without device work; of a training on the CPU without shapes."""
    if trains_on_cpu(facts):
        return chains_on_cpu(facts)
    table, count = work_table(facts), steps(facts).count
    bound = _memory_bound(facts) & ~for_parameters(facts) & ~for_parallelism(facts)
    recorded, read, written = traffic(facts, bound)
    elements = _elements(facts, recorded)
    order = np.lexsort((table.start_ns, table.track))
    chain, full = chained(_run(facts, order, bound[order]), elements[order], (recorded > 0)[order])
    op = table.op[order]
    opens = (np.diff(chain, prepend=-1) > 0) | (np.diff(op, prepend=-2) != 0) | (op < 0)
    long = (np.bincount(chain, full) >= LONG) & (np.bincount(chain, opens) > 1)
    chosen = long[chain]
    rows, group, opens = order[chosen], (np.cumsum(long) - 1)[chain[chosen]], opens[chosen]
    of_op, in_op = rows[opens], group[opens]
    first = np.flatnonzero(np.diff(group, prepend=-1))
    ns = np.add.reduceat(table.dur_ns[rows], first)
    in_steps = table.in_steps[rows[first]]
    bound_ns = round_half_up(int(table.dur_ns[bound & table.in_steps].sum()), count)
    known_ns = ns * in_steps * (np.bincount(in_op, table.op[of_op] < 0) == 0)
    main = table.op[of_op[in_op == np.argmax(known_ns)]] if known_ns.any() else table.op[:0]
    return PointwiseChains(
        on_cpu=False,
        ids=table.ids[rows],
        group=group,
        stays=named(facts, table.op[rows], *WHOLE),
        elements=np.maximum.reduceat(elements[rows], first),
        ns=ns,
        bytes=bytes_left(in_op, read[of_op], written[of_op], named(facts, table.op[of_op], *WHOLE)).astype(np.int64),
        in_steps=in_steps,
        chains=round_half_up(int(in_steps.sum()), count),
        chains_ns=round_half_up(int(ns[in_steps].sum()), count),
        ops=tuple(name_of(facts, one) for one in main.tolist()),
        memory_bound_share=bound_ns / max(breakdown(facts).compute_ns, 1),
    )


def _memory_bound(facts: Facts) -> Mask:
    """Which rows of the work table are memory-bound kernels that torch's own ops launched."""
    masking = named(facts, work_table(facts).op, "aten::masked_fill*")  # Its kernels' names say indexing.
    return eager(facts) & (work_table(facts).of(*MEMORY_BOUND) | masking)


def _elements(facts: Facts, recorded: IntArray) -> IntArray:
    """Elements of each row of the work table: `recorded`, else the threads of an elementwise kernel; 0 unknown."""
    table, names = work_table(facts), facts.rank.spans["name"].cat.categories
    iterates = np.array(["elementwise" in name for name in names], dtype=bool)[name_codes(facts, table.ids)]
    grid = facts.rank.kernels[[f"{of}_{axis}" for of in ("grid", "block") for axis in "xyz"]]
    threads = grid.reindex(table.ids, fill_value=0).to_numpy().astype(np.int64).prod(axis=1)
    return np.where(recorded > 0, recorded, np.where(iterates, np.clip(threads, 0, 2**50), 0))


def _run(facts: Facts, order: IntArray, member: Mask) -> IntArray:
    """Number of each row's run, in `order`: members in a row of one stream, launching thread and step; others alone."""
    table, spans = work_table(facts), facts.rank.spans
    thread = np.append(spans["track"].to_numpy(), intervals.NONE)[table.launch]
    place = np.stack((table.track, thread, spans["step"].to_numpy()[table.ids]))[:, order]
    joined = member[1:] & member[:-1] & (place[:, 1:] == place[:, :-1]).all(axis=0)
    return np.concatenate(([0], np.cumsum(~joined)))


class AttentionChain(Struct, frozen=True):
    """Attention of one shape as matmul, softmax and matmul, in passes forward and backward. Totals are per step."""

    asked_by: str  # The outermost op of the first matmul: `aten::scaled_dot_product_attention` for its math backend.
    batch: int  # Batch size times heads.
    queries: int
    keys: int
    head_dim: int
    calls: int
    forward_ns: int
    backward_ns: int | None  # None if the recording does not say what is the backward of what.
    ids: IntArray
    group: IntArray  # Number of the pass that each of `ids` is in.
    backward: Mask  # Of each pass. Shape (passes,), like the next two.
    flops: FloatArray  # Of a pass as one kernel, without a mask.
    elements: FloatArray  # That it reads and writes.
    masked: bool  # Something between the products sets scores to what they are told: a mask, of whatever form.
    site: Site | None = None  # Of the first matmul.


@fact
def attention_chains(facts: Facts) -> tuple[AttentionChain, ...]:
    """Attention by shape, longest first. Raises Missing without device work, ops or, of what may be it, shapes."""
    table = work_table(facts)
    if "ops" not in facts.rank.provenance.recorded:
        raise NO_OPS
    order = np.lexsort((table.start_ns, table.track))
    first, middle, second = _around_softmax(facts, order)
    ops = table.op[order[np.stack((first, middle, second))]]
    position, inputs = recorded_inputs(facts, ops.reshape(-1))
    if len(first) and not (position >= 0).any():
        raise NO_SHAPES
    forward = [order[one:other] for one, other in zip(first.tolist(), (second + 1).tolist(), strict=True)]
    backward = _backward_of(facts, ops[0], ops[2])
    keys = np.vstack((position.reshape(3, -1), name_codes(facts, table.asked_by[order[first]])))
    distinct, kind = np.unique(keys, axis=1, return_inverse=True)
    found = []
    for key, alike in zip(distinct.T.tolist(), members(kind.reshape(-1), distinct.shape[1]), strict=True):
        shape = _shape(*(inputs[call] if call >= 0 else () for call in key[:3]))
        passes = [[rows[k] for k in alike.tolist()] for rows in (forward, backward)]
        if shape and table.in_steps[np.concatenate(passes[0])].any():
            found.append(_attention(facts, shape, passes[0], passes[1]))
    return tuple(sorted(found, key=lambda one: -one.forward_ns))


def _around_softmax(facts: Facts, order: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """(first matmul, softmax, second) as positions in `order`, with only memory-bound kernels and copies between."""
    table, op = work_table(facts), work_table(facts).op[order]
    matmul, softmax = named(facts, op, *_MATMULS), named(facts, op, "aten::_softmax")
    run = _run(facts, order, matmul | softmax | (_memory_bound(facts) | table.of(KernelKind.MEMORY))[order])
    index = np.arange(len(order))
    before = np.maximum.accumulate(np.where(matmul, index, 0))
    after = np.minimum.accumulate(np.where(matmul, index, len(order) - 1)[::-1])[::-1]
    at = np.flatnonzero(softmax & (np.diff(op, prepend=-2) != 0))
    first, second = before[at], after[at]
    whole = matmul[first] & matmul[second] & (run[first] == run[at]) & (run[second] == run[at])
    return first[whole], at[whole], second[whole]


def _shape(scores: Inputs, softmax: Inputs, values: Inputs) -> Dims | None:
    """Batch, queries, keys and head size, by the inputs of the three ops; None if they do not fit each other."""
    one, other = ([t.shape for call in inputs for t in call if len(t.shape) == 3][-2:] for inputs in (scores, values))
    if len(one) < 2 or len(other) < 2 or not softmax or not softmax[0]:
        return None
    (batch, queries, size), keys = one[0], one[1][2]
    fits = other[0] == (batch, queries, keys) and softmax[0][0].elements == batch * queries * keys
    return (batch, queries, keys, size) if fits else None


def _backward_of(facts: Facts, first: IntArray, last: IntArray) -> list[IntArray]:
    """By attention, the rows of the work table that its backward pass launches. `first`, `last`: ids of its end ops."""
    spans, links = facts.rank.spans, facts.rank.links
    links = links[links["kind"] == LinkKind.FORWARD_OF.value]
    start, track = spans["start_ns"].to_numpy(), spans["track"].to_numpy().astype(np.int64)
    end, of, to = start + spans["dur_ns"].to_numpy(), links["from_id"].to_numpy(), links["to_id"].to_numpy()
    chain = intervals.innermost_at(start[of], track[of], track[first], start[first], end[last])
    to, chain = to[chain >= 0], chain[chain >= 0]
    held = launched_in(facts, HostSpans(to, start[to], end[to], track[to]))
    rows = np.flatnonzero(held >= 0)
    return [rows[mine] for mine in members(chain[held[rows]], len(first))]


def _attention(facts: Facts, shape: Dims, forward: list[IntArray], backward: list[IntArray]) -> AttentionChain:
    """The attention of one shape. `forward`, `backward`: the rows of the work table of each of its passes."""
    table, count = work_table(facts), steps(facts).count
    passes = [*forward, *(rows for rows in backward if len(rows))]
    rows, group = np.concatenate(passes), np.repeat(np.arange(len(passes)), [len(pass_) for pass_ in passes])
    backward_known = LinkKind.FORWARD_OF.value in facts.rank.links["kind"].to_numpy()
    is_backward = np.arange(len(passes)) >= len(forward)
    batch, queries, keys, size = shape
    pass_elements = float(min(batch * (queries + keys) * size / 2, MOST_FLOPS))
    used_ns, of_backward = table.dur_ns[rows] * table.in_steps[rows], is_backward[group]
    return AttentionChain(
        name_of(facts, int(table.asked_by[rows[0]])),
        *shape,
        calls=round_half_up(sum(bool(table.in_steps[pass_[0]]) for pass_ in forward), count),
        forward_ns=round_half_up(int(used_ns[~of_backward].sum()), count),
        backward_ns=round_half_up(int(used_ns[of_backward].sum()), count) if backward_known else None,
        ids=table.ids[rows],
        group=group,
        backward=is_backward,
        flops=np.where(is_backward, BACKWARD_FLOPS, FORWARD_FLOPS) * float(min(prod(shape), MOST_FLOPS)),
        elements=np.where(is_backward, BACKWARD_TENSORS, FORWARD_TENSORS) * pass_elements,
        masked=bool(named(facts, table.op[forward[0]], *_MASKING).any()),
        site=sites_of(facts, table.op[forward[0][:1]])[0],
    )


FLASH_FROM = (8, 0)  # FlashAttention 2 needs compute capability 8.0; 16 bits; and heads of at most WIDEST.
WIDEST = 256
NEWER_ON = ((9,), (10,))  # Major compute capabilities for which FlashAttention 3 or 4 and cuDNN have own kernels.
NEWER_LEFT = (1 / 1.1, 1 / 1.5, 1 / 2.0)
"""FlashAttention 3 takes 1.5 to 2 times less than 2 forward, 1.5 to 1.75 times backward (arXiv 2407.08608); with short
sequences little less."""
LONG_SEQUENCE = 1_024  # Queries and keys, from which on that holds (figures 5 and 6 of the same).


class Backend(str, Enum):
    """What computes attention."""

    EFFICIENT = "memory-efficient attention"
    FLASH_2 = "FlashAttention 2"


class SlowAttention(Struct, frozen=True):
    """Calls of one backend for which the GPU has a faster one; totals are per step."""

    backend: Backend
    masked: bool  # A mask is given as a tensor, which the faster one does not take.
    calls: int
    queries: int
    keys: int
    head_dim: int  # Of the longest.
    ids: IntArray  # Kernels of the whole recording.
    ns: int
    left: tuple[float, float, float] | None
    """Share of their time with the faster one: low, likely and high estimate; None if `costs` prices it (EFFICIENT)."""


@fact
def slow_attention(facts: Facts) -> tuple[SlowAttention, ...]:
    """By backend and mask. Raises Missing without device work, without shapes, or if the GPU is not known."""
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    ops, capability = matmul_ops(facts), _capability(facts)
    half = np.isin(ops.dtype, [DTYPES.index(one) for one in ("fp16", "bf16")])
    fits = half & (ops.dims[:, 2] > 0) & (ops.dims[:, 2] <= WIDEST) & (ops.flops > 0)
    efficient = fits & ops.named(lambda name: "efficient_attention" in name) & (capability >= FLASH_FROM)
    flash = fits & _by_flash_2(facts, ops) & (capability[:1] in NEWER_ON)
    flash &= ops.dims[:, :2].min(axis=1) >= LONG_SEQUENCE
    masked = np.zeros(len(ops.op), dtype=bool)
    masked[efficient] = [_has_mask(facts, ops, at) for at in np.flatnonzero(efficient).tolist()]
    found = [
        _slow(facts, ops, chosen, backend, is_masked)
        for backend, chosen, is_masked in (
            (Backend.EFFICIENT, efficient & ~masked, False),
            (Backend.EFFICIENT, efficient & masked, True),
            (Backend.FLASH_2, flash, False),
        )
        if (chosen & ops.in_steps).any()
    ]
    return tuple(sorted(found, key=lambda one: -one.ns))


def _capability(facts: Facts) -> tuple[int, ...]:
    devices = facts.rank.provenance.devices
    return devices[0].compute_capability if devices and devices[0].warp_size == 32 else ()


def _by_flash_2(facts: Facts, ops: MatmulOps) -> Mask:
    """Which attention ops run kernels of FlashAttention-2: those for Hopper (Sm90) are FlashAttention-3's."""
    kernels, uses_flash_2 = ("flash_fwd_kernel", "flash_bwd_dq_dk_dv"), np.zeros(len(ops.op), dtype=bool)
    is_flash_2 = [any(one in name for one in kernels) and "Sm90" not in name for name in names_of(facts)]
    uses_flash_2[ops.row[np.array(is_flash_2, dtype=bool)[name_codes(facts, ops.work)]]] = True
    return uses_flash_2


def _has_mask(facts: Facts, ops: MatmulOps, at: int) -> bool:
    """Whether memory-efficient attention has a mask: its 4th input, or the 5th of its backward op."""
    (inputs,) = inputs_of(facts, ops.op[[at]])
    behind = 4 if ops.names[ops.name[at]].endswith("backward") else 3
    return len(inputs) > behind and bool(inputs[behind]) and inputs[behind][0].elements > 1


def _slow(facts: Facts, ops: MatmulOps, chosen: Mask, backend: Backend, masked: bool) -> SlowAttention:
    """The chosen calls of one attention backend; its sizes are those of the longest call."""
    used = np.flatnonzero(chosen & ops.in_steps)
    longest = used[np.argmax(ops.dur_ns[used])]
    queries, keys, head_dim = ops.dims[longest].tolist()
    count = steps(facts).count
    return SlowAttention(
        backend=backend,
        masked=masked,
        calls=round_half_up(len(used), count),
        queries=queries,
        keys=keys,
        head_dim=head_dim,
        ids=ops.work[chosen[ops.row]],
        ns=round_half_up(int(ops.dur_ns[used].sum()), count),
        left=NEWER_LEFT if backend is Backend.FLASH_2 else None,
    )
