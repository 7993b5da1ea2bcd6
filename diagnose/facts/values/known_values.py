"""Ops whose results are known before: computed in this step, in the step before, or given to them.

All are told by what was seen of each op, row by row as they were called.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from diagnose.facts.autograd.backward import backward_nodes, gradient_shapes, nodes_of
from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.facts.core.inputs import Inputs, Mask
from diagnose.facts.core.seen_ops import NOT_COUNTED, SeenOps, is_layer, seen_ops
from diagnose.facts.core.shaped import Shape, first_shape, inputs_of
from diagnose.facts.values.wasted_entries import Cause, Wasted, by_line, finds, in_a_row, main_spans, of_rows
from diagnose.trace.intervals import IntArray

DRAWS = tuple(f"aten::{name}" for name in ("rand", "normal", "uniform", "multinomial", "poisson"))
"""How names of ops begin that draw numbers, but for those of layers, such as dropout."""

LEAST_ZEROS, ALL = 980, 1000
"""Thousandths that have to be zero. A product with a sparse matrix took less time than one with all its zeros below 2 %
of other elements, forth and back (torch 2.13, CSR, one core of a Xeon: 512 to 2,048 rows, by 64 columns). Of all: a
recurrent net begins so."""

_NO_DATA = Missing("whether steps get new data", "Record with the real training data.")


@finds(Cause.DUPLICATE)
def duplicates(facts: Facts) -> Iterator[Wasted]:
    """What was computed before in the same step. Raises Missing like seen_ops.

    What checkpoints compute again in a backward pass is not among it. The backward pass is that through the repetition,
    if it is gone in the same pass as that through the first: then one is enough.
    """
    seen = seen_ops(facts)
    for rows in by_line(facts, seen, _rows(seen, seen.first >= 0)):
        ops = np.concatenate(rows)
        again, before = seen.ids[:, ops], seen.ids[:, seen.first[ops]]
        both = (again >= 0) & (before >= 0)
        again, before = again[both], before[both]
        other = int(before[0]) if len(again) else -1
        yield replace(of_rows(facts, seen, rows, back=_merging(facts, again, before), other=other), times=len(rows))


def _merging(facts: Facts, again: IntArray, before: IntArray) -> IntArray:
    """Nodes of ops that repeat others, which a pass runs that runs nodes of these as well."""
    nodes = optional(backward_nodes, facts)
    if nodes is None:
        return again[:0]
    spans = main_spans(facts, np.concatenate((again, before)))
    op, node = nodes_of(facts, spans)
    pairs = list(zip(spans.ids[op].tolist(), nodes.passed[node].tolist(), strict=True))
    ran, first = set(pairs), dict(zip(again.tolist(), before.tolist(), strict=True))
    return nodes.spans.ids[node[[(first.get(one), passed) in ran for one, passed in pairs]]]


@finds(Cause.CONSTANT)
def constants(facts: Facts) -> Iterator[Wasted]:
    """What the step before had computed, too, and nothing in this step. Raises Missing like seen_ops.

    What is made of memory that comes from elsewhere is in doubt where no step is known to get new data: it may be the
    one batch.
    """
    seen, context = seen_ops(facts), facts.rank.context
    fetches = context is not None and any(loader.batches for loader in context.rank.loaders)
    new_data = fetches or any(name.startswith(DRAWS) for name in seen.names)
    for rows in by_line(facts, seen, _rows(seen, seen.constant & (seen.first < 0))):
        of_batch = bool(seen.brought[np.concatenate(rows)].any()) and not new_data
        yield replace(of_rows(facts, seen, rows), times=len(rows), doubt=_NO_DATA if of_batch else None)


def _rows(seen: SeenOps, chosen: Mask) -> Iterator[IntArray]:
    """Chosen ops in a row. Where ops begin to repeat what the row has repeated already, another row begins.

    Not what autograd computes by itself: a mask for each input of a maximum.
    """
    for run in in_a_row(seen, chosen):
        begin, first = 0, seen.first[run].tolist()
        for at in range(1, len(run) + 1):
            if at == len(run) or 0 <= first[at] <= first[begin]:
                if not seen.backward[run[begin:at]].all():
                    yield run[begin:at]
                begin = at


@finds(Cause.ZEROS_IN_OPERAND)
def sparse_products(facts: Facts) -> Iterator[Wasted]:
    """Products with matrices of which nearly all is zero. Raises Missing like seen_ops, and if nobody counted zeros.

    Not those whose results are known already.
    """
    seen = seen_ops(facts)
    if (zeros := seen.sparse) is None:
        raise NOT_COUNTED
    sparse = (zeros >= LEAST_ZEROS) & (zeros < ALL) & (seen.first < 0) & ~seen.constant & ~seen.backward
    sparse &= np.array([name != "aten::convolution" for name in seen.names], dtype=bool)  # Torch has no such.
    for rows in by_line(facts, seen, np.flatnonzero(sparse).reshape(-1, 1)):
        ops = np.concatenate(rows)
        kind = "batched" if any(seen.names[op].endswith("bmm") for op in ops) else ""
        yield replace(of_rows(facts, seen, rows), share=int(zeros[ops].min()) / ALL, kind=kind)


@finds(Cause.FROZEN_ROWS)
def frozen_rows(facts: Facts) -> Iterator[Wasted]:
    """What layers that learn nothing make of rows of a table that never changes, by lookup: always the same.

    Nothing is drawn for it, and what is taken beside the rows is written by no op. But a net whose weights are all as
    large as some that learn may be a copy of these, which is made anew after more steps than were looked at: a target.
    Raises Missing like seen_ops, and if nobody looked.
    """
    seen = seen_ops(facts)
    lookups = seen.looked_up
    if lookups is None:
        raise NOT_COUNTED
    nodes = optional(backward_nodes, facts)
    learnt = (
        {tuple(sorted(gradient_shape)) for gradient_shape in gradient_shapes(facts, nodes) if gradient_shape}
        if nodes
        else set[Shape]()
    )
    for lookup in np.unique(lookups[lookups >= 0]).tolist():
        mine = (lookups == lookup) & (np.arange(len(lookups)) != lookup)
        layers = [at for at in np.flatnonzero(mine & seen.makes).tolist() if is_layer(seen.names[at])]
        if any(_weight(facts, seen, at) not in {*learnt, None} for at in layers):
            table = next((shape for input_ in _inputs(facts, seen, lookup) if (shape := first_shape(input_))), ())
            detail = f"a table of {table[0]:,}" if table else "a table"
            yield replace(of_rows(facts, seen, list(in_a_row(seen, mine))), times=len(layers), detail=detail)


def _weight(facts: Facts, seen: SeenOps, at: int) -> Shape | None:
    """The sides of a layer's weight, which convolutions take second and others last. None where not recorded."""
    for inputs in _inputs(facts, seen, at):
        shapes = [some[0].shape for some in inputs if some and len(some[0].shape) > 1]
        if len(shapes) > 1:
            return tuple(sorted(shapes[1] if len(shapes[1]) > 2 else shapes[-1]))
    return None


def _inputs(facts: Facts, seen: SeenOps, at: int) -> list[Inputs]:
    ids = seen.ids[:, at]
    return inputs_of(facts, ids[ids >= 0])
