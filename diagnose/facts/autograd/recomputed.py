"""What does every layer compute again of that which has no gradient: masks, positions, scaled graphs?

Whether two ops work on the same values is not recorded. Told is that no gradient goes through them, that names, shapes
and types are the same, and that each time belongs to a layer of its own: in the backward pass, gradients of weights
become complete between one and the next. What a loop computes on each sample or moment is not taken for it: its rounds
use the same weights, whose gradients become complete after all of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, forward_ops, made_nodes, nodes_of
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import NO_SHAPES, named
from diagnose.facts.core.shaped import Work, calls_alike, inputs_of, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans, used_step
from diagnose.trace import nesting
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

LEAST_LAYERS = 3
"""Two may be two inputs of a net (our choice)."""


def _named(names: str) -> tuple[str, ...]:
    return tuple(f"aten::{name}" for name in names.split())


RANDOM = _named("rand* bernoulli* normal* uniform* multinomial exponential* dropout* native_dropout")
"""Names of ops that draw random numbers, as `named` takes them."""

_LAYERS = _named(
    "linear addmm conv* _conv* mkldnn_* embedding* scaled_dot* _scaled_dot* layer_norm batch_norm group_norm"
    " instance_norm rms_norm native_* lstm* gru* rnn*"
)
_READS = _named("item _local_scalar_dense is_nonzero nonzero detach bitwise*")
_PICKS = _named("select index index_select gather narrow slice split unbind chunk")
_MOVES = _named(
    "to _to_copy copy_ clone contiguous empty* lift_fresh alias broadcast* expand* view* reshape t transpose permute"
    " squeeze unsqueeze select slice"
)
_BYTES = ("unsigned char", "signed char", "c10::Float8")


@dataclass(frozen=True)
class Recomputed:
    """Ops that layers run one after the other, on what has no gradient."""

    ops: tuple[str, ...]
    """Of one layer, in order."""
    layers: int
    """In a forward pass, the median."""
    again: Work
    """Of all layers but the first of each forward pass."""
    first: Work
    """Of the first layer."""
    steps_seen: int
    """Used steps with such a pass."""
    site: Site | None
    """The line that runs the first of them."""


_Run = tuple[int, int]
"""Positions of the first op and of the one after the last."""


@fact
def recomputed(facts: Facts) -> tuple[Recomputed, ...]:
    """Those of the used steps, those that take longest first. Raises Missing without shapes and like backward_nodes.

    Not counted are ops that draw random numbers, are layers, read numbers, pick rows, change in place what was there
    before them, or work on bytes (weights that are stored so), and what only moves data.
    """
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    ops, passed = forward_ops(facts)
    begin, end = made_nodes(facts, ops)
    fills = (begin < 0) & np.array([not any(one) for one in inputs_of(facts, ops.ids)], dtype=bool)
    constant = (fills | ((begin >= 0) & (begin == end))) & (used_step(facts, ops.ids) >= 0)
    label = np.concatenate(([nesting.NONE], np.where(constant, passed, nesting.NONE), [nesting.NONE]))
    edges = np.flatnonzero(np.diff(label))
    what, layer = calls_alike(facts, ops.ids), np.append(_layers(facts, ops), nesting.NONE)
    found: dict[tuple[int, ...], dict[int, list[_Run]]] = {}
    for first, last in itertools.pairwise(edges.tolist()):
        if constant[first] and layer[last] >= 0 and what[first:last].min() >= 0:
            passes = found.setdefault(tuple(what[first:last].tolist()), {})
            passes.setdefault(int(passed[first]), []).append((first, last))
    made = []
    for passes in found.values():
        runs = [own for own in passes.values() if len({int(layer[last]) for _, last in own}) >= LEAST_LAYERS]
        if runs and _computes_a_constant(facts, ops.ids[slice(*runs[0][0])]):
            made.append(_recomputed(facts, ops, runs))
    return tuple(sorted(made, key=lambda one: -one.again.longest_ns))


def _layers(facts: Facts, ops: HostSpans) -> IntArray:
    """Of each op how many gradients were complete when the backward pass came to it; -1 where it never did."""
    nodes = backward_nodes(facts)
    op, node = nodes_of(facts, ops)
    complete = np.searchsorted(nodes.spans.start_ns[nodes.adds], nodes.spans.start_ns[node])
    found = np.full(len(ops.ids), len(nodes.adds), dtype=np.int64)
    np.minimum.at(found, op, complete)
    return np.where(np.isin(np.arange(len(found)), op), found, nesting.NONE)


def _computes_a_constant(facts: Facts, ids: IntArray) -> bool:
    """Whether what ops of one layer compute depends on nothing that changes from layer to layer, as far as it shows."""
    name = facts.rank.spans["name"]
    torchs_own = named(facts, ids, "aten::*").all() and not named(facts, ids, *RANDOM, *_LAYERS, *_READS).any()
    begins = not named(facts, ids[:1], *_PICKS).any() and not str(name.iloc[ids[0]]).endswith("_")
    on_bytes = any(t.dtype.startswith(_BYTES) for call in inputs_of(facts, ids) for one in call for t in one)
    return bool(torchs_own and begins and not on_bytes and not named(facts, ids, *_MOVES).all())


def _recomputed(facts: Facts, ops: HostSpans, passes: list[list[_Run]]) -> Recomputed:
    def work(runs: list[_Run]) -> Work:
        return work_of(facts, ops.ids[np.concatenate([np.arange(first, last) for first, last in runs])])

    shown = ops.ids[slice(*passes[0][0])]
    return Recomputed(
        ops=tuple(facts.rank.spans["name"].iloc[shown].astype(str)),
        layers=round_half_up(int(np.median([2 * len(own) for own in passes])), 2),
        again=work([run for own in passes for run in own[1:]]),
        first=work([own[0] for own in passes]),
        steps_seen=len(np.unique(used_step(facts, ops.ids[[own[0][0] for own in passes]]))),
        site=sites_of(facts, shown[:1])[0],
    )
