"""Which sorts are made for the first few of each row?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.inputs import Inputs, named
from diagnose.facts.core.names import name_of
from diagnose.facts.core.shaped import Shape, Work, first_shape, inputs_of, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.trace.frames import Site

_SORTS = ("aten::sort", "aten::argsort")
_CUTS = ("aten::slice", "aten::narrow")
FEW = 0.125
"""Of a row, up to which choosing is quicker than sorting (our choice)."""

_MOST = 4
"""Ops after a sort that are looked at."""


@dataclass(frozen=True)
class SortsForFew:
    """Sorts of which a few of each row are used, on one line."""

    shape: Shape
    """That is sorted, the last dimension."""
    kept: int
    """Of each row."""
    work: Work
    site: Site | None


@fact
def sorts_for_few(facts: Facts) -> tuple[SortsForFew, ...]:
    """By line, those that take longest first. Raises Missing like `main_ops`."""
    tops, given = main_ops(facts)
    inputs = inputs_of(facts, tops.ids)
    cut = list[tuple[int, Shape, int]]()
    for at in np.flatnonzero(named(facts, tops.ids, *_SORTS)).tolist():
        names = [name_of(facts, span) for span in tops.ids[at + 1 : at + 1 + _MOST].tolist()]
        shape, kept = given[at], _kept(given[at], names, inputs[at + 1 : at + 1 + _MOST])
        if shape is not None and kept:
            cut.append((at, shape, kept))
    found: dict[tuple[Site | None, Shape, int], list[int]] = {}
    for (at, shape, kept), site in zip(cut, sites_of(facts, tops.ids[[at for at, *_ in cut]]), strict=True):
        found.setdefault((site, shape, kept), []).append(at)
    made = [
        SortsForFew(shape, kept, work_of(facts, tops.ids[np.array(own)]), site)
        for (site, shape, kept), own in found.items()
    ]
    return tuple(sorted(made, key=lambda one: -one.work.longest_ns))


def _kept(shape: Shape | None, names: list[str], inputs: list[Inputs]) -> int | None:
    """How many of each row the ops after a sort use: they cut from the whole first, and then see a few only."""
    if not shape or not names or names[0] not in _CUTS:
        return None
    for name, some in zip(names, inputs, strict=True):
        if name in _CUTS and first_shape(some) == shape:
            continue
        sizes = [tensor.shape for one in some for tensor in one]
        cut = [size[-1] for size in sizes if len(size) == len(shape) and size[:-1] == shape[:-1]]
        if shape in sizes or (cut and not 0 < max(cut) <= FEW * shape[-1]):
            return None
        if cut:
            return max(cut)
    return None
