"""The ledger of wasted work, and what backward passes add to it.

Gradients that nobody uses, graphs that no pass goes through, and gradients of slices that are as large as the whole.
What forward passes waste is in `known_values`.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.autograd.backward import (
    BackwardNodes,
    backward_nodes,
    backward_ops,
    forward_ops,
    gradient_shapes,
    made_nodes,
    optimizer_of,
)
from diagnose.facts.core.base import Facts, Missing, fact, once, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import (
    NO_SHAPES,
    Mask,
    Shape,
    Work,
    calls_alike,
    inputs_of,
    main_ops,
    named,
    recorded_inputs,
    work_of,
)
from diagnose.facts.core.seen_ops import inside, seen_ops
from diagnose.facts.core.spans import HostSpans, host_spans, in_used_steps, sites_of, used_step
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.optimizer.optimizer import NO_STEPS, updates, zeroings
from diagnose.facts.values.known_values import FINDERS, Cause, Wasted, finds, of_spans
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

__all__ = ["Cause", "Ledger", "Wasted", "wasted_work"]

_LISTS = ("aten::_foreach_*", "aten::_fused_*")
_SHARDS = ("FSDP::", "FullyShardedDataParallel", "c10d::_reduce_scatter", "c10d::reduce_scatter")
_SHARDED = Missing("which sharded gradients an optimizer uses", "Only unsharded gradients are recorded.")
_NO_NUMBERS = Missing("sequence numbers of autograd", "Record with torch.profiler of PyTorch 1.7 or newer.")
_MAY_BE_RUN_LATER = Missing("whether a later backward pass uses the graph", "Record whole steps of the training.")
_MAY_BE_SENT = Missing("whether other ranks use the gradients sent to them", "This is not recorded.")
_MAY_BE_READ = Missing("whether the script reads the gradient", "Record with this version of diagnose profile.")
_UNKNOWN = Missing("which weights the optimizer updates", "torch.profiler records lists of at most 30 tensors.")

LEAST = 2  # Gradients a step, and a pass, that a script hardly uses itself (our choice).


class Ledger(Struct, frozen=True):
    """Wasted work, looked for when somebody asks."""

    facts: Facts

    def of(self, cause: Cause) -> tuple[Wasted, ...]:
        """What wastes most first, none if there is none. Raises Missing where that cannot be told."""
        return FINDERS[cause](self.facts)


@fact
def wasted_work(facts: Facts) -> Ledger:
    """By cause. Each raises its own Missing."""
    return Ledger(facts)


@finds(Cause.UNUSED_GRADIENT)
def unused_gradients(facts: Facts) -> Iterator[Wasted]:
    """What backward passes run after the last gradient that an optimizer uses.

    A single gradient, in all or in each pass, is in doubt unless values tell that nothing reads it: a script may use
    that of its input, and each micro-batch has its own.

    Raises Missing like backward_nodes, without shapes or marked steps of an optimizer, and if weights are sharded.
    Weights are told apart by shapes: a gradient counts as used if an optimizer updates a weight of its shape, unless it
    is known to belong to an optimizer that leaves another of its gradients unused. It also counts as used if its shape
    is that of a tensor sent to other ranks. Missing is raised if nothing is found, but gradients were sent, or not all
    weights that optimizers update are known. A pass without any gradient known to be used is left out: optimizers may
    update what they made of weights.
    """
    nodes, calls = backward_nodes(facts), updates(facts)
    if len(host_spans(facts, *SpanKind, named=lambda name: name.startswith(_SHARDS)).ids):
        raise _SHARDED
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    if not len(calls.ids):
        raise NO_STEPS
    shapes = gradient_shapes(facts, nodes)
    turn, turns = _turns(facts, nodes, calls, shapes)
    vain, cleared = _with_their_optimizer(nodes, turn, optimizer_of(facts, nodes), *_unused(nodes, shapes, turn, turns))
    sent = np.array([shape in _sent(facts) for shape in shapes], dtype=bool) & vain
    vain &= ~sent
    # What is run after the last gradient of its pass that is used; where one is not known it counts as used.
    order = np.arange(len(shapes))
    last = np.full(len(nodes.first), -1, dtype=np.int64)
    used = nodes.adds & ~vain
    np.maximum.at(last, nodes.passed[used], order[used])
    after = (last >= 0)[nodes.passed] & (order > last[nodes.passed])
    some = np.bincount(nodes.passed[vain & after], minlength=len(nodes.first)) > 0
    chosen = some[nodes.passed] & after
    if not chosen.any():
        if sent.any():
            raise _MAY_BE_SENT
        if any(one.updated is None for one in turns):
            raise _UNKNOWN
        return
    adding = np.flatnonzero(chosen & nodes.adds)
    seen = adding[in_used_steps(facts, nodes.spans.ids[adding])]
    many = round_half_up(len(seen), steps(facts).count)
    single = many < LEAST or len(seen) < LEAST * len(np.unique(nodes.passed[seen]))
    kind = "single" if single else "cleared" if (cleared & chosen).any() else ""
    sure = not single or _only_added_to(facts, nodes, adding)
    detail = "1 gradient" if many == 1 else f"{many} gradients"
    doubt = None if sure else _MAY_BE_READ
    yield replace(of_spans(facts, nodes.spans.ids[chosen]), kind=kind, detail=detail, doubt=doubt)


def _only_added_to(facts: Facts, nodes: BackwardNodes, adding: IntArray) -> bool:
    """Whether the gradients that these nodes add to are read by backward passes only, in both steps looked at."""
    seen, graph = optional(seen_ops, facts), facts.rank.values
    if seen is None or graph is None:
        return False
    begin = int(np.flatnonzero(graph.step == 1)[0])
    ops = inside(facts, seen, nodes.spans)
    if any(len(ops.get(one, ())) > 1 for one in adding.tolist()):  # Of a hook of the gradient.
        return False
    sum_ops = {begin + max(ops[one]) for one in adding.tolist() if one in ops}
    previous = {one for one in graph.used[np.isin(graph.uses, list(sum_ops))].tolist() if 0 <= one < begin}
    takers = graph.uses[np.isin(graph.used, list(sum_ops | previous)) & (graph.backward[graph.uses] == 0)]
    return bool(sum_ops) and not len(takers)


@once
def _sent(facts: Facts) -> frozenset[Shape]:
    """Shapes of what collectives and transfers between ranks take: a stage of a pipeline sends such gradients on."""
    calls = host_spans(facts, *SpanKind, named=lambda name: name.startswith(("c10d::", "record_param_comms")))
    return frozenset(one.shape for given in inputs_of(facts, calls.ids) for some in given for one in some)


class _Turn(Struct, frozen=True):
    """Steps of optimizers without a pass between them: they take the gradients of the passes since the turn before."""

    updated: set[Shape] | None  # Shapes of what they update; None if not all of them are known.
    cleared: bool  # Gradients are reset between the turn before and the turn's first pass.


def _turns(
    facts: Facts, nodes: BackwardNodes, calls: HostSpans, shapes: list[Shape | None]
) -> tuple[IntArray, list[_Turn]]:
    """For each pass the turn that takes its gradients (`len(turns)` if none does), and the turns."""
    pass_begin_ns, resets = nodes.spans.start_ns[nodes.first], zeroings(facts).start_ns
    passes_before = np.searchsorted(pass_begin_ns, calls.start_ns, side="left")
    counts, of_call = np.unique(passes_before, return_inverse=True)
    updated, turns, first, ended = _updated(facts, calls, set(shapes)), list[_Turn](), 0, np.iinfo(np.int64).min
    for at, count in enumerate(counts.tolist()):
        own_calls = np.flatnonzero(of_call == at)
        begin = pass_begin_ns[first] if first < len(pass_begin_ns) else np.iinfo(np.int64).max
        known = [one for one in (updated[call] for call in own_calls.tolist()) if one is not None]
        whole = set[Shape]().union(*known) if len(known) == len(own_calls) else None
        turns.append(_Turn(whole, bool(((resets >= ended) & (resets < begin)).any())))
        first, ended = count, calls.end_ns[own_calls].max()
    return np.searchsorted(counts, np.arange(len(pass_begin_ns)), side="right"), turns


def _unused(nodes: BackwardNodes, shapes: list[Shape | None], turn: IntArray, turns: list[_Turn]) -> tuple[Mask, Mask]:
    """Masks of nodes: those whose gradient no turn uses; and of these such as are reset before their shape is updated.

    What is made after the last turn, of a shape that no turn updates, is in neither: a later turn may use it.
    """
    vain, cleared = np.zeros(len(shapes), dtype=bool), np.zeros(len(shapes), dtype=bool)
    takers = {
        shape: [at for at, one in enumerate(turns) if one.updated is None or shape in one.updated]
        for shape in set(shapes) - {None}
    }
    for one in np.flatnonzero(nodes.adds & np.array([shape in takers for shape in shapes], dtype=bool)).tolist():
        mine, able = int(turn[nodes.passed[one]]), takers[shapes[one]]
        later = next((at for at in able if at >= mine), mine)
        if not able:
            vain[one] = mine < len(turns)
        elif later > mine and turns[later].updated is not None and turns[later].cleared:
            vain[one] = cleared[one] = True
    return vain, cleared


def _with_their_optimizer(
    nodes: BackwardNodes, turn: IntArray, optimizer: IntArray, vain: Mask, cleared: Mask
) -> tuple[Mask, Mask]:
    """Both masks with all gradients of the same optimizer and turn: an optimizer that steps updates all it has."""
    key = turn[nodes.passed] * (int(optimizer.max(initial=0)) + 1) + optimizer
    mine = nodes.adds & (optimizer > 0)
    still, again = (np.isin(key, key[mine & vain & some]) & mine for some in (vain, cleared))
    return vain | still, cleared | again


def _updated(facts: Facts, calls: HostSpans, shapes: set[Shape | None]) -> list[set[Shape] | None]:
    """For each call those of `shapes` that it updates; None if some are not recorded, or none is."""
    ops = host_spans(facts, SpanKind.OP)
    call = calls.around(ops)
    inside = ops.where(call >= 0)
    position, inputs = recorded_inputs(facts, inside.ids)
    listed = named(facts, inside.ids, *_LISTS).astype(np.int64)
    shapes_of_call: list[set[Shape] | None] = [set() for _ in calls.ids]
    for at, input_row, is_list in np.unique(np.stack((call[call >= 0], position, listed)), axis=1).T.tolist():
        known, given = shapes_of_call[at], inputs[input_row] if input_row >= 0 else ()
        if known is None or (is_list and not (given and given[0])):
            shapes_of_call[at] = None  # Of many weights nothing is recorded.
        else:
            known.update(one.shape for each in given for one in each if one.shape in shapes)
    return [known or None for known in shapes_of_call]


@finds(Cause.UNUSED_GRAPH)
def unused_graphs(facts: Facts) -> Iterator[Wasted]:
    """Outermost ops of the main thread that have made nodes, none of which is run before their step ends.

    Ops outside of steps, and after the last backward pass, are left out: their graphs may be run later. Raises Missing
    if a backward pass runs what another step has made, as in pipelines, or what was made before the recording. Also
    raises it without steps, if no node has a number, and like backward_nodes.
    """
    _, (ops, _) = backward_nodes(facts), forward_ops(facts)
    if steps(facts).measure is Measure.WINDOW:
        raise _MAY_BE_RUN_LATER
    begin, end = made_nodes(facts, ops)
    number, step, by_main = _nodes_run(facts)
    if not len(number):
        raise _NO_NUMBERS
    made_in = used_step(facts, ops.ids)
    makes = (begin >= 0) & (end > begin)
    order = np.flatnonzero(makes)[np.argsort(begin[makes], kind="stable")]
    at = np.searchsorted(begin[order], number, side="right") - 1
    if (by_main & (step >= 0) & (step != np.append(made_in[order], intervals.NONE)[at])).any():
        raise _MAY_BE_RUN_LATER
    is_run = np.searchsorted(number, begin) < np.searchsorted(number, end)
    is_vain = makes & ~is_run & (end <= number[-1]) & (made_in >= 0)
    if is_vain.any():
        same = _as_in_training(facts, ops.ids[makes], is_vain[makes])
        yield replace(of_spans(facts, ops.ids[is_vain]), kind="as in training" if same else "")


def _nodes_run(facts: Facts) -> tuple[IntArray, IntArray, Mask]:
    """(number, used step or -1, whether the main thread made it) of each node that ran, nested or not, by number.

    Each thread counts its own nodes, such as the one that recomputes what was checkpointed. The thread that ran ops
    first has the lowest number: the main one.
    """
    table, every = facts.rank.ops, host_spans(facts, SpanKind.OP)
    number, thread = (
        table[name].reindex(every.ids, fill_value=-1).to_numpy().astype(np.int64)
        for name in ("sequence", "forward_thread")
    )
    own = np.flatnonzero((number >= 0) & (thread > 0))
    own = own[np.argsort(number[own], kind="stable")]
    return number[own], used_step(facts, every.ids[own]), thread[own] == thread[own].min(initial=np.iinfo(np.int64).max)


def _as_in_training(facts: Facts, ids: IntArray, is_vain: Mask) -> bool:
    """Whether each vain op has a like one of its own in its step, with equal input shapes, whose nodes are run.

    False where shapes were not recorded.
    """
    what, step = calls_alike(facts, ids), used_step(facts, ids)
    is_vain, is_useful = is_vain & (step >= 0), ~is_vain & (step >= 0)
    vain, useful = (Counter(zip(step[one].tolist(), what[one].tolist(), strict=True)) for one in (is_vain, is_useful))
    return bool(vain) and bool((what[is_vain] >= 0).all()) and vain <= useful


PIECES = 8  # In a row at least: with fewer, as the four gates of a cell, one gradient of all saves little. Chosen.

CUTS = ("aten::select", "aten::slice", "aten::narrow")


class Slices(Struct, frozen=True):
    """Pieces that one line cuts out of tensors of one shape: the gradient of each is as large as the whole."""

    whole: Shape
    site: Site | None
    in_a_row: int  # In the first row of them.
    back: Work  # Of all of them.


@fact
def slices(facts: Facts) -> tuple[Slices, ...]:
    """Slices by line and shape, what takes longest backward first. Raises Missing like main_ops."""
    ops = main_ops(facts)
    rows = _rows_of_cuts(facts, ops)
    sites = sites_of(facts, np.array([row[0] for _, row in rows], dtype=np.int64))
    groups: dict[tuple[Site | None, Shape], list[IntArray]] = {}
    for (whole, row), site in zip(rows, sites, strict=True):
        groups.setdefault((site, whole), []).append(row)
    found = []
    for (site, whole), some in groups.items():
        back = work_of(facts, backward_ops(facts, ops.where(np.isin(ops.ids, np.concatenate(some)))))
        found.append(Slices(whole, site, len(some[0]), back))
    return tuple(sorted(found, key=lambda one: -one.back.longest_ns))


def _rows_of_cuts(facts: Facts, ops: HostSpans) -> list[tuple[Shape, IntArray]]:
    """Pieces that are cut out of tensors of one shape in a step, while no other op takes such a tensor."""
    step = facts.rank.spans["step"].to_numpy()[ops.ids]
    stretch, cuts = np.cumsum(np.diff(step, prepend=step[:1]) != 0), named(facts, ops.ids, *CUTS)
    rows: dict[tuple[int, Shape], list[list[int]]] = {}
    takes = zip(ops.ids.tolist(), cuts, stretch.tolist(), inputs_of(facts, ops.ids), strict=True)
    for op, is_cut, at, inputs in takes:
        for shape in {tensor.shape for some in inputs for tensor in some}:
            mine = rows.setdefault((at, shape), [[]])
            if is_cut:
                mine[-1].append(op)
            elif mine[-1]:
                mine.append([])
    return [(shape, np.array(row)) for (_, shape), mine in rows.items() for row in mine if len(row) >= PIECES]
