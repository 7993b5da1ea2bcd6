"""Which kernels could be one? Chains of torch's own memory-bound kernels, losses over a vocabulary, written-out attention."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from diagnose.facts.base import Facts, fact
from diagnose.facts.breakdown import breakdown, round_half_up
from diagnose.facts.layout import NO_SHAPES, UNKNOWN, Inputs, eager, named, recorded_inputs, sharding
from diagnose.facts.optimizer import optimizer_work
from diagnose.facts.steps import steps
from diagnose.facts.work import work_table
from diagnose.trace import nesting
from diagnose.trace.enums import LinkKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import KernelKind

Mask = npt.NDArray[np.bool_]

MEMORY_BOUND = (
    KernelKind.ELEMENTWISE,
    KernelKind.REDUCTION,
    KernelKind.NORM,
    KernelKind.SOFTMAX_LOSS,
    KernelKind.ROPE,
    KernelKind.RNG_DROPOUT,
    KernelKind.CAST_QUANT,
    KernelKind.COPY,
    KernelKind.FILL,
)

LONG = 3
"""Kernels in a chain, at least (rule-catalogue AT03)."""

VECTOR = 4
"""ATen's elementwise kernels handle 1 to 4 elements a thread in most builds: thread counts that differ by no more may
be of equally many elements."""

STATISTIC = 64
"""A kernel on so much less than one of the RECENT before it works on a statistic of it, as of each row in a norm: no
model is narrower. Chosen."""

RECENT = 4

FUSED_SHARE = 0.6
"""Of what fusing could save at best, what it likely does (rule-catalogue AT03)."""

SHORT_NS = 4_000
"""Twice the 2 us of the shortest useful kernel (gpu-knowledge 3): below it a kernel's time does not tell its bytes."""

LARGE_VOCABULARY = 32_000
"""Classes from which on a loss is over a vocabulary (rule-catalogue AT03; Llama's first had 32,000)."""


@dataclass(frozen=True)
class PointwiseChains:
    """Chains: kernels that follow each other on a stream, all memory-bound, of torch's own, on equally many elements.

    Not those of optimizers and of data parallelism. Arrays of shape (kernels,), in order of chain and start, or
    (chains,). Chains of the whole recording; totals are per step, of the used steps.
    """

    ids: IntArray
    group: IntArray
    """Number of the chain, for each kernel."""
    kernels: IntArray
    """For each chain, as what follows."""
    elements: IntArray
    """Of its largest kernel; 0 unknown."""
    shapes: Mask
    """The elements are from recorded shapes, rather than from the number of threads."""
    ns: IntArray
    """Sum of durations."""
    hopeful_ns: IntArray
    """If it were one kernel that reads its inputs and writes its output once, as fast per byte. Where shapes do not tell
    bytes, and where all kernels are short: its longest kernel."""
    likely_ns: IntArray
    """After FUSED_SHARE of that saving."""
    in_steps: Mask
    """It starts in a used step."""
    chains_per_step: int
    chains_ns: int
    ops: tuple[str, ...] = field(repr=False)
    """Names of the ops of the chains that take the most time, alike, in the used steps."""
    memory_bound_ns: int
    """Time of all such kernels, in a chain or not."""
    memory_bound_share: float
    """`memory_bound_ns` over the time of compute; above 1 only where streams run side by side."""


def _memory_bound(facts: Facts) -> Mask:
    table = work_table(facts)
    masking = named(facts, table.op, "aten::masked_fill", "aten::masked_fill_")  # By its name, it indexes.
    return eager(facts) & (table.of(*MEMORY_BOUND) | masking)
