"""How many FLOPs does a step multiply, and how near does that come to what the device could do in the time?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.matmuls import peaks
from diagnose.facts.core.steps import steps
from diagnose.facts.device.roofline import math_dtypes, matmul_ops
from diagnose.trace.costs import DTYPES
from diagnose.trace.hardware import Peaks

KNOWN_SHARE = 0.95  # Of the FLOPs: so many have to have a known type for an MFU (our choice).


class TypeFlops(Struct, frozen=True):
    """What is multiplied in one type."""

    dtype: str  # One of `costs.DTYPES`; "" where neither a kernel's name nor its inputs tell it.
    flops: int  # Per step.
    peak_flops_per_s: float | None  # Nominal, dense, of all devices of the rank; None if it is not known.


class AchievedFlops(Struct, frozen=True):
    """FLOPs of matrix products, convolutions and attention from their shapes, mean of the recorded steps.

    All that runs is counted, also what activation checkpointing runs again.
    """

    flops: int  # Per step.
    flops_per_s: float  # Over the whole step, as recorded.
    types: tuple[TypeFlops, ...]  # Those with most FLOPs first.
    mfu: float | None
    """Model FLOPs utilisation: the time that these FLOPs take at their types' peaks, over the step. None: see `why`."""
    why_no_mfu: str  # What is not known; "" where there is an MFU.
    device: str
    devices: int
    counted_share: float
    """Of the time of kernels that multiply matrices, the share whose FLOPs are known: below 1, all are lower bounds."""
    at_most_share: float
    """Share of the FLOPs that are upper bounds, as a mask, window or missing gradient may make them less."""


@fact
def achieved_flops(facts: Facts) -> AchievedFlops:
    """FLOPs and MFU. Raises Missing without device work, without shapes, or if nothing with a known cost ran.

    mfu = sum over types of (flops / peak) / step time. Of one type it is the MFU of the PaLM paper (Chowdhery et al.
    2022, appendix B), observed over peak throughput. FLOPs are those that ran: what activation checkpointing runs again
    counts, as in that paper's hardware FLOPs utilisation.
    """
    if not facts.rank.provenance.knows("shapes"):
        raise Missing("shapes", "Record with record_shapes=True.")
    table, used = matmul_ops(facts), steps(facts)
    inside, known = table.in_steps, table.in_steps & (table.flops > 0)
    if not known.any():
        raise Missing("ops with known FLOPs", "Record with record_shapes=True and a current PyTorch.")
    flops, math = table.flops[known], math_dtypes(table)[known]
    total = int(flops.sum())
    try:
        device, why = peaks(facts), ""
    except Missing as missing:
        device, why = None, missing.what
    tracks = facts.rank.spans["track"].to_numpy()[table.work]
    devices = len(np.unique(facts.rank.tracks["device"].to_numpy()[tracks]))
    found = [_of_type(code, int(flops[math == code].sum()), used.count, device, devices) for code in np.unique(math)]
    typed = [(one.flops, one.peak_flops_per_s) for one in found if one.peak_flops_per_s is not None]
    if not why and sum(ours for ours, _ in typed) * used.count < KNOWN_SHARE * total:
        why = "the data type of most FLOPs"
    best_s = sum(ours / peak for ours, peak in typed)
    return AchievedFlops(
        flops=round_half_up(total, used.count),
        flops_per_s=total / used.window_ns * 1e9,
        types=tuple(sorted(found, key=lambda one: -one.flops)),
        mfu=None if why else best_s / (used.mean_ns / 1e9),
        why_no_mfu=why,
        device=device.name if device else "",
        devices=devices,
        counted_share=float(table.dur_ns[known].sum() / table.dur_ns[inside].sum()),
        at_most_share=float(flops[~table.exact[known]].sum() / total),
    )


def _of_type(code: int, flops: int, count: int, device: Peaks | None, devices: int) -> TypeFlops:
    dtype = DTYPES[code] if code >= 0 else ""
    rate = device.tflops(dtype) if device else None
    return TypeFlops(dtype, round_half_up(flops, count), None if rate is None else rate * 1e12 * devices)
