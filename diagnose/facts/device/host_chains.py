"""Chains of memory-bound ops where the CPU computes."""

from __future__ import annotations

import numpy as np

from diagnose.facts.core.base import Facts
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import NO_SHAPES, Mask, named
from diagnose.facts.core.names import name_of
from diagnose.facts.core.spans import NO_OPS, HostSpans, host_spans, in_used_steps, on_training_threads
from diagnose.facts.core.steps import steps
from diagnose.facts.device.chains import LONG, PointwiseChains, bytes_left, chained, fused, share_of_bytes
from diagnose.facts.device.layout import traffic_of
from diagnose.facts.optimizer.optimizer import updates
from diagnose.facts.optimizer.zeroing import zeroings
from diagnose.trace import nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.ops import FUSIBLE

CALL_NS = 10_000
"""Of shorter ops more is calling than computing: views take 1 to 9 us in planted cases, a kilobyte of data 5."""

MOST = 0.25
"""Of an op's time, itself: what converts its arguments first spends more on that (0.7 in planted cases). Chosen."""

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
    """As `pointwise_chains`. Raises Missing without ops or shapes."""
    if "ops" not in facts.rank.provenance.recorded:
        raise NO_OPS
    spans, count = facts.rank.spans, steps(facts).count
    ops, dur = _computing(facts)
    elements, read, written = traffic_of(facts, ops.ids)
    if len(ops.ids) and not elements.any():
        raise NO_SHAPES
    written = np.where(named(facts, ops.ids, *_REDUCTIONS), 0, written)
    in_steps = in_used_steps(facts, ops.ids)
    bound = named(facts, ops.ids, *_BOUND) & ~_within(ops, _elsewhere(facts)) & (elements > 0)
    step = spans["step"].to_numpy()[ops.ids]
    joined = bound[1:] & bound[:-1] & (ops.track[1:] == ops.track[:-1]) & (step[1:] == step[:-1])
    run = np.concatenate(([0], np.cumsum(~joined)))[: len(ops.ids)]
    chain, full = chained(run, elements, elements > 0)
    long = (np.bincount(chain, full & bound) >= LONG) & (_calls(facts, ops, chain) >= CALLS)
    rows = np.flatnonzero(long[chain])
    group = (np.cumsum(long) - 1)[chain[rows]]
    ns, longest = _sums(dur[rows], group)
    share, stays = share_of_bytes(group, read[rows], written[rows]), np.zeros(len(rows), dtype=bool)
    high = np.where(share > 0, np.rint(ns * share).astype(np.int64), longest)
    first = np.flatnonzero(np.diff(group, prepend=-1))
    counted = in_steps[rows[first]]
    main = rows[group == np.argmax(ns * counted)] if counted.any() else rows[:0]
    computing = max(int(dur[in_steps].sum()), 1)
    return PointwiseChains(
        on_cpu=True,
        ids=ops.ids[rows],
        group=group,
        stays=stays,
        elements=np.maximum.reduceat(elements[rows], first) if len(rows) else elements[:0],
        ns=ns,
        bytes=bytes_left(group, read[rows], written[rows], stays).astype(np.int64),
        fused_ns=fused(ns, high),
        in_steps=counted,
        chains=round_half_up(int(counted.sum()), count),
        chains_ns=round_half_up(int(ns[counted].sum()), count),
        ops=tuple(name_of(facts, one) for one in ops.ids[main].tolist()),
        memory_bound_share=float(dur[bound & in_steps].sum()) / computing,
        times=tuple((int(one), ops.where(rows[ops.track[rows] == one]).times) for one in np.unique(ops.track[rows])),
    )


def _calls(facts: Facts, ops: HostSpans, chain: IntArray) -> IntArray:
    """In how many calls of torch, none inside another, the ops of each chain are. Shape (chains,)."""
    calls = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost()
    call = nesting.innermost_at(ops.start_ns, ops.track, calls.track, calls.start_ns, calls.end_ns)
    pairs = np.unique(np.stack((chain, call)), axis=1)
    found: IntArray = np.bincount(pairs[0])
    return found


def _computing(facts: Facts) -> tuple[HostSpans, IntArray]:
    """Ops of torch's own that compute themselves, on training threads, by thread and time, and for how long they do."""
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, named=lambda name: name.startswith("aten::")))
    ops = ops.where(np.lexsort((ops.start_ns, ops.track)))
    dur, outer = ops.end_ns - ops.start_ns, ops.parents
    own = dur.copy()
    np.subtract.at(own, outer[outer >= 0], dur[outer >= 0])
    # `aten::relu` calls `aten::clamp_min`: what mostly calls another is that one.
    computes = (own >= CALL_NS) & (own >= MOST * dur)
    return ops.where(computes), own[computes]


def _elsewhere(facts: Facts) -> tuple[HostSpans, ...]:
    """What is no work on activations, is compiled already, or is a part of something larger."""
    around = host_spans(facts, SpanKind.OP, SpanKind.ANNOTATION, named=lambda name: name.startswith(_AROUND))
    return updates(facts), zeroings(facts), around


def _within(ops: HostSpans, others: tuple[HostSpans, ...]) -> Mask:
    found = np.zeros(len(ops.ids), dtype=bool)
    for other in others:
        found |= nesting.innermost_at(ops.start_ns, ops.track, other.track, other.start_ns, other.end_ns) >= 0
    return found


def _sums(dur: IntArray, group: IntArray) -> tuple[IntArray, IntArray]:
    """Sum and most of each group. Shapes (groups,)."""
    first = np.flatnonzero(np.diff(group, prepend=-1))
    if not len(first):
        return dur[:0], dur[:0]
    total: IntArray = np.add.reduceat(dur, first)
    most: IntArray = np.maximum.reduceat(dur, first)
    return total, most
