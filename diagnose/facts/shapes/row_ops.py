"""Ops that go through a table row by row, where another way is much quicker; and matrices that are diagonal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import Inputs, Tensor, named
from diagnose.facts.core.shaped import Shape, Work, inputs_of, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans, host_spans, in_used_steps
from diagnose.facts.core.steps import steps
from diagnose.facts.run.slowdown import slowdown
from diagnose.trace import nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

NESTED_NS = 230
"""Host time to record an op that another calls in a loop (torch 2.13, one CPU: 0.24 us with 2,000 and 18,000 of them in
a call; more where what is recorded does not fit the caches)."""

LEAST_OWN = 0.1
"""Share of an op's host time that is its own, whatever recording the ops inside it seems to take (our choice)."""


@dataclass(frozen=True)
class RowOps:
    """All calls of an op from one line on a tensor of one shape."""

    tensor: Tensor
    calls: int
    """Per step."""
    work: Work
    own_share: float
    """Of their host time what a saving counts: without what recording the many ops inside them takes."""
    site: Site | None

    @property
    def longest_ns(self) -> int:
        """The larger of host time, as a saving counts it, and device time, per step."""
        return max(round(self.work.host_ns * self.own_share), self.work.device_ns)


@fact
def unique_rows(facts: Facts) -> tuple[RowOps, ...]:
    """Calls of `torch.unique` along a dimension, those that take longest first. Raises Missing like `main_ops`."""
    return _by_line(facts, "aten::unique_dim")


@fact
def limited_lookups(facts: Facts) -> tuple[RowOps, ...]:
    """Lookups that check the length of each row (`max_norm`), likewise; the tensor is the table."""
    return _by_line(facts, "aten::embedding_renorm_")


def _by_line(facts: Facts, *names: str) -> tuple[RowOps, ...]:
    tops, _ = main_ops(facts)
    chosen = tops.where(named(facts, tops.ids, *names))
    groups: dict[tuple[Site | None, Tensor], list[int]] = {}
    for span, site, inputs in zip(
        chosen.ids.tolist(), sites_of(facts, chosen.ids), inputs_of(facts, chosen.ids), strict=True
    ):
        if inputs and inputs[0]:
            groups.setdefault((site, inputs[0][0]), []).append(span)
    made = []
    for (site, tensor), own in groups.items():
        ids = np.array(own)
        work = work_of(facts, ids)
        made.append(RowOps(tensor, _per_step(facts, ids), work, _own_share(facts, ids, work), site))
    return tuple(sorted(made, key=lambda one: -one.longest_ns))


def _own_share(facts: Facts, ids: IntArray, work: Work) -> float:
    """Savings are shares of the recorded step, which is as much longer than the step itself as `slowdown` says."""
    every = host_spans(facts, SpanKind.OP)
    own = every.where(np.isin(every.ids, ids)).in_steps(facts)
    inside = nesting.innermost_at(every.start_ns, every.track, own.track, own.start_ns, own.end_ns) >= 0
    recording_ns = NESTED_NS * (int(inside.sum()) - len(own.ids)) / steps(facts).count
    slower = optional(slowdown, facts)
    ratio = max(slower.ratio or 1.0, 1.0) if slower else 1.0
    return min(max(1 - recording_ns / max(work.host_ns, 1), LEAST_OWN) * ratio, 1.0)


def _per_step(facts: Facts, ids: IntArray) -> int:
    return round_half_up(int(in_used_steps(facts, ids).sum()), steps(facts).count)


@dataclass(frozen=True)
class DiagonalMatrices:
    """What works on matrices that were made of their diagonals."""

    shape: Shape
    """Of all of them, the last two dimensions those of a matrix."""
    ops: int
    """Per step; those that make them included."""
    work: Work
    """The ops, and their backward pass."""
    site: Site | None
    """The line that makes the first of them."""


@fact
def diagonal_matrices(facts: Facts) -> tuple[DiagonalMatrices, ...]:
    """By shape, those that take longest first. Raises Missing like `main_ops`.

    Matrices are known by their shape: only batches of them count, as no weight has the batch's size. Where others of
    that shape are there before them in a step, or two of it are added, they may be full: such shapes are left out.
    """
    tops, given = main_ops(facts)
    inputs = inputs_of(facts, tops.ids)
    makes = np.flatnonzero(named(facts, tops.ids, "aten::diag_embed")).tolist()
    shapes = {(*shape, shape[-1]) for at in makes if (shape := given[at]) and len(shape) > 1 and shape[-1] > 1}
    makers = [(shape, [at for at in makes if given[at] == shape[:-1]]) for shape in shapes]
    made = [_of_shape(facts, tops, inputs, shape, own) for shape, own in makers]
    return tuple(sorted((one for one in made if one is not None), key=lambda one: -one.work.longest_ns))


_ADDS = ("aten::add*", "aten::sub*", "aten::baddbmm*", "aten::where", "aten::lerp*")
"""Ops by which entries come beside the diagonal."""


def _of_shape(
    facts: Facts, tops: HostSpans, inputs: list[Inputs], shape: Shape, own: list[int]
) -> DiagonalMatrices | None:
    taken = [sum(tensor.shape == shape for one in some for tensor in one) for some in inputs]
    uses = np.flatnonzero(taken).tolist()
    step, adds = facts.rank.spans["step"].to_numpy()[tops.ids], named(facts, tops.ids, *_ADDS)
    first = {int(step[at]): at for at in reversed(own)}
    if any(at < first.get(int(step[at]), len(taken)) or (adds[at] and taken[at] > 1) for at in uses):
        return None
    mine = tops.where(np.array(sorted({*own, *uses})))
    work = work_of(facts, np.concatenate((mine.ids, backward_ops(facts, mine))))
    return DiagonalMatrices(shape, _per_step(facts, mine.ids), work, sites_of(facts, tops.ids[own[:1]])[0])
