"""Which layers compute the same rows several times, as rows are repeated or looked up before, rather than after?

Of N rows more than N are taken: some are equal, and so is what a layer makes of each, as long as each row goes through
by itself and nothing is drawn at random. Or `diagnose profile` has counted rows that are equal, in one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import named
from diagnose.facts.core.shaped import Shape, Work, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import host_spans, used_step
from diagnose.facts.values.values import NOT_COUNTED, SeenOps, seen_ops
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
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


@dataclass(frozen=True)
class RepeatedRows:
    """Layers that follow each other and take more rows than differ, on one line."""

    differ: float
    """Share of the rows that differ, at most."""
    rows: tuple[int, int] | None
    """How many differ, at most, of how many; None where only the share is known, as they were counted."""
    ops: tuple[str, ...]
    """The layers, in order."""
    work: Work
    """With the backward pass."""
    steps_seen: int
    """Used steps with such layers."""
    site: Site | None

    @property
    def repeated_ns(self) -> int:
        """What of the work is done again, per step."""
        return round(self.work.longest_ns * (1 - self.differ))


_Key = tuple[Site | None, int, int]


@fact
def repeated_rows(facts: Facts) -> tuple[RepeatedRows, ...]:
    """By line and numbers of rows, those that take longest first. Raises Missing like `main_ops`.

    Those that were counted are among them where shapes tell nothing of their ops.
    """
    tops, given = main_ops(facts)
    takes, layer, row_by_row = (named(facts, tops.ids, *names) for names in (_TAKES, _LAYERS, _LAYERS + _ROW_BY_ROW))
    repeated = list[tuple[int, int, int, int]]()
    for at in np.flatnonzero(takes[:-1] & layer[1:]).tolist():
        rows, taken = _rows(given[at], given[at + 1])
        if taken <= rows:
            continue
        last = at + 2
        while last < len(given) and row_by_row[last] and _leads_with(given[last], given[at + 1]):
            last += 1
        repeated.append((at + 1, last, rows, taken))
    found: dict[_Key, list[tuple[int, int]]] = {}
    sites = sites_of(facts, tops.ids[[first for first, *_ in repeated]])
    for (first, last, rows, taken), site in zip(repeated, sites, strict=True):
        found.setdefault((site, rows, taken), []).append((first, last))
    made = []
    for (site, rows, taken), runs in found.items():
        mine = tops.where(np.concatenate([np.arange(*run) for run in runs]))
        made.append(
            RepeatedRows(
                differ=rows / taken,
                rows=(rows, taken),
                ops=tuple(facts.rank.spans["name"].iloc[tops.ids[slice(*runs[0])]].astype(str)),
                work=work_of(facts, np.concatenate((mine.ids, backward_ops(facts, mine)))),
                steps_seen=len(set(used_step(facts, mine.ids).tolist()) - {-1}),
                site=site,
            )
        )
    told = set(np.concatenate([one.work.ids for one in made]).tolist()) if made else set()
    made += [one for one in optional(_counted, facts) or () if told.isdisjoint(one.work.ids.tolist())]
    return tuple(sorted(made, key=lambda one: -one.repeated_ns))


@fact
def _counted(facts: Facts) -> tuple[RepeatedRows, ...]:
    """Ops in a row that took equal rows and made equal rows. Raises Missing like seen_ops, and if nobody counted."""
    seen = seen_ops(facts)
    if seen.rows is None:
        raise NOT_COUNTED
    alike = _made_alike(seen, seen.rows)
    making = np.flatnonzero(seen.makes)
    found: dict[tuple[tuple[str, ...], int], list[IntArray]] = {}
    for run in np.split(making, np.flatnonzero(np.diff(alike[making])) + 1):
        if len(run) and alike[run[0]]:
            names = tuple(seen.names[one] for one in run.tolist())
            found.setdefault((names, int(alike[run[0]])), []).append(run)
    made = []
    for (names, share), runs in found.items():
        ids = seen.ids[:, np.concatenate(runs)]
        spans = host_spans(facts, SpanKind.OP)
        mine = spans.where(np.isin(spans.ids, ids) & (spans.track == host_threads(facts).main)).outermost()
        if len(mine.ids):
            made.append(
                RepeatedRows(
                    differ=1 - share / 100,
                    rows=None,
                    ops=names,
                    work=work_of(facts, np.concatenate((mine.ids, backward_ops(facts, mine)))),
                    steps_seen=int((ids >= 0).any(axis=1).sum()),
                    site=sites_of(facts, mine.ids[:1])[0],
                )
            )
    return tuple(made)


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
