"""Buffers that last from step to step, and are moved whole to make room for a few new rows.

It is rolled, or joined anew without its oldest rows; what it holds was put there by an op of the step before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from diagnose.facts.core.base import Facts
from diagnose.facts.core.seen_ops import seen_ops
from diagnose.facts.core.shaped import Shape, inputs_of
from diagnose.facts.values.ledger import Cause, Wasted, finds, of_spans
from diagnose.trace.intervals import IntArray

MOVES = ("aten::roll", "aten::cat")
"""What is joined is a buffer only if one of the parts nearly is the whole."""

_WRITES = ("aten::copy_", "aten::index_put_", "aten::index_copy_", "aten::fill_")

NEARLY = 0.5
"""Of what is joined has to be of the buffer (our choice)."""


@finds(Cause.SHIFTED_BUFFER)
def shifted_buffers(facts: Facts) -> Iterator[Wasted]:
    """All together. Raises Missing like seen_ops."""
    seen, graph = seen_ops(facts), facts.rank.values
    assert graph is not None
    begin = int(np.flatnonzero(graph.step == 1)[0])
    names = [graph.names[one] for one in graph.name.tolist()]
    takes: dict[int, set[int]] = {}
    for taker, maker in zip(graph.uses.tolist(), graph.used.tolist(), strict=True):
        takes.setdefault(taker, set()).add(maker)
    moved = {
        taker - begin
        for taker, makers in takes.items()
        if taker >= begin and any(0 <= one < begin and _moved(one, names, takes) for one in makers)
    }
    moving = [at for at in sorted(moved) if seen.names[at] in MOVES and not seen.backward[at]]
    large = [at for at in moving if _is_buffer(facts, seen.names[at], seen.ids[:, at])]
    ids = seen.ids[:, large]
    recorded = ids[ids >= 0]
    if len(recorded):
        longest = recorded[[int(facts.rank.spans["dur_ns"].to_numpy()[recorded].argmax())]]
        yield replace(of_spans(facts, recorded), detail=" by ".join(f"{one:,}" for one in _parts(facts, longest)[0]))


def _moved(op: int, names: list[str], takes: dict[int, set[int]]) -> bool:
    """Whether an op has moved what it makes, or has written to what was moved. Weights are written by optimizers."""
    while op >= 0 and names[op] in _WRITES:
        op = max((one for one in takes.get(op, ()) if one < op and names[one] in (*MOVES, *_WRITES)), default=-1)
    return op >= 0 and names[op] in MOVES


def _parts(facts: Facts, ids: IntArray) -> list[Shape]:
    """What one of these ops takes; none where shapes were not recorded."""
    for inputs in inputs_of(facts, ids[ids >= 0]):
        if inputs and inputs[0]:
            return [one.shape for one in inputs[0]]
    return []


def _is_buffer(facts: Facts, name: str, ids: IntArray) -> bool:
    sizes = [int(np.prod(shape)) for shape in _parts(facts, ids)]
    return bool(sizes) and (name == MOVES[0] or sum(sizes) > max(sizes) > NEARLY * sum(sizes))
