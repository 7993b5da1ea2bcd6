"""What switches of torch cost that find faults: is each gradient looked at for NaN, is new memory filled?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.shaped import Work, work_of
from diagnose.facts.core.spans import host_spans, in_used_steps, launched_in
from diagnose.facts.core.steps import steps
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray

NODE = "autograd::engine::evaluate_function: "
"""How the names of spans begin that hold one node of a backward pass, as torch records them."""

_ALLOCATES = ("aten::empty", "aten::new_empty", "aten::resize_")  # How names of ops begin that fill nothing otherwise.

CHECK = "aten::isnan"
_CHECKS = (CHECK, "aten::any", "aten::_is_any_true", "aten::item", "aten::is_nonzero")
"""What anomaly detection calls for each gradient, outside the node's own function: isnan(gradient).any().item()."""


class NanChecks(Struct, frozen=True):
    """Checks of gradients during the backward pass."""

    checked: int  # Gradients, in all used steps.
    nodes: int  # Of the backward pass, in all used steps.
    host_ns: int  # Host time in the checks, per step; on a GPU they wait for the gradient to be computed.
    ids: IntArray  # Their ops, and device work launched in them.


@fact
def nan_checks(facts: Facts) -> NanChecks:
    """The checks between the nodes of a backward pass. Raises Missing if no node of one was recorded."""
    nodes = host_spans(facts, SpanKind.OP, named=lambda name: name.startswith(NODE))
    if not in_used_steps(facts, nodes.ids).any():
        raise Missing("the backward pass", "Profile whole training steps with ProfilerActivity.CPU.")
    ops = host_spans(facts, SpanKind.OP)
    outer = ops.parents
    below = ops.where((outer >= 0) & np.isin(ops.ids[outer], nodes.ids))
    checks = below.where(np.isin(below.ids, host_spans(facts, SpanKind.OP, named=lambda name: name in _CHECKS).ids))
    isnan = host_spans(facts, SpanKind.OP, named=lambda name: name == CHECK).ids
    used = checks.in_steps(facts)
    work = device_work(facts).ids[launched_in(facts, checks) >= 0]
    return NanChecks(
        checked=int(np.isin(used.ids, isnan).sum()),
        nodes=int(in_used_steps(facts, nodes.ids).sum()),
        host_ns=round_half_up(int((used.end_ns - used.start_ns).sum()), steps(facts).count),
        ids=np.concatenate((checks.ids, work)),
    )


@fact
def filled_memory(facts: Facts) -> Work:
    """Fills of memory as it is allocated, as deterministic algorithms do unless told otherwise."""
    ops, names = host_spans(facts, SpanKind.OP), facts.rank.spans["name"].astype(str).to_numpy()
    outer = np.array(
        [names[ops.ids[at]].startswith(_ALLOCATES) if at >= 0 else False for at in ops.parents], dtype=bool
    )
    return work_of(facts, ops.ids[outer & (names[ops.ids] == "aten::fill_")])
