"""Chains of memory-bound operations, which could be one: what they are, and what is left of them as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.facts.core.inputs import Mask
from diagnose.trace import nesting
from diagnose.trace.intervals import IntArray, Intervals

LONG = 3  # Operations in a chain, at least, statistics not counted (our choice).
SAVED = (0.25, 0.6, 1.0)  # Of what fusing could save: low, likely, high (our choice).
_VECTOR = 4  # ATen gives a thread 1 to 8 elements, mostly 4: thread counts within this may be of equally many elements.
# An operation on so many times fewer elements than a near one works on a statistic of them, one per row. Chosen.
_STATISTIC, _NEAR = 64, 4

WHOLE = tuple(f"aten::{kind}batch_norm*" for kind in ("", "native_", "cudnn_", "miopen_"))
"""Ops that need all of their input before they give anything, and are bound by that: statistics over the batch take an
H100 two to ten times as long as moving its bytes (benchmarks/rates)."""


@dataclass(frozen=True)
class PointwiseChains:
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
    memory_bound_share: float
    """Of the time of compute that all such kernels take; above 1 only where streams run side by side."""
    times: tuple[tuple[int, Intervals], ...] = ()  # On the CPU: thread, and when it is in them.
    fused_ns: IntArray | None = None
    """On the CPU, as one op: low, likely, and high estimate: reading inputs and writing an output, as fast per byte as
    now. Shape (3, chains)."""


def chained(run: IntArray, own: IntArray, recorded: Mask) -> tuple[IntArray, Mask]:
    """Number of the chain of each operation, which may be one, and which operations work on no statistic.

    `run`: of operations that may be one chain; `own`: elements, exact where `recorded`. Shapes (operations,).
    """
    near = np.zeros_like(own)
    for far in range(1, min(_NEAR + 1, len(own))):
        same = run[far:] == run[:-far]
        near[far:] = np.maximum(near[far:], own[:-far] * same)
        near[:-far] = np.maximum(near[:-far], own[far:] * same)
    tells = own > near // _STATISTIC
    last = np.maximum(np.maximum.accumulate(np.where(tells, np.arange(len(own)), nesting.NONE)), 0)
    size, exact = np.where(run[last] == run, own[last], 0), recorded[last]
    less, more = np.minimum(size[1:], size[:-1]), np.maximum(size[1:], size[:-1])
    # Rotary embeddings and gated units handle halves.
    alike = (less == 0) | (more == less) | (more == 2 * less) | (~(exact[1:] & exact[:-1]) & (more <= _VECTOR * less))
    return np.concatenate(([0], np.cumsum((run[1:] != run[:-1]) | ~alike)))[: len(own)], tells | (own == 0)


def share_of_bytes(group: IntArray, read: IntArray, written: IntArray) -> npt.NDArray[np.float64]:
    """Of each chain's bytes, what is left when no op stores its result for the next to read; 0 unknown."""
    stays = np.zeros(len(group), dtype=bool)
    return bytes_left(group, read, written, stays) / np.maximum(np.bincount(group, read + written), 1)


def bytes_left(group: IntArray, read: IntArray, written: IntArray, stays: Mask) -> npt.NDArray[np.float64]:
    """Of each chain, the bytes that are left when no op stores its result for the next to read; 0 unknown.

    Without those of ops that stay as they are: these need all of what the op before makes, and hand on what they make.
    """
    joined, stays_before, stays_after = group[1:] == group[:-1], stays[:-1], stays[1:]
    not_read = np.minimum(written[:-1], read[1:])
    handed_on = np.where(joined & ~stays_after, not_read + np.where(stays_before, 0, written[:-1]), 0)
    total, unknown = np.bincount(group, (read + written) * ~stays), np.bincount(group, read + written == 0)
    return np.where(unknown, 0, total - np.bincount(group[:-1], handed_on, minlength=len(total)))


def fused(ns: IntArray, high_ns: IntArray) -> IntArray:
    """Times after each share of SAVED. Shape (3, groups)."""
    return np.stack([np.rint(ns - share * (ns - high_ns)).astype(np.int64) for share in SAVED])
