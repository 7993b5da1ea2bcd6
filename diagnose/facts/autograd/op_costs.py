"""What does each op of the main thread cost, with its backward pass?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, nodes_of
from diagnose.facts.core.base import Facts, once, optional
from diagnose.facts.core.device import device_work
from diagnose.facts.core.shaped import main_ops
from diagnose.facts.core.spans import HostSpans, launched_in, used_step
from diagnose.trace.intervals import IntArray


@dataclass(frozen=True)
class OpCosts:
    """Sums over the used steps, in ns. `ids` has shape (main ops,), times (2, main ops): on the host, on the device."""

    ids: IntArray
    forward_ns: IntArray
    backward_ns: IntArray
    """Of the nodes that the op has made."""


@once
def op_costs(facts: Facts) -> OpCosts:
    """Of the ops of `main_ops`, nodes of backward passes among them. Raises Missing like that."""
    tops, _ = main_ops(facts)
    backward_ns = np.zeros((2, len(tops.ids)), dtype=np.int64)
    nodes = optional(backward_nodes, facts)
    if nodes is not None:
        # A node carries its own number, as if it had made itself.
        forward = np.flatnonzero(~np.isin(tops.ids, nodes.spans.ids))
        made_by, node = nodes_of(facts, tops.where(forward))
        np.add.at(backward_ns.T, forward[made_by], _lasted(facts, nodes.spans)[:, node].T)
    return OpCosts(tops.ids, _lasted(facts, tops), backward_ns)


def _lasted(facts: Facts, spans: HostSpans) -> IntArray:
    """Time of each span, and of the device work launched in it, in used steps."""
    work, launched = device_work(facts), launched_in(facts, spans)
    device_ns = np.zeros(len(spans.ids) + 1, dtype=np.int64)
    np.add.at(device_ns, launched, work.end_ns - work.start_ns)
    used = used_step(facts, spans.ids) >= 0
    return np.where(used, np.stack((spans.end_ns - spans.start_ns, device_ns[:-1])), 0)
