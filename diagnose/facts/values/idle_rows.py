"""Which ops compute rows whose gradients are zero, as a mask or a choice of rows leaves them out of the loss?

Such a row need not be computed, unless what it gives decides whether it counts: whether it is hard, or over a margin.
And which nodes of backward passes take nothing but zeros, as what they came through has no slope?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, forward_ops, nodes_of
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.inputs import Mask, named
from diagnose.facts.core.seen_ops import ALL, NOT_COUNTED, SeenOps, inside, is_layer, seen_ops, takes_the_gradient
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.data.padding import padding
from diagnose.facts.values.ignored_scores import ignored_scores
from diagnose.facts.values.ledger import Cause, Wasted, finds, of_spans
from diagnose.trace.model import RowCounts

LEAST, CLOSE = 25, 5
"""Percent of rows that have to be idle, and by how much shares of the same rows may differ (our choice)."""

MOST_REASONS, MOST_OF_ONE = 100, 16
"""Of a step, and of an op, and ops of one reason: what is left out is not told (our choice, to bound time)."""

_MIXES = ("aten::lstm", "aten::gru", "aten::rnn_*", "aten::batch_norm", "aten::sync_batch_norm*", "aten::cum*")
"""Ops whose results need rows of which nothing comes back: those before, or all."""

_ZEROS = ("aten::zeros_like", "aten::new_zeros", "aten::zeros")

_TWICE = "BackwardBackward"
"""In names of nodes of the backward pass of what was a backward pass."""

_ADDS = ("aten::add", "aten::add_")
"""Gradients of several ways are added up in the node that they go into."""

_BY_TARGETS = ("aten::nll_loss_backward", "aten::nll_loss2d_backward")
"""Which rows are zero is told by the targets alone, not by the scores that they take as well."""


@finds(Cause.ZERO_GRADIENT)
def zero_gradients(facts: Facts) -> Iterator[Wasted]:
    """Nodes that take zeros which autograd has made, as the op that they came through has a slope of zero: a sign.

    Nothing else is done in the node of such an op. Where more is, the zeros are a part of what it makes, or of what was
    computed again; or the op is of a backward pass itself, as in penalties of gradients, where nothing can be detached.
    Raises Missing like seen_ops and backward_nodes, and if nobody counted rows.
    """
    seen, nodes = seen_ops(facts), backward_nodes(facts)
    if seen.rows is None:
        raise NOT_COUNTED
    seen_in = inside(facts, seen, nodes.spans)
    names = facts.rank.spans["name"].iloc[nodes.spans.ids].astype(str)
    once = [mine for node, mine in seen_in.items() if _TWICE not in names.iloc[node]]
    alone = [mine for mine in once if {seen.names[one] for one in mine} <= set(_ZEROS)]
    zero = _made_of_zeros(seen, seen.rows, set[int]().union(*alone))
    chosen = np.zeros(len(nodes.adds), dtype=bool)
    for node, mine in seen_in.items():
        given = [one for one in mine if seen.names[one] not in _ADDS and _takes_a_gradient(seen, one, mine)]
        chosen[node] = bool(given) and bool(zero[given].all())
    if chosen.any():
        yield of_spans(facts, nodes.spans.ids[chosen])


def _takes_a_gradient(seen: SeenOps, op: int, node: set[int]) -> bool:
    """Whether it takes what the pass has made in another node."""
    return any(one >= 0 and seen.backward[one] and one not in node for one in seen.takes[op])


def _made_of_zeros(seen: SeenOps, rows: RowCounts, makers_of_zeros: set[int]) -> Mask:
    """Which ops take gradients of zeros that were made as such, and not by chance, by some ops."""
    found, zero = np.zeros(len(seen.names), dtype=bool), set(makers_of_zeros)
    for at in np.flatnonzero(seen.backward).tolist():
        if zero.isdisjoint(seen.takes[at]):
            continue
        found[at] = rows.idle[at] == ALL
        if found[at] or seen.names[at] in _ZEROS:
            zero.add(at)
    return found


@finds(Cause.ROWS_WITHOUT_GRADIENT)
def idle_rows(facts: Facts) -> Iterator[Wasted]:
    """Layers, and what is between them, by line and by what leaves rows out.

    Of the rows that one reason leaves out the least share of any layer counts: once rows are picked, all such layers
    compute what any of them needs.

    Not those that the targets of a loss leave out, if that is known of `ignored_scores`, nor padding: see `padding`.
    Raises Missing like seen_ops and backward_nodes, and if nobody counted rows.
    """
    seen, nodes = seen_ops(facts), backward_nodes(facts)
    if seen.rows is None:
        raise NOT_COUNTED
    ops, _ = forward_ops(facts)
    least = max(LEAST, _padded(facts) + CLOSE)
    idle = [one for one in _idle_ops(facts, seen, seen.rows) if least <= one.percent < ALL]
    sites = sites_of(facts, ops.ids[[one.op for one in idle]])
    causes = _joined([{site, *one.reasons} for one, site in zip(idle, sites, strict=True)])
    for cause in causes:
        some = [idle[at] for at in cause]
        of_reason = dict[_Reason, int]()
        for one in some:
            of_reason |= {reason: min(of_reason.get(reason, ALL), one.percent) for reason in one.reasons}
        shares = np.array([min(of_reason[reason] for reason in one.reasons) / ALL for one in some])
        back = nodes.spans.ids[sorted(frozenset[int]().union(*(one.nodes for one in some)))]
        made = of_spans(facts, ops.ids[[one.op for one in some]], back, shares)
        if any(map(is_layer, made.ops)):  # It does not pay to pick rows for single sums.
            yield made


def _padded(facts: Facts) -> int:
    """Percent of the places of batches."""
    known = optional(padding, facts)
    return 0 if known is None else round(ALL * (1 - known.needed * known.filled))


_Reason: TypeAlias = tuple[int, ...]
"""Ops that may have made rows of zeros, together."""


class _IdleOp(NamedTuple):
    """An op of which some rows need not be computed."""

    op: int
    """Position in `forward_ops`."""
    percent: int
    """Of the rows, as in all nodes that the op has made; 100: of all see MULTIPLIED_BY_ZEROS."""
    nodes: frozenset[int]
    """Positions in `backward_nodes`."""
    reasons: frozenset[_Reason]


def _idle_ops(facts: Facts, seen: SeenOps, rows: RowCounts) -> list[_IdleOp]:
    """By nodes in which something was seen that makes values; others pass gradients on."""
    ops, _ = forward_ops(facts)
    in_ops, in_nodes = (inside(facts, seen, spans) for spans in (ops, backward_nodes(facts).spans))
    reasons, gradients = _reasons(seen, rows), _gradients(seen)
    usual = Counter(one for some in reasons.values() for one in some).most_common(MOST_REASONS)
    by_targets = {one for one, _ in usual if any(seen.names[at] in _BY_TARGETS for at in one)}
    known = [one for one, _ in usual if one not in by_targets or not optional(ignored_scores, facts)]
    decides = _decides(seen, known, gradients)
    mixes = named(facts, ops.ids, *_MIXES)
    pairs = [pair for pair in zip(*(one.tolist() for one in nodes_of(facts, ops)), strict=True) if pair[0] in in_ops]
    has_back = dict.fromkeys((one for op, _ in pairs for one in in_ops[op]), ALL)
    for op, node in pairs:
        at = takes_the_gradient(seen, in_nodes[node]) if node in in_nodes else -1
        has_back |= {one: min(has_back[one], int(rows.idle[at])) for one in in_ops[op] if at >= 0}
    read = _read_otherwise(seen, has_back)
    found: dict[int, _IdleOp] = {}
    for op, node in pairs:
        if node not in in_nodes or mixes[op] or not read.isdisjoint(in_ops[op]):  # Views make nothing.
            continue
        at = takes_the_gradient(seen, in_nodes[node])
        why = reasons.get(at, frozenset()).intersection(known).difference(*(decides[one] for one in in_ops[op]))
        percent = int(rows.idle[at]) if why else 0
        before = found.get(op, _IdleOp(op, percent, frozenset(), frozenset()))
        found[op] = _IdleOp(op, min(before.percent, percent), before.nodes | {node}, before.reasons.union(why))
    return list(found.values())


def _read_otherwise(seen: SeenOps, idle: dict[int, int]) -> set[int]:
    """Ops whose idle rows something takes that nothing is learnt of, as a metric does, and those that they come of.

    Given are the ops that have a backward pass, and how many rows are idle of the gradient of each.
    """
    aside = seen.makes & ~seen.backward & ~np.array([_only_as_large(name) for name in seen.names], dtype=bool)
    aside[list(idle)] = False
    takers: list[set[int]] = [set() for _ in seen.names]
    for taker in range(len(takers)):
        for one in _makers(seen, taker):
            takers[one].add(taker)
    ends = np.zeros(len(aside), dtype=bool)  # Other ops aside only tell those that are learnt of what to do.
    for at in np.flatnonzero(aside)[::-1].tolist():  # What takes it was called later.
        ends[at] = not takers[at] or any(ends[one] for one in takers[at])
    found = set[int]()
    waiting = [one for at in np.flatnonzero(ends).tolist() for one in seen.takes[at]]
    while waiting:
        at = waiting.pop()
        if idle.get(at, 0) and at not in found:
            found.add(at)
            waiting += seen.takes[at]
    return found


def _joined(keys: list[set[object]]) -> list[list[int]]:
    """Positions of those that have a key in common, or are joined by others."""
    groups: list[tuple[set[object], list[int]]] = []
    for at, mine in enumerate(keys):
        same = [one for one in groups if not one[0].isdisjoint(mine)]
        groups = [one for one in groups if one not in same]
        groups.append((mine.union(*(some for some, _ in same)), [*(one for _, ones in same for one in ones), at]))
    return [ones for _, ones in groups]


def _reasons(seen: SeenOps, rows: RowCounts) -> dict[int, frozenset[_Reason]]:
    """Of each op that takes gradients with idle rows what has made them so: each of the reasons is enough."""
    found: dict[int, frozenset[_Reason]] = {}
    idle = np.where(_fills(seen), 0, rows.idle)
    for at in np.flatnonzero(seen.backward & (idle > 0)).tolist():
        makers = [one for one in _makers(seen, at) if seen.backward[one]]
        least = idle[at] - CLOSE
        before = [one for one in makers if idle[one] >= least]
        reasons: set[_Reason] = {(one,) for one in before if rows.masked[one] >= least}
        reasons |= {reason for one in before for reason in found.get(one, ())}
        if not before:  # These have made rows idle, or it takes a part, most of whose rows were idle before.
            parts = [reason for one in makers for reason in found.get(one, ())]
            reasons = {(*makers, *reason) for reason in parts} or {tuple(makers)}
        found[at] = frozenset(sorted((one for one in reasons if len(one) <= MOST_OF_ONE), key=len)[:MOST_OF_ONE])
    return found


def _fills(seen: SeenOps) -> Mask:
    """Which ops put a gradient into a tensor of zeros that was made for it: those are not rows of the gradient."""
    return np.array([any(one >= 0 and seen.names[one] in _ZEROS for one in takes) for takes in seen.takes], dtype=bool)


def _decides(seen: SeenOps, reasons: list[_Reason], gradients: Mask) -> list[set[_Reason]]:
    """Of each op those reasons that leave out other rows if it makes something else: not those of gradients."""
    found: list[set[_Reason]] = [set() for _ in seen.names]
    for reason in reasons:
        for at in reason:
            for one in _makers(seen, at) if seen.names[at] not in _BY_TARGETS else ():
                found[one].add(reason)
    for at in range(len(found) - 1, -1, -1):  # What takes it was called later.
        if gradients[at]:
            found[at].clear()
        for one in () if _only_as_large(seen.names[at]) else _makers(seen, at):
            found[one] |= found[at]
    return found


def _makers(seen: SeenOps, at: int) -> list[int]:
    """The ops of this step that made what one takes."""
    return [one for one in seen.takes[at] if one >= 0]


def _gradients(seen: SeenOps) -> Mask:
    """Which ops of a pass make gradients, of the one that it begins with: others make what was made before anew."""
    found = np.zeros(len(seen.names), dtype=bool)
    begins = np.diff(seen.backward, prepend=False) & seen.backward
    for at in np.flatnonzero(seen.backward).tolist():
        takes = _makers(seen, at)
        found[at] = begins[at] or not takes or any(found[one] or _only_as_large(seen.names[one]) for one in takes)
    return found


def _only_as_large(name: str) -> bool:
    """Whether an op looks at no values."""
    return name.endswith("_like") or name.startswith("aten::new_")
