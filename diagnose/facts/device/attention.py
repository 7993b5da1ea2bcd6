"""Does fused attention run on the fastest backend that the GPU has?"""

from __future__ import annotations

from enum import Enum

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import NO_SHAPES, Mask
from diagnose.facts.core.shaped import inputs_of
from diagnose.facts.core.steps import steps
from diagnose.facts.device.roofline import MatmulOps, matmul_ops
from diagnose.trace.costs import DTYPES
from diagnose.trace.intervals import IntArray

FLASH_FROM = (8, 0)  # FlashAttention 2 needs compute capability 8.0; 16 bits; and heads of at most WIDEST.
WIDEST = 256
NEWER_ON = ((9,), (10,))
"""Major compute capabilities for which FlashAttention 3 or 4 and cuDNN have kernels of their own."""
NEWER_LEFT = (1 / 1.1, 1 / 1.5, 1 / 2.0)
"""FlashAttention 3 takes 1.5 to 2 times less than 2 forward, 1.5 to 1.75 times backward (arXiv 2407.08608); with short
sequences little less."""
LONG = 1_024  # Queries and keys, from which on that holds (figures 5 and 6 of the same).


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
    """Share of their time with the faster one: low, likely and high estimate; None of what costs has prices for."""


@fact
def slow_attention(facts: Facts) -> tuple[SlowAttention, ...]:
    """By backend and mask. Raises Missing without device work, without shapes, or if the GPU is not known."""
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    ops, capability = matmul_ops(facts), _capability(facts)
    half = np.isin(ops.dtype, [DTYPES.index(one) for one in ("fp16", "bf16")])
    fits = half & (ops.dims[:, 2] > 0) & (ops.dims[:, 2] <= WIDEST) & (ops.flops > 0)
    efficient = fits & _named(ops, "efficient_attention") & (capability >= FLASH_FROM)
    flash = fits & _by_flash_2(facts, ops) & (ops.dims[:, :2].min(axis=1) >= LONG) & (capability[:1] in NEWER_ON)
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


def _named(ops: MatmulOps, part: str) -> Mask:
    return np.append([part in name for name in ops.names], False)[ops.name].astype(bool)


def _by_flash_2(facts: Facts, ops: MatmulOps) -> Mask:
    names = facts.rank.spans["name"].cat
    own = [
        ("flash_fwd_kernel" in category or "flash_bwd_dq_dk_dv" in category) and "Sm90" not in category
        for category in names.categories
    ]
    found = np.zeros(len(ops.op), dtype=bool)
    found[ops.row[np.array(own, dtype=bool)[names.codes.to_numpy()[ops.work]]]] = True
    return found


def _has_mask(facts: Facts, ops: MatmulOps, at: int) -> bool:
    """Of memory-efficient attention: the input behind queries, keys and values, which backward follow the gradient."""
    (inputs,) = inputs_of(facts, ops.op[[at]])
    behind = 4 if ops.names[ops.name[at]].endswith("backward") else 3
    return len(inputs) > behind and bool(inputs[behind]) and inputs[behind][0].elements > 1


def _slow(facts: Facts, ops: MatmulOps, chosen: Mask, backend: Backend, masked: bool) -> SlowAttention:
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
