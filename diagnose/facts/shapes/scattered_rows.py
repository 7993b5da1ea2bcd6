"""Which rows are gathered from tables that lie in memory column by column?"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.inputs import named
from diagnose.facts.core.shaped import Shape, Work, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.trace.frames import Site

APART = 16
"""Numbers of 4 bytes that are so far apart share no line of a cache (64 bytes)."""

_GATHERS = ("aten::index", "aten::index_select", "aten::embedding")
NO_STRIDES = Missing("strides", "Record with record_shapes=True, with PyTorch of 2024 or later.")


@dataclass(frozen=True)
class ScatteredRows:
    """Rows that are gathered from tables of one shape, on one line."""

    shape: Shape
    """Of the table."""
    apart: int
    """How far the numbers of a row that are next to each other lie apart, in numbers."""
    work: Work
    site: Site | None


@fact
def scattered_rows(facts: Facts) -> tuple[ScatteredRows, ...]:
    """Those that take longest first. Raises Missing like `main_ops`, and if rows are gathered but no strides known."""
    tops, given = main_ops(facts)
    at = np.flatnonzero(named(facts, tops.ids, *_GATHERS))
    texts = facts.rank.ops["strides"].reindex(tops.ids[at], fill_value="").astype(str).tolist()
    if len(at) and not any(texts):
        raise NO_STRIDES
    apart_ones = list[tuple[int, Shape, int]]()
    for op, text in zip(at.tolist(), texts, strict=True):
        shape = given[op]
        apart = _apart(shape, text)
        if shape is not None and apart >= APART:
            apart_ones.append((op, shape, apart))
    found: dict[tuple[Site | None, Shape, int], list[int]] = {}
    sites = sites_of(facts, tops.ids[[op for op, *_ in apart_ones]])
    for (op, shape, apart), site in zip(apart_ones, sites, strict=True):
        found.setdefault((site, shape, apart), []).append(op)
    made = [
        ScatteredRows(shape, apart, work_of(facts, tops.ids[np.array(own)]), site)
        for (site, shape, apart), own in found.items()
    ]
    return tuple(sorted(made, key=lambda one: -one.work.longest_ns))


def _apart(shape: Shape | None, text: str) -> int:
    """The least stride within a row; 0 where there is none, or where it is not known."""
    try:
        first = json.loads(text)[0] if text else []
    except (ValueError, RecursionError, TypeError, LookupError):
        return 0
    if shape is None or not isinstance(first, list) or len(first) != len(shape):
        return 0
    within = [n for n, size in zip(first[1:], shape[1:], strict=True) if size > 1]
    return min(within) if within and all(type(n) is int for n in within) else 0
