"""Chains of memory-bound ops, on the device and on the CPU: what they are, and what is left of them as one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import NO_SHAPES, Mask, name_of, named
from diagnose.facts.core.spans import NO_OPS, HostSpans, host_spans, in_used_steps, on_training_threads
from diagnose.facts.core.steps import steps
from diagnose.facts.device.layout import traffic_of
from diagnose.facts.optimizer.optimizer import updates, zeroings
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals

# Not fills: what is filled is mostly written to at places next, and no code fuses that. Not random numbers:
# an encoder with dropout, compiled, took 1.4 to 1.9 times as long (without dropout 1.2 times; torch 2.13).
FUSIBLE = (
    *("add", "sub", "rsub", "mul", "div", "neg", "abs", "sign", "pow", "square", "sqrt", "rsqrt", "reciprocal"),
    *("exp", "expm1", "log", "log1p", "log2", "sin", "cos", "tanh", "sigmoid", "erf", "lerp", "addcmul", "addcdiv"),
    *("relu", "gelu", "silu", "elu", "leaky_relu", "hardtanh", "hardswish", "softplus", "log_sigmoid_forward"),
    *("clamp", "clamp_min", "clamp_max", "maximum", "minimum", "where", "masked_fill", "copy_"),
    *("eq", "ne", "lt", "le", "gt", "ge", "bitwise_not", "bitwise_and", "logical_not", "logical_and"),
    *("tanh_backward", "sigmoid_backward", "gelu_backward", "silu_backward", "elu_backward", "threshold_backward"),
    *("hardtanh_backward", "leaky_relu_backward", "hardswish_backward", "softplus_backward", "native_dropout_backward"),
    *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
)
"""Ops on elements, and softmax, that a compiler joins in one kernel."""

CALL_NS = 10_000  # Of shorter ops more is calling than computing: planted views take 1 to 9 us, a kilobyte of data 5.

MOST = 0.25  # Of an op's time, itself: what converts its arguments first spends more on that (0.7 in planted cases).

CALLS = 3
"""In fewer calls a chain is torch's own: the backward pass of `amax`, or of a division. Compiled, a net with these took
2.5 to 2.7 times as long (torch 2.13), as its reductions came out slower than torch's."""

_REDUCTIONS = tuple(f"aten::{name}" for name in ("sum", "mean", "amax", "amin", "max", "min", "var_mean", "var", "std"))
_POINTWISE = tuple(f"aten::{name}" for name in FUSIBLE)
_BOUND = (*_REDUCTIONS, *_POINTWISE, *(f"{name}_" for name in _POINTWISE))
_AROUND = (
    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    "## Call CompiledFxGraph ",
    # What these copy and add belongs to them.
    *("aten::addmm", "aten::_addmm", "aten::linear", "aten::baddbmm", "aten::conv", "aten::_conv", "aten::mkldnn_"),
)


def chains_on_cpu(facts: Facts) -> PointwiseChains:
    """`pointwise_chains` of a training on the CPU: of ops instead of kernels. Raises Missing without ops or shapes."""
    if "ops" not in facts.rank.provenance.recorded:
        raise NO_OPS
    spans, count = facts.rank.spans, steps(facts).count
    ops, dur = _computing(facts)
    elements, read, written = traffic_of(facts, ops.ids)
    if len(ops.ids) and not elements.any():
        raise NO_SHAPES
    written = np.where(named(facts, ops.ids, *_REDUCTIONS), 0, written)
    in_steps = in_used_steps(facts, ops.ids)
    bound = named(facts, ops.ids, *_BOUND) & ~_elsewhere(facts, ops) & (elements > 0)
    step = spans["step"].to_numpy()[ops.ids]
    joined = bound[1:] & bound[:-1] & (ops.track[1:] == ops.track[:-1]) & (step[1:] == step[:-1])
    run = np.concatenate(([0], np.cumsum(~joined)))[: len(ops.ids)]
    chain, full = chained(run, elements, elements > 0)
    long = (np.bincount(chain, full & bound) >= LONG) & (_calls(facts, ops, chain) >= CALLS)
    rows = np.flatnonzero(long[chain])
    group = (np.cumsum(long) - 1)[chain[rows]]
    first, stays = np.flatnonzero(np.diff(group, prepend=-1)), np.zeros(len(rows), dtype=bool)
    ns, longest = np.add.reduceat(dur[rows], first), np.maximum.reduceat(dur[rows], first)
    left = bytes_left(group, read[rows], written[rows], stays)
    share = left / np.maximum(np.bincount(group, (read + written)[rows]), 1)
    high = np.where(share > 0, np.rint(ns * share).astype(np.int64), longest)
    counted = in_steps[rows[first]]
    main = rows[group == np.argmax(ns * counted)] if counted.any() else rows[:0]
    computing = max(int(dur[in_steps].sum()), 1)
    return PointwiseChains(
        on_cpu=True,
        ids=ops.ids[rows],
        group=group,
        stays=stays,
        elements=np.maximum.reduceat(elements[rows], first),
        ns=ns,
        bytes=left.astype(np.int64),
        fused_ns=fused(ns, high),
        in_steps=counted,
        chains=round_half_up(int(counted.sum()), count),
        chains_ns=round_half_up(int(ns[counted].sum()), count),
        ops=tuple(name_of(facts, one) for one in ops.ids[main].tolist()),
        memory_bound_share=float(dur[bound & in_steps].sum()) / computing,
        times=tuple((int(one), ops.where(rows[ops.track[rows] == one]).times) for one in np.unique(ops.track[rows])),
    )


def _calls(facts: Facts, ops: HostSpans, chain: IntArray) -> IntArray:
    """In how many outermost ops of training threads the ops of each chain are. Shape (chains,)."""
    calls = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost()
    call = intervals.innermost_at(ops.start_ns, ops.track, calls.track, calls.start_ns, calls.end_ns)
    pairs = np.unique(np.stack((chain, call)), axis=1)
    found: IntArray = np.bincount(pairs[0])
    return found


def _computing(facts: Facts) -> tuple[HostSpans, IntArray]:
    """Training threads' aten ops that compute themselves, in order of thread and start, and the ns of that."""
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, named=lambda name: name.startswith("aten::")))
    ops = ops.where(np.lexsort((ops.start_ns, ops.track)))
    dur, outer = ops.end_ns - ops.start_ns, ops.parents
    own = dur.copy()
    np.subtract.at(own, outer[outer >= 0], dur[outer >= 0])
    # `aten::relu` calls `aten::clamp_min`: what mostly calls another is that one.
    computes = (own >= CALL_NS) & (own >= MOST * dur)
    return ops.where(computes), own[computes]


def _elsewhere(facts: Facts, ops: HostSpans) -> Mask:
    """Which ops lie in an optimizer's update, in zeroing of gradients, or in a span of _AROUND. Shape (ops,)."""
    around = host_spans(facts, SpanKind.OP, SpanKind.ANNOTATION, named=lambda name: name.startswith(_AROUND))
    found = np.zeros(len(ops.ids), dtype=bool)
    for other in (updates(facts), zeroings(facts), around):
        found |= intervals.innermost_at(ops.start_ns, ops.track, other.track, other.start_ns, other.end_ns) >= 0
    return found


LONG = 3  # Operations in a chain, at least, statistics not counted (our choice).
SAVED = (0.25, 0.6, 1.0)  # Of what fusing could save: low, likely, high (our choice).
_VECTOR = 4  # ATen gives a thread 1 to 8 elements, mostly 4: thread counts within this may be of equally many elements.
# An operation on so many times fewer elements than a near one works on a statistic of them, one per row. Chosen.
_STATISTIC, _NEAR = 64, 4

WHOLE = tuple(f"aten::{kind}batch_norm*" for kind in ("", "native_", "cudnn_", "miopen_"))
"""Ops that need all of their input before they give anything, and are bound by that: statistics over the batch take an
H100 two to ten times as long as moving its bytes (benchmarks/rates)."""


class PointwiseChains(Struct, frozen=True):
    """Kernels that follow each other on a stream, memory-bound, on equally many elements, launched by torch's own ops.

    Of a training on the CPU: torch's own ops, on a thread. Not those for parameters and gradients. Of the whole
    recording, in arrays of shape (chains,); totals are per step.
    """

    on_cpu: bool  # The training computes on the CPU: what is called a kernel here is an op.
    ids: IntArray
    group: IntArray  # Number of each kernel's chain. Shape (kernels,), as of `ids`.
    stays: Mask  # Kernels that take as long in one with the others: of WHOLE. Shape (kernels,).
    elements: IntArray  # Of its largest kernel; 0 unknown.
    ns: IntArray  # Sum of durations.
    bytes: IntArray  # What it reads and writes as one kernel, without those that stay; 0 unknown.
    in_steps: Mask  # It begins in a used step.
    chains: int
    chains_ns: int
    ops: tuple[str, ...]  # Of the longest chain in the used steps whose ops are all known, in order.
    memory_bound_share: float  # Of the time of compute in all such kernels; above 1 only where streams run in parallel.
    times: tuple[tuple[int, Intervals], ...] = ()  # On the CPU: thread, and when it is in them.
    fused_ns: IntArray | None = None
    """On the CPU, as one op: low, likely, and high estimate: reading inputs and writing an output, as fast per byte as
    now. Shape (3, chains)."""


def chained(run: IntArray, own: IntArray, recorded: Mask) -> tuple[IntArray, Mask]:
    """For each operation the number of its chain, which may have one, and whether it works on more than a statistic.

    `run`: number of the run of neighbours, which chains divide; `own`: elements, exact where `recorded`; 0 unknown.
    """
    near = np.zeros_like(own)
    for far in range(1, min(_NEAR + 1, len(own))):
        same = run[far:] == run[:-far]
        near[far:] = np.maximum(near[far:], own[:-far] * same)
        near[:-far] = np.maximum(near[:-far], own[far:] * same)
    tells = own > near // _STATISTIC
    last = np.maximum(np.maximum.accumulate(np.where(tells, np.arange(len(own)), intervals.NONE)), 0)
    size, exact = np.where(run[last] == run, own[last], 0), recorded[last]
    less, more = np.minimum(size[1:], size[:-1]), np.maximum(size[1:], size[:-1])
    # Rotary embeddings and gated units handle halves.
    alike = (less == 0) | (more == less) | (more == 2 * less) | (~(exact[1:] & exact[:-1]) & (more <= _VECTOR * less))
    return np.concatenate(([0], np.cumsum((run[1:] != run[:-1]) | ~alike)))[: len(own)], tells | (own == 0)


def bytes_left(group: IntArray, read: IntArray, written: IntArray, stays: Mask) -> npt.NDArray[np.float64]:
    """Bytes that each chain (number: `group`) moves if no op stores its result for the next to read; 0 unknown.

    Without those of ops that stay: what the op before these makes is still stored, what they make is not read again.
    """
    joined, stays_before, stays_after = group[1:] == group[:-1], stays[:-1], stays[1:]
    not_read = np.minimum(written[:-1], read[1:])
    handed_on = np.where(joined & ~stays_after, not_read + np.where(stays_before, 0, written[:-1]), 0)
    total, unknown = np.bincount(group, (read + written) * ~stays), np.bincount(group, read + written == 0)
    return np.where(unknown, 0, total - np.bincount(group[:-1], handed_on, minlength=len(total)))


def fused(ns: IntArray, high_ns: IntArray) -> IntArray:
    """Times of groups of `ns` now and `high_ns` if all is saved, after each share of SAVED. Shape (3, groups)."""
    return np.stack([np.rint(ns - share * (ns - high_ns)).astype(np.int64) for share in SAVED])
