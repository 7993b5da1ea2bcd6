"""Layers that compute the same rows several times, as rows are repeated or looked up before, rather than after.

Of N rows more than N are taken: some are equal, and so is what a layer makes of each, as long as each row goes through
by itself and nothing is drawn at random. Or `diagnose profile` has counted rows that are equal, in one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.inputs import named
from diagnose.facts.core.seen_ops import SeenOps, seen_ops
from diagnose.facts.core.shaped import Shape, main_ops
from diagnose.facts.values.ledger import Cause, Wasted, by_line, finds, in_a_row, of_one_line, of_rows, of_spans
from diagnose.trace.intervals import IntArray
from diagnose.trace.model import RowCounts

# Not embeddings: who has fewer words than text hardly keeps a second table for it.
_TAKES = tuple(f"aten::{name}" for name in ("index_select", "index", "repeat_interleave", "repeat"))
_LAYERS = ("aten::linear", "aten::conv*")
_ROW_BY_ROW = tuple(
    f"aten::{name}"
    for name in (
        *("relu", "relu_", "gelu", "silu", "silu_", "tanh", "sigmoid", "elu", "leaky_relu", "softplus", "hardtanh"),
        *("layer_norm", "rms_norm", "group_norm"),
    )
)

LEAST, CLOSE = 50, 5
"""Percent of rows that have to be equal if they were counted, and by how much it may change on the way (our choice)."""


@finds(Cause.EQUAL_ROWS)
def equal_rows(facts: Facts) -> Iterator[Wasted]:
    """By line, those that were counted where shapes tell nothing of their ops. Raises Missing like `main_ops`."""
    told = np.zeros(0, dtype=np.int64)
    for one in _told_by_shapes(facts):
        told = np.concatenate((told, one.work.ids, one.back.ids))
        yield one
    seen = optional(seen_ops, facts)
    if seen is None or seen.rows is None:
        return
    alike = _made_alike(seen, seen.rows)
    for rows in by_line(facts, seen, in_a_row(seen, alike)):
        one = of_rows(facts, seen, rows, percent=alike)
        if not np.isin(np.concatenate((one.work.ids, one.back.ids)), told).any():
            yield one


def _told_by_shapes(facts: Facts) -> Iterator[Wasted]:
    tops, given = main_ops(facts)
    takes, layer, row_by_row = (named(facts, tops.ids, *names) for names in (_TAKES, _LAYERS, _LAYERS + _ROW_BY_ROW))
    runs, shares = list[IntArray](), list[float]()
    for at in np.flatnonzero(takes[:-1] & layer[1:]).tolist():
        rows, taken = _rows(given[at], given[at + 1])
        last = at + 2
        while last < len(given) and row_by_row[last] and _leads_with(given[last], given[at + 1]):
            last += 1
        if taken > rows:
            runs.append(np.arange(at + 1, last))
            shares.append(1 - rows / taken)
    for some in of_one_line(facts, [int(tops.ids[run[0]]) for run in runs], shares):
        mine = tops.where(np.concatenate([runs[one] for one in some]))
        share = np.repeat([shares[one] for one in some], [len(runs[one]) for one in some])
        yield replace(of_spans(facts, mine.ids, backward_ops(facts, mine), share), kind="shapes")


def _made_alike(seen: SeenOps, rows: RowCounts) -> IntArray:
    """Of each op percent of equal rows, if they are so since an op has taken some several times; else 0."""
    found = np.zeros(len(seen.names), dtype=np.int64)
    for at in np.flatnonzero((rows.alike >= LEAST) & ~seen.backward).tolist():
        before = [max(int(found[one]), int(rows.spread[one])) for one in seen.takes[at] if one >= 0]
        found[at] = rows.alike[at] if max(before, default=0) >= rows.alike[at] - CLOSE else 0
    return found


def _rows(table: Shape | None, taken: Shape | None) -> tuple[int, int]:
    """How many rows there were, and how many were taken of them; (0, 0) if these are no rows of that table."""
    if table is None or taken is None or len(table) < 2 or taken[1 - len(table) :] != table[1:]:
        return 0, 0
    return table[0], prod(taken[: 1 - len(table)])


def _leads_with(shape: Shape | None, first: Shape | None) -> bool:
    """Whether it has as many rows as the first layer takes."""
    return shape is not None and first is not None and shape[:1] == first[:1] and len(shape) == len(first)
