"""Which tables of all by all are made for few of their pairs: the diagonal, those that are equal, one of each row?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.inputs import Inputs, named
from diagnose.facts.core.names import name_of
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.shaped import Shape, Work, inputs_of, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans
from diagnose.facts.device.host_chains import POINTWISE
from diagnose.facts.host.loops import KERNEL_NS
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

LEAST = 32
"""Rows and columns of a table that is looked at (our choice)."""

CALL_NS = 10_000
"""What an op on the CPU takes for few numbers, and a node of the backward pass as well: both took 15 to 28 us in
planted loops."""

_DIAGONALS = ("aten::diagonal", "aten::diag", "aten::trace")
_EACH = (
    *POINTWISE,
    *(f"aten::{name}" for name in ("acos", "asin", "atan", "atan2", "tan", "floor", "round")),
)
"""Ops that compute for each pair by itself."""

_LARGER = ("aten::max", "aten::min")
"""The same, of two tensors; of one they take the largest number of all."""

_CUTS = ("aten::unbind", "aten::split", "aten::chunk", "aten::select", "aten::slice")
"""Of tables with several numbers for each pair: they leave tables."""

_PRODUCTS, _DISTANCES = ("aten::mm", "aten::matmul"), ("aten::cdist",)
_ONE_HOT, _SCATTERS = "aten::one_hot", ("aten::scatter", "aten::scatter_")
_OF_MASKS = ("aten::to", "aten::eq", "aten::ne", "aten::view", "aten::unsqueeze", "aten::expand", "aten::detach")
_MOST_BETWEEN = 32
"""Ops between a mask and what it chooses from (our choice)."""

_WHOLE = ("long int", "int", "short int")
_WHERE = ("aten::nonzero", "aten::where", "aten::any", "aten::argmax", "aten::argwhere")


@dataclass(frozen=True)
class Pairs:
    """Tables of one size, on one line."""

    rows: int
    columns: int
    ops: tuple[str, ...]
    """That make a table, and take what is wanted of it."""
    work: Work
    """With the backward pass."""
    left: float
    """Share of the time that is left if only what is wanted is computed."""
    site: Site | None


@fact
def diagonals_of_pairs(facts: Facts) -> tuple[Pairs, ...]:
    """Tables of which only the diagonal is taken, those that take longest first. Raises Missing like `main_ops`."""
    tops, given = main_ops(facts)
    inputs, step = inputs_of(facts, tops.ids), facts.rank.spans["step"].to_numpy()[tops.ids]
    taken = named(facts, tops.ids, *_DIAGONALS)
    wanted = {
        (int(step[at]), shape[0])
        for at in np.flatnonzero(taken).tolist()
        if (shape := given[at]) is not None and len(shape) == 2 and shape[0] == shape[1] >= LEAST
    }
    found: dict[int, list[int]] = {}
    refused = set[int]()
    for one, size in sorted(wanted):
        made = _made_by_all(facts, tops, inputs, np.flatnonzero(step == one), size)
        if made is None:
            refused.add(size)
        else:
            found.setdefault(size, []).extend(made)
    rows = {size: np.sort(made) for size, made in found.items() if size not in refused}
    return _told(_table(facts, tops, (size, size), made) for size, made in rows.items())


def _made_by_all(facts: Facts, tops: HostSpans, inputs: list[Inputs], own: IntArray, size: int) -> list[int] | None:
    """The ops of a step that make such a table and cut out of it; None if none do, and if something takes all of it."""
    made, cut = list[int](), list[int]()
    for at in own.tolist():
        tensors = [tensor.shape for one in inputs[at] for tensor in one]
        takes = any(shape[:2] == (size, size) for shape in tensors)
        name = name_of(facts, int(tops.ids[at])).removesuffix("_")
        product = not takes and _product(name, tensors) == (size, size)
        each = name in _EACH or (name in _LARGER and len(tensors) == 2)
        if product or (each and _broadcast(tensors)[:2] == (size, size)):
            made.append(at)
        elif takes and (name in _DIAGONALS or (name in _CUTS and len(tensors[0]) > 2)):
            cut.append(at)
        elif takes:
            return None
    return made + cut if made else None


def _product(name: str, shapes: Sequence[Shape]) -> Shape:
    """Of what an op makes of all rows of two matrices; () if it is none."""
    if [len(one) for one in shapes] != [2, 2] or name not in (*_DISTANCES, *_PRODUCTS):
        return ()
    return shapes[0][0], shapes[1][0 if name in _DISTANCES else 1]


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """Of the result of an elementwise op; () if shapes do not fit."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        return ()


@fact
def equal_pairs(facts: Facts) -> tuple[Pairs, ...]:
    """Whole numbers looked for in a list by comparing with all, longest first. Raises Missing like `main_ops`."""
    tops, _ = main_ops(facts)
    inputs = inputs_of(facts, tops.ids)
    found: dict[tuple[Site | None, Shape], list[int]] = {}
    compared = np.flatnonzero(named(facts, tops.ids, "aten::eq")[:-1])
    asked = compared[named(facts, tops.ids[compared + 1], *_WHERE)]
    for at, site in zip(asked.tolist(), sites_of(facts, tops.ids[asked]), strict=True):
        tensors = [tensor for one in inputs[at] for tensor in one]
        table = _broadcast([one.shape for one in tensors])
        next_to = [tensor.shape for one in inputs[at + 1] for tensor in one][:1]
        is_outer = len(tensors) == 2 and all(one.dtype in _WHOLE and one.shape != table for one in tensors)
        if is_outer and len(table) == 2 and min(table) >= LEAST and next_to == [table]:
            found.setdefault((site, table), []).extend((at, at + 1))
    return _told(_table(facts, tops, table, np.array(made)) for (_, table), made in found.items())


@fact
def one_of_each_row(facts: Facts) -> tuple[Pairs, ...]:
    """What is computed for all, of which `where` takes one of each row, longest first. Raises Missing like `main_ops`.

    Ops from the mask, which has one place of each row, to `where`, but not that: what comes before may be for others.
    """
    tops, _ = main_ops(facts)
    inputs = inputs_of(facts, tops.ids)
    found: dict[tuple[Site | None, Shape], list[int]] = {}
    chosen = np.flatnonzero(named(facts, tops.ids, "aten::where"))
    for at, site in zip(chosen.tolist(), sites_of(facts, tops.ids[chosen]), strict=True):
        tensors = [tensor for one in inputs[at] for tensor in one]
        table = tensors[0].shape if tensors else ()
        if len(table) == 2 and min(table) >= LEAST and [one.shape for one in tensors] == [table] * 3:
            begin = _mask_before(facts, tops, inputs, at, table)
            found.setdefault((site, table), []).extend(range(begin, at))
    return _told(_table(facts, tops, table, np.array(made)) for (_, table), made in found.items() if made)


def _mask_before(facts: Facts, tops: HostSpans, inputs: list[Inputs], end: int, table: Shape) -> int:
    """Where the ops before `end` begin that make a mask of one place of each row, and such a table; or `end`."""
    for at in range(end - 1, max(end - _MOST_BETWEEN, 0) - 1, -1):
        shapes = [tensor.shape for one in inputs[at] for tensor in one]
        name = name_of(facts, int(tops.ids[at]))
        if (name == _ONE_HOT and shapes == [table[:1]]) or (name in _SCATTERS and shapes[:2] == [table, (table[0], 1)]):
            return at
        if name not in _OF_MASKS and not (name in _EACH and _broadcast(shapes) == table):
            break
    return end


def _told(some: Iterator[Pairs]) -> tuple[Pairs, ...]:
    return tuple(sorted(some, key=lambda one: -one.work.longest_ns))


def _table(facts: Facts, tops: HostSpans, shape: Shape, made: IntArray) -> Pairs:
    own = tops.where(made)
    work = work_of(facts, np.concatenate((own.ids, backward_ops(facts, own))))
    on_cpu = trains_on_cpu(facts)
    lasted = facts.rank.spans["dur_ns"].to_numpy()[work.ids if on_cpu else work.work_ids]
    least = np.minimum(lasted, CALL_NS if on_cpu else KERNEL_NS)
    names = [name_of(facts, one).removeprefix("aten::") for one in own.ids.tolist()]
    return Pairs(
        rows=shape[0],
        columns=shape[1],
        ops=tuple(dict.fromkeys(names)),
        work=work,
        left=float(least.sum()) / max(int(lasted.sum()), 1),
        site=sites_of(facts, own.ids[:1])[0],
    )
