"""Which ops compute rows whose gradients are zero, as a mask or a choice of rows leaves them out of the loss?

Such a row need not be computed, unless what it gives decides whether it counts: whether it is hard, or over a margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TypeAlias

import numpy as np

from diagnose.facts.backward import backward_nodes, forward_ops, nodes_of, places
from diagnose.facts.base import Facts, fact, optional
from diagnose.facts.dispatch import HostSpans, used_step
from diagnose.facts.layout import Mask
from diagnose.facts.padding import padding
from diagnose.facts.shaped import Work, work_of
from diagnose.facts.source_lines import sites_of
from diagnose.facts.targets import ignored_scores
from diagnose.facts.values import NOT_COUNTED, SeenOps, seen_ops
from diagnose.trace import nesting
from diagnose.trace.kinds import Site
from diagnose.trace.model import RowCounts

LEAST, CLOSE = 25, 5
"""Percent of rows that have to be idle, and by how much shares of the same rows may differ (our choice)."""

ALL = 100
"""Percent."""

ROUNDED = 10
"""Percent: ops whose shares are as close are counted together (our choice)."""

_LAYERS = ("aten::linear", "aten::*mm", "aten::*matmul", "aten::einsum", "aten::conv*", "aten::*lstm", "aten::*gru")
"""At least one of these: for single sums and products it does not pay to pick rows."""

_BY_TARGETS = ("aten::nll_loss_backward", "aten::nll_loss2d_backward")
"""Which rows are zero is told by the targets alone, not by the scores that they take as well."""


@dataclass(frozen=True)
class IdleRows:
    """Ops of which about the same share of the rows is computed for nothing."""

    percent: int
    """Of the rows."""
    ops: tuple[str, ...]
    """Their names, those that take longest first."""
    work: Work
    """With the way back."""
    steps_seen: int
    """Used steps that have them."""
    site: Site | None
    """The line that runs the one that takes longest."""

    @property
    def idle_ns(self) -> int:
        """What of the work is for nothing, per step."""
        return self.work.longest_ns * self.percent // 100


@fact
def idle_rows(facts: Facts) -> tuple[IdleRows, ...]:
    """Layers, and what is between them, by the share of idle rows, those that take longest first.

    Not those that the targets of a loss leave out, if that is known of `ignored_scores`, nor padding: see `padding`.
    Raises Missing like seen_ops and backward_nodes, and if nobody counted rows.
    """
    seen, nodes = seen_ops(facts), backward_nodes(facts)
    if seen.rows is None:
        raise NOT_COUNTED
    ops, _ = forward_ops(facts)
    idle = _idle_of_nodes(facts, seen, seen.rows, nodes.spans, ops)
    groups: dict[int, list[tuple[int, int]]] = {}
    least = max(LEAST, _padded(facts) + CLOSE)
    for one, share in _least_of_each(idle).items():
        if least <= share < ALL:  # Of all see `multiplied_by_nothing`.
            groups.setdefault(share // ROUNDED, []).append((one, share))
    made = [_group(facts, ops, nodes.spans, idle, mine) for mine in groups.values()]
    layers = [one for one in made if any(fnmatch(name, layer) for name in one.ops for layer in _LAYERS)]
    return tuple(sorted(layers, key=lambda one: -one.idle_ns))


def _padded(facts: Facts) -> int:
    """Percent of the places of batches."""
    known = optional(padding, facts)
    return 0 if known is None else round(ALL * (1 - known.needed * known.filled))


_Nodes = dict[tuple[int, int], int]
"""Of each op, and node that it has made, percent of rows that are idle, and need not be computed."""


def _idle_of_nodes(facts: Facts, seen: SeenOps, rows: RowCounts, nodes: HostSpans, ops: HostSpans) -> _Nodes:
    """Of nodes in which something was seen that makes values; others pass gradients on."""
    reasons = _reasons(seen, rows)
    gradients = _gradients(seen)
    decided = {one: _decided_by(seen, one, gradients) for one in set[_Reason]().union(*reasons.values())}
    in_ops, in_nodes = _inside(facts, seen, ops), _inside(facts, seen, nodes)
    if optional(ignored_scores, facts):
        decided = {one: by for one, by in decided.items() if not any(seen.names[at] in _BY_TARGETS for at in one)}
    found: _Nodes = {}
    for op, node in zip(*(one.tolist() for one in nodes_of(facts, ops)), strict=True):
        own = in_ops.get(op, set())
        for at in in_nodes.get(node, ()) if own else ():  # Others make views.
            needless = any(decided[one].isdisjoint(own) for one in reasons.get(at, ()) if one in decided)
            found[op, node] = max(found.get((op, node), 0), int(rows.idle[at]) if needless else 0)
    return found


def _least_of_each(idle: _Nodes) -> dict[int, int]:
    """Of each op, as all its nodes are."""
    found: dict[int, int] = {}
    for (op, _), share in idle.items():
        found[op] = min(found.get(op, share), share)
    return found


_Reason: TypeAlias = tuple[int, ...]
"""Ops that may have made rows of zeros, together."""


def _reasons(seen: SeenOps, rows: RowCounts) -> dict[int, frozenset[_Reason]]:
    """Of each op that takes gradients with idle rows what has made them so: each of the reasons is enough."""
    found: dict[int, frozenset[_Reason]] = {}
    for at in np.flatnonzero(seen.backward & (rows.idle > 0)).tolist():
        makers = [one for one in seen.takes[at] if one >= 0 and seen.backward[one]]
        least = rows.idle[at] - CLOSE
        before = [one for one in makers if rows.idle[one] >= least]
        reasons: set[_Reason] = {(one,) for one in before if rows.masked[one] >= least}
        reasons |= {reason for one in before for reason in found.get(one, ())}
        if not before:  # These have made rows idle, or it takes a part, most of whose rows were idle before.
            parts = [reason for one in makers for reason in found.get(one, ())]
            reasons = {(*makers, *reason) for reason in parts} or {tuple(makers)}
        found[at] = frozenset(reasons)
    return found


def _decided_by(seen: SeenOps, reason: _Reason, gradients: Mask) -> set[int]:
    """Ops on which it depends which rows such ops leave out: not on the gradients that they take."""
    waiting = [one for at in reason if seen.names[at] not in _BY_TARGETS for one in seen.takes[at]]
    found = set[int]()
    while waiting:
        at = waiting.pop()
        if at >= 0 and at not in found and not gradients[at]:
            found.add(at)
            waiting += () if _only_as_large(seen.names[at]) else seen.takes[at]
    return found


def _gradients(seen: SeenOps) -> Mask:
    """Which ops of a pass make gradients, of the one that it begins with: others make what was made before anew."""
    found = np.zeros(len(seen.names), dtype=bool)
    begins = np.diff(seen.backward, prepend=False) & seen.backward
    for at in np.flatnonzero(seen.backward).tolist():
        takes = [one for one in seen.takes[at] if one >= 0]
        found[at] = begins[at] or not takes or any(found[one] or _only_as_large(seen.names[one]) for one in takes)
    return found


def _only_as_large(name: str) -> bool:
    """Whether an op looks at no values."""
    return name.endswith("_like") or name.startswith("aten::new_")


def _inside(facts: Facts, seen: SeenOps, spans: HostSpans) -> dict[int, set[int]]:
    """Of spans, none inside another, the ops that were seen in each."""
    recorded = np.flatnonzero(seen.ids >= 0)
    ids = seen.ids.ravel()[recorded]
    table = facts.rank.spans
    start, track = table["start_ns"].to_numpy()[ids], table["track"].to_numpy()[ids].astype(np.int64)
    around = nesting.innermost_at(start, track, *places(spans))
    found: dict[int, set[int]] = {}
    for one, at in zip(around.tolist(), (recorded % seen.ids.shape[1]).tolist(), strict=True):
        if one >= 0:
            found.setdefault(one, set()).add(at)
    return found


def _group(facts: Facts, ops: HostSpans, nodes: HostSpans, idle: _Nodes, mine: list[tuple[int, int]]) -> IdleRows:
    chosen = {one for one, _ in mine}
    forth = ops.where(np.array(sorted(chosen)))
    back = nodes.ids[np.array(sorted({node for op, node in idle if op in chosen}))]
    lasted = forth.end_ns - forth.start_ns
    names = facts.rank.spans["name"].iloc[forth.ids].astype(str).to_numpy()
    total: dict[str, int] = {}
    for name, ns in zip(names.tolist(), lasted.tolist(), strict=True):
        total[name] = total.get(name, 0) + ns
    return IdleRows(
        percent=min(share for _, share in mine),
        ops=tuple(sorted(total, key=lambda name: -total[name])),
        work=work_of(facts, np.concatenate((forth.ids, back))),
        steps_seen=len(set(used_step(facts, forth.ids).tolist()) - {-1}),
        site=sites_of(facts, forth.ids[[int(lasted.argmax())]])[0],
    )
