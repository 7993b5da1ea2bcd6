"""Which layers compute the same rows several times, as rows are repeated or looked up before, rather than after?

Of N rows more than N are taken: some are equal, and so is what a layer makes of each, as long as each row goes through
by itself and nothing is drawn at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from diagnose.facts.backward import way_back
from diagnose.facts.base import Facts, fact
from diagnose.facts.dispatch import used_step
from diagnose.facts.layout import named
from diagnose.facts.shaped import Shape, Work, main_ops, work_of
from diagnose.facts.source_lines import sites_of
from diagnose.trace.kinds import Site

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


@dataclass(frozen=True)
class RepeatedRows:
    """Layers that follow each other and take more rows than differ, on one line."""

    rows: int
    """That differ, at most."""
    taken: int
    """That go through the layers."""
    ops: tuple[str, ...]
    """The layers, in order."""
    work: Work
    """With the way back."""
    steps_seen: int
    """Used steps with such layers."""
    site: Site | None

    @property
    def repeated_ns(self) -> int:
        """What of the work is done again, per step."""
        return self.work.longest_ns * (self.taken - self.rows) // self.taken


_Key = tuple[Site | None, int, int]


@fact
def repeated_rows(facts: Facts) -> tuple[RepeatedRows, ...]:
    """By line and numbers of rows, those that take longest first. Raises Missing like `main_ops`."""
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
                rows=rows,
                taken=taken,
                ops=tuple(facts.rank.spans["name"].iloc[tops.ids[slice(*runs[0])]].astype(str)),
                work=work_of(facts, np.concatenate((mine.ids, way_back(facts, mine)))),
                steps_seen=len(set(used_step(facts, mine.ids).tolist()) - {-1}),
                site=site,
            )
        )
    return tuple(sorted(made, key=lambda one: -one.repeated_ns))


def _rows(table: Shape | None, taken: Shape | None) -> tuple[int, int]:
    """How many rows there were, and how many were taken of them; (0, 0) if these are no rows of that table."""
    if table is None or taken is None or len(table) < 2 or taken[1 - len(table) :] != table[1:]:
        return 0, 0
    return table[0], prod(taken[: 1 - len(table)])


def _leads_with(shape: Shape | None, first: Shape | None) -> bool:
    """Whether it has as many rows as the first layer takes."""
    return shape is not None and first is not None and shape[:1] == first[:1] and len(shape) == len(first)
