"""Matrix products and convolutions in 16 bits on a CPU: does it have units for them, and how fast are they?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.inputs import NO_SHAPES, Mask
from diagnose.facts.core.run import HOW, context, trains_on_cpu
from diagnose.facts.core.source_lines import site_of_most, sites_of
from diagnose.facts.core.spans import HostSpans, host_spans, on_training_threads, require_ops, used_step
from diagnose.facts.core.steps import steps
from diagnose.facts.device.roofline import costs_of
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

UNITS = {
    "bf16": {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16", "svebf16", "sve_bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp", "fphp"},
}
"""Flags of processors that multiply in these types, as Linux names them (arch/x86 cpufeatures.h, arm64 hwcap)."""


FULL_RATE = (5.0, 20.0, 60.0)
"""Operations a ns and thread of products in fp32 where none were recorded: cores with AVX2 (our choice)."""


@dataclass(frozen=True)
class HalfProducts:
    """Products in 16 bits on the training threads, none around another; times per step."""

    dtype: str
    """"bf16" or "fp16": of most of their time; "" without any."""
    ids: IntArray
    ns: int
    flops: float
    """Per step."""
    has_units: bool | None
    """Whether the processor multiplies in that type; None if its flags are not known."""
    threads: int
    """Of CPU ops; 1 if not known."""
    full_rates: tuple[float, float, float]
    """Operations a ns that products in fp32 reach: low, likely and high. All alike if they are of the same steps."""
    full_rate_seen: bool
    """They are."""
    site: Site | None
    """The line of most of it, of forward passes where these are known."""


@fact
def half_products(facts: Facts) -> HalfProducts | None:
    """None if the training computes on a device.

    Raises Missing where that is not known, without ops, and without the types of their inputs.
    """
    if not trains_on_cpu(facts):
        if facts.rank.context is None and not len(device_work(facts).ids):
            raise Missing("whether the training computes on the CPU", HOW)
        return None
    require_ops(facts)
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    known, count = context(facts), steps(facts).count
    threads = known.rank.flags.threads or 1
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP))
    code, costs = costs_of(facts, ops.ids)
    ops, code = ops.where(code >= 0), code[code >= 0]
    innermost = ~np.isin(np.arange(len(code)), ops.parents) & (used_step(facts, ops.ids) >= 0)
    used, code = ops.where(innermost), code[innermost]
    dtype = np.array([*(cost.dtype or "" for cost in costs), ""])[code]
    flops, ns = np.array([*(float(cost.flops) for cost in costs), 0.0])[code], used.end_ns - used.start_ns
    name = max(UNITS, key=lambda one: int(ns[dtype == one].sum()))
    half, full = dtype == name, dtype == "fp32"
    flags = known.host.cpu_flags
    return HalfProducts(
        dtype=name if half.any() else "",
        ids=used.ids[half],
        ns=round_half_up(int(ns[half].sum()), count),
        flops=float(flops[half].sum()) / count,
        has_units=None if flags is None else bool(UNITS[name].intersection(flags)),
        threads=threads,
        full_rates=_rates(float(flops[full].sum() / max(ns[full].sum(), 1)) if full.any() else 0.0, threads),
        full_rate_seen=bool(full.any()),
        site=_most(facts, used, half),
    )


def _rates(seen: float, threads: int) -> tuple[float, float, float]:
    low, likely, high = (seen or rate * threads for rate in FULL_RATE)
    return low, likely, high


def _most(facts: Facts, used: HostSpans, half: Mask) -> Site | None:
    mine, nodes = used.where(half), optional(backward_nodes, facts)
    if nodes is not None:
        backward = intervals.covered(Intervals(mine.start_ns, mine.end_ns), nodes.spans.times) > 0
        mine = mine if backward.all() else mine.where(~backward)
    return site_of_most(sites_of(facts, mine.ids), mine.end_ns - mine.start_ns)
