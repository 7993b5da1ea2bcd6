"""Which recorded ops are those of the step whose values `diagnose profile` looked at?

That step came after the recording. Its ops are told to be those of a recorded step by their names and their order,
thread by thread; views count for nothing. What the dispatcher sees lies within ops that it does not see: an
`aten::linear` runs an `addmm`. And the dispatcher itself changes some: gradients are added up in other ways.
"""

from fnmatch import fnmatch

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.inputs import Mask, name_codes
from diagnose.facts.core.spans import HostSpans, host_spans, names_of, spans_of, used_step
from diagnose.facts.core.steps import steps
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.model import ValueGraph

ALIKE, LEAST = 0.75, 0.85  # Shares of a thread's recorded ops, and of those looked at, that have to match. Chosen.
ENOUGH = 0.5  # Of the time of the used steps has to be that of steps with the same ops (our choice).
APART, AGREE = 16, 2  # Ops that may be left out in a row, and those that have to agree behind them (our choice).
NOT_COUNTED = Missing("contents of tensor rows", "Record with this version of diagnose profile.")
LAYERS = ("aten::linear", "aten::*mm", "aten::*matmul", "aten::einsum", "aten::conv*")  # Most of a net's time.
ALIKE_STEPS = "Record a training whose steps are alike."  # How to know more.


class SeenOps(Struct, frozen=True):
    """The ops of the second of the steps that were looked at, in the order in which they were called."""

    ids: IntArray  # The span of each in each used step, -1 where that is not known. Shape (used steps, ops).
    names: tuple[str, ...]
    makes: Mask  # It makes or changes values; others make views.
    first: IntArray
    """Position of the first op that made the same in this step, of a backward pass if this one is; -1 if none did."""
    constant: Mask  # The step before had made the same.
    backward: Mask  # It was called in a backward pass.
    brought: Mask  # It depends on memory that no op of this step was seen to fill: a batch, a buffer, a weight.
    takes: tuple[tuple[int, ...], ...]
    """Positions of the ops of this step that made what each op takes; with -1 if it also takes something else."""
    sparse: IntArray | None  # As `ValueGraph.sparse`.
    looked_up: IntArray | None  # As `ValueGraph.looked_up`, by positions among these.
    repeats: Mask | None = None  # As `ValueGraph.repeats`.


@fact
def seen_ops(facts: Facts) -> SeenOps:
    """Raises Missing if nobody looked at values, and if few recorded steps have the same ops."""
    graph = facts.rank.values
    if graph is None:
        raise Missing("whether ops recompute known results", "Record with this version of diagnose profile.")
    second = np.flatnonzero(graph.step == 1)
    ids = _recorded(facts, graph, second)
    used = steps(facts)
    if used.times_ns[(ids >= 0).any(axis=1)].sum() < ENOUGH * used.window_ns:
        raise Missing("whether ops recompute known results", ALIKE_STEPS)
    takes, looked_up = _takes(graph, second), graph.looked_up
    return SeenOps(
        ids=ids,
        names=tuple(graph.names[one] for one in graph.name[second].tolist()),
        makes=graph.makes[second] == 1,
        first=_first(graph, second, takes),
        constant=(graph.same[second] >= 0) & (graph.step[graph.same[second]] == 0),
        backward=graph.backward[second] == 1,
        brought=_depends_on_earlier(graph, second),
        takes=takes,
        sparse=None if graph.sparse is None else graph.sparse[second],
        looked_up=None if looked_up is None else np.maximum(looked_up[second] - second[0], -1),
        repeats=None if graph.repeats is None else graph.repeats[second] == 1,
    )


def is_layer(name: str) -> bool:
    """Whether it is one of LAYERS."""
    return any(fnmatch(name, layer) for layer in LAYERS)


def inside(facts: Facts, seen: SeenOps, spans: HostSpans) -> dict[int, set[int]]:
    """By position in `spans`, none inside another: positions in `seen` of the ops in it. Empty ones are left out."""
    recorded = np.flatnonzero(seen.ids >= 0)
    around = spans.around(spans_of(facts, seen.ids.ravel()[recorded]))
    found: dict[int, set[int]] = {}
    for one, at in zip(around.tolist(), (recorded % seen.ids.shape[1]).tolist(), strict=True):
        if one >= 0:
            found.setdefault(one, set()).add(at)
    return found


def _takes(graph: ValueGraph, second: IntArray) -> tuple[tuple[int, ...], ...]:
    """For each op of `second` the ops whose results it takes, as positions in `second`; -1 for ops before it."""
    offset = int(second[0])
    makers_of: list[set[int]] = [set() for _ in second]
    for taker, maker in zip(graph.uses.tolist(), graph.used.tolist(), strict=True):
        if taker >= offset:
            makers_of[taker - offset].add(max(maker - offset, -1))
    return tuple(tuple(sorted(makers)) for makers in makers_of)


def _first(graph: ValueGraph, second: IntArray, takes: tuple[tuple[int, ...], ...]) -> IntArray:
    """Of each op the position of that which made the same in this step before it, in the same phase; or -1.

    If two ops made the same, so did the ops that made their inputs: one of which the recorder found no equal gets its
    counterpart, if that has the same name.
    """
    known: dict[tuple[int, int], int] = {}
    found = []
    for position, op in enumerate(second.tolist()):
        same = int(graph.same[op])
        key = (op if same < 0 else same, int(graph.backward[op]))
        found.append(known.setdefault(key, position) if graph.makes[op] else position)
    names = [graph.names[one] for one in graph.name[second].tolist()]
    written = {maker for taker, makers in enumerate(takes) if names[taker].endswith("_") for maker in makers}
    alone = [at == one and graph.makes[second[at]] == 1 and at not in written for at, one in enumerate(found)]
    for at in range(len(found) - 1, -1, -1):  # What it takes was called before it.
        makers, twins = ([maker for maker in takes[op] if maker >= 0] for op in (at, found[at]))
        for maker, twin in zip(makers, twins, strict=False) if len(makers) == len(twins) else ():
            if alone[maker] and twin < maker and names[maker] == names[twin]:
                found[maker] = found[twin]
    first = np.array(found, dtype=np.int64)
    return np.where(first < np.arange(len(second)), first, -1)


def _depends_on_earlier(graph: ValueGraph, second: IntArray) -> Mask:
    """Whether each op of `second` depends, directly or not, on an earlier step's op or on memory that no op filled."""
    offset = int(second[0])
    depends = np.zeros(len(second), dtype=bool)
    order = np.argsort(graph.uses, kind="stable")
    for taker, maker in zip(graph.uses[order].tolist(), graph.used[order].tolist(), strict=True):
        if taker >= offset:  # What it takes was made before it, so that is known here.
            depends[taker - offset] |= maker < offset or depends[maker - offset]
    return depends


def _recorded(facts: Facts, graph: ValueGraph, second: IntArray) -> IntArray:
    """The recorded span of each op of `second`, by used step: shape (steps, ops); -1 where none matches."""
    makes = second[graph.makes[second] == 1]
    numbers = {graph.names[one].rstrip("_"): one for one in np.unique(graph.name[makes]).tolist()}
    spans = host_spans(facts, SpanKind.OP, named=lambda name: name.rstrip("_") in numbers).outermost()
    names = names_of(facts)
    number = _numbered(numbers, [names[code] for code in name_codes(facts, spans.ids).tolist()])
    wanted = _numbered(numbers, [graph.names[one] for one in graph.name[second].tolist()])
    step, making = used_step(facts, spans.ids), graph.makes[second] == 1
    found = np.full((steps(facts).count, len(second)), -1, dtype=np.int64)
    for one in range(len(found)):
        mine = step == one
        for thread in np.unique(graph.thread[makes]).tolist():
            own = np.flatnonzero((graph.thread[second] == thread) & making)
            found[one, own] = _best(spans.where(mine), number[mine], wanted[own])
        if (found[one] >= 0).sum() < LEAST * making.sum():
            found[one] = -1
    return found


def _numbered(numbers: dict[str, int], names: list[str]) -> IntArray:
    return np.array([numbers.get(name.rstrip("_"), -1) for name in names], dtype=np.int64)


def _best(spans: HostSpans, number: IntArray, wanted: IntArray) -> IntArray:
    """For each wanted op its span on the first thread that matches as a whole, or -1. `number`: names of the spans."""
    found = np.full(len(wanted), -1, dtype=np.int64)
    for track in np.unique(spans.track).tolist():
        mine = spans.track == track
        pairs = _aligned(number[mine].tolist(), wanted.tolist())
        if pairs and len(pairs) >= max(ALIKE * int(mine.sum()), LEAST * len(wanted)):
            at_span, at_wanted = np.array(pairs, dtype=np.int64).T
            found[at_wanted] = spans.ids[mine][at_span]
            return found
    return found


def _aligned(some: list[int], others: list[int]) -> list[tuple[int, int]]:
    """(position in `some`, in `others`) of equal numbers in order, up to where more than APART in a row match none."""
    pairs, one, other = [], 0, 0
    while one < len(some) and other < len(others):
        if some[one] == others[other]:
            pairs.append((one, other))
            one, other = one + 1, other + 1
            continue
        skips = ((apart - k, k) for apart in range(1, APART + 1) for k in range(apart + 1))
        behind = ((one + left, other + right) for left, right in skips)
        meeting = next((at for at in behind if _agree(some, others, *at)), None)
        if meeting is None:
            return pairs
        one, other = meeting
    return pairs


def _agree(some: list[int], others: list[int], one: int, other: int) -> bool:
    """Whether the next AGREE numbers from both positions are equal, or as many as are left; False at an end."""
    mine, theirs = some[one : one + AGREE], others[other : other + AGREE]
    short = min(len(mine), len(theirs))
    return short > 0 and mine[:short] == theirs[:short]
