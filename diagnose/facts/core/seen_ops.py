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

ALIKE, LEAST = (
    0.75,
    0.85,
)  # Shares that have to be found of a thread's recorded ops, and of those looked at (our choice).
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
    """The op that made the same before in this step, in a backward pass if this one is in one; -1 if there is none."""
    constant: Mask  # The step before had made the same.
    backward: Mask  # It was called in a backward pass.
    brought: Mask  # It depends on memory that no op of this step was seen to fill: a batch, a buffer, a weight.
    takes: tuple[tuple[int, ...], ...]
    """Of each op those of this step that made what it takes; -1 among them if no op of this step did."""
    sparse: IntArray | None  # As `ValueGraph.sparse`.
    looked_up: IntArray | None  # As `ValueGraph.looked_up`, by positions among these.
    repeats: Mask | None = None  # As `ValueGraph.repeats`.


@fact
def seen_ops(facts: Facts) -> SeenOps:
    """Raises Missing if nobody looked at values, and if few recorded steps have the same ops."""
    graph = facts.rank.values
    if graph is None:
        raise Missing("whether ops recompute known results", "Record with this version of diagnose profile.")
    last = np.flatnonzero(graph.step == 1)
    ids = _recorded(facts, graph, last)
    used = steps(facts)
    if used.times_ns[(ids >= 0).any(axis=1)].sum() < ENOUGH * used.window_ns:
        raise Missing("whether ops recompute known results", ALIKE_STEPS)
    takes, looked_up = _takes(graph, last), graph.looked_up
    return SeenOps(
        ids=ids,
        names=tuple(graph.names[one] for one in graph.name[last].tolist()),
        makes=graph.makes[last] == 1,
        first=_first(graph, last, takes),
        constant=(graph.same[last] >= 0) & (graph.step[graph.same[last]] == 0),
        backward=graph.backward[last] == 1,
        brought=_depends_on_earlier(graph, last),
        takes=takes,
        sparse=None if graph.sparse is None else graph.sparse[last],
        looked_up=None if looked_up is None else np.maximum(looked_up[last] - last[0], -1),
        repeats=None if graph.repeats is None else graph.repeats[last] == 1,
    )


def is_layer(name: str) -> bool:
    """Whether it is one of LAYERS."""
    return any(fnmatch(name, layer) for layer in LAYERS)


def inside(facts: Facts, seen: SeenOps, spans: HostSpans) -> dict[int, set[int]]:
    """Of spans, none inside another, the ops that were seen in each."""
    recorded = np.flatnonzero(seen.ids >= 0)
    around = spans.around(spans_of(facts, seen.ids.ravel()[recorded]))
    found: dict[int, set[int]] = {}
    for one, at in zip(around.tolist(), (recorded % seen.ids.shape[1]).tolist(), strict=True):
        if one >= 0:
            found.setdefault(one, set()).add(at)
    return found


def _takes(graph: ValueGraph, last: IntArray) -> tuple[tuple[int, ...], ...]:
    """For each op of `last` the ops whose results it takes, as positions in `last`; -1 for ops before it."""
    first = int(last[0])
    makers_of: list[set[int]] = [set() for _ in last]
    for taker, maker in zip(graph.uses.tolist(), graph.used.tolist(), strict=True):
        if taker >= first:
            makers_of[taker - first].add(max(maker - first, -1))
    return tuple(tuple(sorted(makers)) for makers in makers_of)


def _first(graph: ValueGraph, last: IntArray, takes: tuple[tuple[int, ...], ...]) -> IntArray:
    """Of each op the position of that which made the same in this step before it, in the same phase; or -1.

    What takes the same as another op has been given the same, also where the recorder did not compare that.
    """
    known: dict[tuple[int, int], int] = {}
    found = []
    for position, op in enumerate(last.tolist()):
        same = int(graph.same[op])
        key = (op if same < 0 else same, int(graph.backward[op]))
        found.append(known.setdefault(key, position) if graph.makes[op] else position)
    names = [graph.names[one] for one in graph.name[last].tolist()]
    written = {maker for taker, makers in enumerate(takes) if names[taker].endswith("_") for maker in makers}
    alone = [at == one and graph.makes[last[at]] == 1 and at not in written for at, one in enumerate(found)]
    for at in range(len(found) - 1, -1, -1):  # What it takes was called before it.
        mine, others = ([one for one in takes[op] if one >= 0] for op in (at, found[at]))
        for one, other in zip(mine, others, strict=False) if len(mine) == len(others) else ():
            if alone[one] and other < one and names[one] == names[other]:
                found[one] = found[other]
    first = np.array(found, dtype=np.int64)
    return np.where(first < np.arange(len(last)), first, -1)


def _depends_on_earlier(graph: ValueGraph, last: IntArray) -> Mask:
    """Whether each op of `last` depends, through others or directly, on an op before `last`."""
    first = int(last[0])
    depends = np.zeros(len(last), dtype=bool)
    order = np.argsort(graph.uses, kind="stable")
    for taker, maker in zip(graph.uses[order].tolist(), graph.used[order].tolist(), strict=True):
        if taker >= first:  # What it takes was made before it, so that is known here.
            depends[taker - first] |= maker < first or depends[maker - first]
    return depends


def _recorded(facts: Facts, graph: ValueGraph, last: IntArray) -> IntArray:
    """The recorded span of each op of `last`, by used step: shape (steps, ops); -1 where none matches."""
    makes = last[graph.makes[last] == 1]
    numbers = {graph.names[one].rstrip("_"): one for one in np.unique(graph.name[makes]).tolist()}
    spans = host_spans(facts, SpanKind.OP, named=lambda name: name.rstrip("_") in numbers).outermost()
    names = names_of(facts)
    number = _numbered(numbers, [names[code] for code in name_codes(facts, spans.ids).tolist()])
    wanted = _numbered(numbers, [graph.names[one] for one in graph.name[last].tolist()])
    step, making = used_step(facts, spans.ids), graph.makes[last] == 1
    found = np.full((steps(facts).count, len(last)), -1, dtype=np.int64)
    for one in range(len(found)):
        mine = step == one
        for thread in np.unique(graph.thread[makes]).tolist():
            own = np.flatnonzero((graph.thread[last] == thread) & making)
            found[one, own] = _best(spans.where(mine), number[mine], wanted[own])
        if (found[one] >= 0).sum() < LEAST * making.sum():
            found[one] = -1
    return found


def _numbered(numbers: dict[str, int], names: list[str]) -> IntArray:
    return np.array([numbers.get(name.rstrip("_"), -1) for name in names], dtype=np.int64)


def _best(spans: HostSpans, number: IntArray, wanted: IntArray) -> IntArray:
    """The spans of the thread whose ops are like those that are wanted; -1 if there is none, or where they differ."""
    found = np.full(len(wanted), -1, dtype=np.int64)
    for track in np.unique(spans.track).tolist():
        mine = spans.track == track
        pairs = _aligned(number[mine].tolist(), wanted.tolist())
        if pairs and len(pairs) >= max(ALIKE * int(mine.sum()), LEAST * len(wanted)):
            some, others = np.array(pairs, dtype=np.int64).T
            found[others] = spans.ids[mine][some]
            return found
    return found


def _aligned(some: list[int], others: list[int]) -> list[tuple[int, int]]:
    """Positions of those that are equal and in the same order, as far as few are left out on either side."""
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
    mine, theirs = some[one : one + AGREE], others[other : other + AGREE]
    short = min(len(mine), len(theirs))
    return short > 0 and mine[:short] == theirs[:short]
