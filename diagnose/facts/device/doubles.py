"""What computes in double precision?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.inputs import NO_SHAPES, Inputs, recorded_inputs
from diagnose.facts.core.names import name_codes
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import host_spans, launched_in, on_training_threads, require_ops
from diagnose.facts.core.steps import steps
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray


class Doubles(Struct, frozen=True):
    """Ops with an input of float64. Times are per step, on what trains: the device, or the host where the CPU does."""

    ids: IntArray  # Such ops, none inside another.
    work_ids: IntArray  # Device work launched in them.
    ns: int
    longest: str  # The op that takes most of it; "" without any.
    site: Site | None  # The first line of the user's code that runs one.
    on_cpu: bool


def _in_double(inputs: Inputs) -> bool:
    """Whether one is a tensor of float64. A number of Python is recorded as one without dimensions, and is none."""
    return any(tensor.dtype == "double" and tensor.shape for input_ in inputs for tensor in input_)


@fact
def doubles(facts: Facts) -> Doubles:
    """Raises Missing without ops, and if the types of their inputs were not recorded."""
    require_ops(facts)
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    used, on_cpu = steps(facts), trains_on_cpu(facts)
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP))
    position, inputs = recorded_inputs(facts, ops.ids)
    ops = ops.where(np.array([*map(_in_double, inputs), False], dtype=bool)[position]).outermost()
    work = device_work(facts)
    inside = launched_in(facts, ops)
    counted = ops.in_steps(facts)
    dur = counted.end_ns - counted.start_ns
    if not on_cpu:
        chosen = (inside >= 0) & (work.start_ns >= used.start_ns) & (work.start_ns < used.end_ns)
        dur = np.bincount(inside[chosen], (work.end_ns - work.start_ns)[chosen], len(ops.ids)).astype(np.int64)
        counted = ops
    codes = name_codes(facts, counted.ids)
    by_name = np.bincount(codes, dur) if len(codes) else dur
    names = facts.rank.spans["name"].cat.categories
    return Doubles(
        ids=ops.ids,
        work_ids=work.ids[inside >= 0],
        ns=round_half_up(int(dur.sum()), used.count),
        longest=str(names[int(by_name.argmax())]) if len(codes) else "",
        site=next((site for site in sites_of(facts, ops.ids[:1])), None),
        on_cpu=on_cpu,
    )
