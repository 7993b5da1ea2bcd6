"""Does a training on the CPU multiply in 16 bits that its processor has no units for?"""

import numpy as np

from diagnose.facts.core.base import Facts
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.spans import host_spans, on_training_threads
from diagnose.facts.core.steps import steps
from diagnose.facts.device.roofline import costs_of
from diagnose.trace.enums import SpanKind
from diagnose.trace.units import duration

UNITS = {
    "bf16": {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16", "svebf16", "sve_bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp", "fphp"},
}
"""Flags of processors that multiply in these types, as Linux names them (arch/x86 cpufeatures.h, arm64 hwcap)."""


def half_on_cpu(facts: Facts) -> str:
    """A clause on it; "" if it does not, or where that is not known."""
    flags = None if facts.rank.context is None else facts.rank.context.host.cpu_flags
    if flags is None or not trains_on_cpu(facts):
        return ""
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).in_steps(facts)
    code, costs = costs_of(facts, ops.ids)
    dtype = np.array([*(cost.dtype or "" for cost in costs), ""])[code]
    for name, units in UNITS.items():
        ns = ops.where(dtype == name).times.total // steps(facts).count
        if ns and units.isdisjoint(flags):
            lacks = f"a CPU without {', '.join(sorted(units))}"
            return f"{name} matmuls and convolutions take {duration(ns)}/step on {lacks}; fp32 is faster there"
    return ""
