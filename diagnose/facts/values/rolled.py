"""Is a memory that lasts from step to step moved whole, to make room for a few new rows?

It is rolled, or joined anew without its oldest rows; what it holds was put there by an op of the step before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.seen_ops import seen_ops
from diagnose.facts.core.shaped import Shape, Work, inputs_of, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import used_step
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

MOVES = ("aten::roll", "aten::cat")
"""A sum of parts is a memory only if one of them nearly is the whole."""

_WRITES = ("aten::copy_", "aten::index_put_", "aten::index_copy_", "aten::fill_")

NEARLY = 0.5
"""Of what is joined has to be of the memory (our choice)."""


@dataclass(frozen=True)
class RolledMemories:
    """All that are moved."""

    times: int
    """Per step."""
    largest: Shape
    work: Work
    steps_seen: int
    """Used steps in which they are."""
    site: Site | None
    """The line of the one that takes longest."""


@fact
def rolled_memories(facts: Facts) -> RolledMemories | None:
    """None if there are none. Raises Missing like seen_ops."""
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
    large = [at for at in moving if _is_memory(facts, seen.names[at], seen.ids[:, at])]
    ids = seen.ids[:, large]
    recorded = ids[ids >= 0]
    if not len(recorded):
        return None
    lasted = facts.rank.spans["dur_ns"].to_numpy()[recorded]
    longest = recorded[[int(lasted.argmax())]]
    return RolledMemories(
        times=len(large),
        largest=_parts(facts, longest)[0],
        work=work_of(facts, recorded),
        steps_seen=len(set(used_step(facts, recorded).tolist()) - {-1}),
        site=sites_of(facts, longest)[0],
    )


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


def _is_memory(facts: Facts, name: str, ids: IntArray) -> bool:
    sizes = [int(np.prod(shape)) for shape in _parts(facts, ids)]
    return bool(sizes) and (name == MOVES[0] or sum(sizes) > max(sizes) > NEARLY * sum(sizes))
