"""Pieces that are cut out of one tensor, each of which has a gradient as large as the whole."""

import numpy as np
from msgspec import Struct

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts
from diagnose.facts.core.inputs import Shape, Work, inputs_of, main_ops, named, work_of
from diagnose.facts.core.spans import sites_of
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

PIECES = 8  # In a row at least: with fewer, as the four gates of a cell, one gradient of all saves little (our choice).

CUTS = ("aten::select", "aten::slice", "aten::narrow")


class Pieces(Struct, frozen=True):
    """Those that one line cuts out of tensors of one shape."""

    whole: Shape
    site: Site | None
    in_a_row: int  # In the first row of them.
    back: Work  # Of all of them.


def pieces(facts: Facts) -> tuple[Pieces, ...]:
    """What takes longest first. Raises Missing like `main_ops`."""
    ops, _ = main_ops(facts)
    rows = _rows(facts)
    sites = sites_of(facts, np.array([row[0] for _, row in rows], dtype=np.int64))
    groups: dict[tuple[Site | None, Shape], list[IntArray]] = {}
    for (whole, row), site in zip(rows, sites, strict=True):
        groups.setdefault((site, whole), []).append(row)
    found = [
        Pieces(
            whole=whole,
            site=site,
            in_a_row=len(some[0]),
            back=work_of(facts, backward_ops(facts, ops.where(np.isin(ops.ids, np.concatenate(some))))),
        )
        for (site, whole), some in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.back.longest_ns))


def _rows(facts: Facts) -> list[tuple[Shape, IntArray]]:
    """Pieces that are cut out of tensors of one shape in a step, while no other op takes such a tensor."""
    ops, _ = main_ops(facts)
    step = facts.rank.spans["step"].to_numpy()[ops.ids]
    stretch = np.cumsum(np.diff(step, prepend=step[:1]) != 0)
    takes = zip(
        ops.ids.tolist(), named(facts, ops.ids, *CUTS), stretch.tolist(), inputs_of(facts, ops.ids), strict=True
    )
    rows: dict[tuple[int, Shape], list[list[int]]] = {}
    for op, cuts, at, inputs in takes:
        for shape in {tensor.shape for some in inputs for tensor in some}:
            mine = rows.setdefault((at, shape), [[]])
            if cuts:
                mine[-1].append(op)
            elif mine[-1]:
                mine.append([])
    return [(shape, np.array(row)) for (_, shape), mine in rows.items() for row in mine if len(row) >= PIECES]
