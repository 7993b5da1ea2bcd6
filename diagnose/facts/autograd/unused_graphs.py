"""Which forward ops are recorded for a backward pass that never comes?

While gradients are enabled, an op carries the number that the next node of autograd's graph will get; the op of the
backward pass carries the number of its node. A number that no backward op has belongs to a node in vain.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import Mask
from diagnose.facts.core.names import BACKWARD
from diagnose.facts.core.shaped import calls_alike
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import host_spans, require_ops, used_step
from diagnose.facts.core.steps import steps
from diagnose.trace import nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray


@dataclass(frozen=True)
class UnusedGraphs:
    """Outermost ops of the main thread all of whose nodes no backward pass uses."""

    ids: IntArray
    calls: int
    """Per step."""
    ns: int
    """Host time in them, per step."""
    steps_seen: int
    """Used steps with at least one."""
    site: Site | None
    """The line that runs the longest of them."""
    as_in_training: bool
    """In its step each has its like, on inputs of equal shapes, of which a backward pass uses the nodes. False where
    shapes were not recorded."""


@fact
def unused_graphs(facts: Facts) -> UnusedGraphs:
    """Raises Missing without ops, and if no backward pass was recorded."""
    require_ops(facts)
    used = steps(facts)
    ops = host_spans(facts, SpanKind.OP)
    names = facts.rank.spans["name"].cat
    is_backward = np.array([str(name).startswith(BACKWARD) for name in names.categories], dtype=bool)
    backward = is_backward[names.codes.to_numpy()[ops.ids]]
    sequence = _sequence(facts, ops.ids)
    passed = np.unique(sequence[backward & (sequence >= 0)])
    if not len(passed):
        raise Missing("backward passes", "Record whole steps of the training.")
    mine = ops.where(ops.track == host_threads(facts).main)
    numbers = _sequence(facts, mine.ids)
    tops = np.flatnonzero(nesting.parents(mine.track, mine.start_ns, mine.end_ns) < 0)
    top = np.searchsorted(mine.start_ns[tops], mine.start_ns, side="right") - 1
    # Ops after the last backward pass are left out: theirs may come after the recording.
    useful = np.bincount(top, np.isin(numbers, passed) | (numbers > passed[-1]), len(tops)) > 0
    forward = np.flatnonzero(~is_backward[names.codes.to_numpy()[mine.ids[tops]]])
    number = numbers[tops[forward]]
    makes_nodes = (number >= 0) & (_next_known(np.append(number[1:], -1)[: len(number)]) > number)
    is_vain = makes_nodes & ~useful[forward]
    found = mine.where(tops[forward[is_vain]])
    counted = found.in_steps(facts)
    dur = counted.end_ns - counted.start_ns
    return UnusedGraphs(
        ids=found.ids,
        calls=round_half_up(len(counted.ids), used.count),
        ns=round_half_up(int(dur.sum()), used.count),
        steps_seen=len(np.unique(used_step(facts, counted.ids))),
        site=sites_of(facts, counted.ids[[int(dur.argmax())]])[0] if len(dur) else None,
        as_in_training=_as_in_training(facts, mine.ids[tops[forward[makes_nodes]]], is_vain[makes_nodes]),
    )


def _as_in_training(facts: Facts, ids: IntArray, is_vain: Mask) -> bool:
    what, step = calls_alike(facts, ids), used_step(facts, ids)
    is_vain, is_useful = is_vain & (step >= 0), ~is_vain & (step >= 0)
    vain, useful = (Counter(zip(step[one].tolist(), what[one].tolist(), strict=True)) for one in (is_vain, is_useful))
    return bool(vain) and bool((what[is_vain] >= 0).all()) and vain <= useful


def _sequence(facts: Facts, ids: IntArray) -> IntArray:
    return facts.rank.ops["sequence"].reindex(ids, fill_value=-1).to_numpy().astype(np.int64)


def _next_known(numbers: IntArray) -> IntArray:
    """Each number, or the next one that is known; -1 if none is."""
    position = np.where(numbers >= 0, np.arange(len(numbers)), len(numbers))
    following = np.minimum.accumulate(position[::-1])[::-1]
    found: IntArray = np.append(numbers, -1)[following]
    return found
