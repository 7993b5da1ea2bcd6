"""What does activation checkpointing compute again in backward passes, and how much memory does it spare?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.autograd.backward import backward_nodes, places
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.inputs import Mask
from diagnose.facts.core.names import BACKWARD, name_codes
from diagnose.facts.core.shaped import Work, calls_alike, inputs_of, work_of
from diagnose.facts.core.spans import HostSpans, host_spans, require_ops
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals

ALIKE = 0.9
"""Of the ops that a node records for autograd, at least, that a forward pass had too (our choice). A second derivative
records its formulas instead, which are other ops."""
LEAST_OPS = 3
"""In such a node (our choice): the formula of a second derivative may be one op that a forward pass has as well."""


class Recompute(Struct, frozen=True):
    """Forward ops that run again inside nodes of a backward pass."""

    work: Work  # The ops, and the device work that they launch.
    between: tuple[tuple[int, Intervals], ...]  # What runs between ops of a piece, mostly Python: thread and times.
    host_ns: int  # From the first op of each piece to the end of its last, per step.
    pieces: float  # Nodes that run a piece of the forward pass again, per step.
    bytes: int | None
    """Of the first inputs of these ops, per step: about what would be kept instead. None without shapes."""


@fact
def recompute(facts: Facts) -> Recompute | None:
    """Of the whole recording; None if nothing is computed again. Raises Missing without ops."""
    require_ops(facts)
    if (nodes := optional(backward_nodes, facts)) is None:
        return None
    again = _recorded_for_autograd(facts)
    node = nesting.innermost_at(again.start_ns, again.track, *places(nodes.spans))
    again, node = again.where(node >= 0), node[node >= 0]
    if not len(node):
        return None
    top = again.parents < 0
    again, node = again.where(top), node[top]
    repeats = _in_forward(facts, again, nodes.spans)
    ops, alike = (np.bincount(node, some, len(nodes.spans.ids)) for some in (np.ones(len(node)), repeats))
    whole = (ops >= LEAST_OPS) & (alike >= ALIKE * ops)
    again, node = again.where(whole[node]), node[whole[node]]
    if not len(node):
        return None
    used, count = again.in_steps(facts), max(steps(facts).count, 1)
    kept = [inputs[0][0].bytes if inputs and inputs[0] else 0 for inputs in inputs_of(facts, used.ids)]
    pieces = _pieces(again, node)
    within, every = pieces.in_steps(facts), host_spans(facts, SpanKind.OP)
    again = every.where(nesting.innermost_at(every.start_ns, every.track, *places(pieces)) >= 0).outermost()
    return Recompute(
        work=work_of(facts, again.ids),
        between=tuple(_between(again, pieces, track) for track in np.unique(pieces.track).tolist()),
        host_ns=int((within.end_ns - within.start_ns).sum()) // count,
        pieces=len(within.ids) / count,
        bytes=sum(one or 0 for one in kept) // count if facts.rank.provenance.knows("shapes") else None,
    )


def _pieces(ops: HostSpans, node: IntArray) -> HostSpans:
    """From the first of the ops of each node to the last, in order; with the id of the first."""
    order = np.lexsort((ops.start_ns, node))
    first = np.flatnonzero(np.diff(node[order], prepend=-1))
    at, end = order[first], np.maximum.reduceat(ops.end_ns[order], first)
    return HostSpans(ops.ids[at], ops.start_ns[at], end, ops.track[at])


def _between(ops: HostSpans, pieces: HostSpans, track: int) -> tuple[int, Intervals]:
    ops, pieces = ops.where(ops.track == track), pieces.where(pieces.track == track)
    return track, intervals.subtract(pieces.times, ops.times)


def _recorded_for_autograd(facts: Facts) -> HostSpans:
    """Ops that would make nodes: they have the number of one, and are none themselves."""
    ops = host_spans(facts, SpanKind.OP, named=lambda name: not name.startswith(BACKWARD))
    table = facts.rank.ops
    number, of_node = (table[one].reindex(ops.ids, fill_value=-1).to_numpy() for one in ("sequence", "forward_thread"))
    return ops.where((number >= 0) & (of_node <= 0))


def _in_forward(facts: Facts, some: HostSpans, nodes: HostSpans) -> Mask:
    """Which ops run outside of nodes as well: by name and inputs, or by name where inputs were not recorded."""
    every = host_spans(facts, SpanKind.OP)
    outside = every.where(nesting.innermost_at(every.start_ns, every.track, *places(nodes)) < 0)
    ids = np.concatenate((some.ids, outside.ids))
    alike = calls_alike(facts, ids)
    key = np.where(alike >= 0, alike, nesting.NONE - 1 - name_codes(facts, ids))
    return np.isin(key[: len(some.ids)], key[len(some.ids) :])
