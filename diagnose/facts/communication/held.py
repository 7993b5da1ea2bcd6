"""Where is a rank held up by collectives? On a device while nothing else runs, on the host while a thread stands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.facts.core.base import Facts
from diagnose.facts.core.breakdown import device_time
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.spans import host_spans
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.job import RECV, SEND

LEAST_WAIT_NS = 60_000
"""A thread that stands for less is not held up by a collective: it dispatches (chosen on recordings of gloo)."""

LATE_NS, EARLY_NS = 4_500_000, 5_000_000
"""A collective of gloo is recorded to end up to 2.1 ms (95 %) after the thread that waited for it goes on; and that
thread goes on, on a busy machine, some ms after it is over (two processes on one core). Only who stands for as long
can be taken to have waited for something so early."""

INEXACT = 0.15
"""Share of the time for which a thread stands while a collective runs, by which their ends may differ besides: where
ranks share cores, a thread that had stood for 59 ms went on 8 ms later (our choice)."""

EARLY_TRANSFER_NS = 400_000
"""EARLY_NS of send and recv, whose spans end on the thread that waits."""


@dataclass(frozen=True)
class Held:
    """Where the rank is held up, in order of time. Arrays of shape (waits,)."""

    from_ns: IntArray
    until_ns: IntArray
    call: IntArray


def held_on_device(facts: Facts, ids: IntArray, begin: IntArray, end: IntArray) -> Held:
    """Exposed communication in which a collective ends: nothing else ran, until the last one of these was over.

    Where none ends, one runs beside compute, and the device is between two kernels.
    """
    pieces = device_time(facts).exposed_communication
    order = np.argsort(end, kind="stable")
    at = np.searchsorted(end[order], pieces.ends, side="right") - 1
    call = np.append(order, nesting.NONE)[at]
    known = (call >= 0) & (end[call] > pieces.starts) & (begin[call] < pieces.ends)
    at, call = np.flatnonzero(known), call[known]
    first, count = _batch_of(ids)
    whole = np.repeat(at, count[call])  # Who waits for one of a batch waits for all of it.
    within = np.arange(len(whole)) - np.repeat(np.cumsum(count[call]) - count[call], count[call])
    return Held(pieces.starts[whole], pieces.ends[whole], np.repeat(first[call], count[call]) + within)


def _batch_of(ids: IntArray) -> tuple[IntArray, IntArray]:
    """Of each call the first call of its batch, and how many it has. Calls of one are neighbours."""
    new = np.concatenate(([True], ids[1:] != ids[:-1]))[: len(ids)]
    batch, first = np.cumsum(new) - 1, np.flatnonzero(new)
    return first[batch], np.diff(np.append(first, len(ids)))[batch]


def held_on_host(facts: Facts, operation: npt.NDArray[np.object_], begin: IntArray, end: IntArray) -> Held:
    """Where the main thread stands until a collective is over."""
    stands, none = standing(facts), np.zeros(0, dtype=np.int64)
    if not len(end) or not stands.size:
        return Held(none, none, none)
    early = np.where(np.isin(operation, (SEND, RECV)), EARLY_TRANSFER_NS, EARLY_NS)
    stood = stands.ends - stands.starts
    order = np.argsort(end, kind="stable")
    middle = np.searchsorted(end[order], stands.ends)
    best, least = np.full(stands.size, -1), np.full(stands.size, np.iinfo(np.int64).max)
    for away in range(-8, 8):
        at = middle + away
        call = order[np.clip(at, 0, len(order) - 1)]
        after = stands.ends - end[call]
        together = np.minimum(stands.ends, end[call]) - np.maximum(stands.starts, begin[call])
        inexact = np.maximum(INEXACT * together, 0).astype(np.int64)
        fits = (
            (at >= 0)
            & (at < len(order))
            & (after <= np.maximum(LATE_NS, inexact))
            & (-after <= np.minimum(early[call], np.maximum(stood, EARLY_NS // 2)))
        )
        fits &= (begin[call] < stands.ends - LEAST_WAIT_NS // 2) & (end[call] > stands.starts)
        # A send is seen to be over when somebody asks, mostly just before or after the recv that was waited for.
        distance = np.maximum(np.abs(after) - inexact, 0) + (operation[call] == SEND) * LATE_NS
        better = fits & (distance < least)
        best[better], least[better] = call[better], distance[better]
    # Before or after it stood for that, it may have done something else: it is held up once.
    place = np.flatnonzero(best >= 0)
    place = place[np.lexsort((-stood[place], least[place], best[place]))]
    place = np.sort(place[np.concatenate(([True], np.diff(best[place]) != 0))[: len(place)]])
    call = best[place]
    begins = np.maximum(stands.starts[place], begin[call] + 1)
    return Held(begins, np.maximum(begins, np.minimum(stands.ends[place], end[call])), call)


_ENGINE = "autograd::engine::evaluate_function"
_WAITING = ("c10d::", "_c10d", "c10d_functional::")


def standing(facts: Facts) -> Intervals:
    """Stretches in which the main thread is in no op of its own: in none, or in one that asks for collectives."""
    main = host_threads(facts).main
    ops = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)
    ops = ops.where(ops.track == main)
    names = facts.rank.spans["name"].cat
    labels = [str(name) for name in names.categories]
    codes = names.codes.to_numpy()[ops.ids]
    async_span = np.array([label.startswith(("gloo:", "mpi:")) for label in labels], dtype=bool)[codes]
    ops, codes = ops.where(~async_span), codes[~async_span]
    if not len(ops.ids):
        return intervals.EMPTY
    posting = np.array([label.startswith(("c10d::send", "c10d::recv")) for label in labels], dtype=bool)[codes]
    asking = np.array([label.startswith(_WAITING) for label in labels], dtype=bool)[codes] & ~posting
    own = ~asking & ~np.array([label.startswith(_ENGINE) for label in labels], dtype=bool)[codes]
    up, around = ops.parents, np.flatnonzero(asking)
    while len(around := np.unique(up[around][up[around] >= 0])):
        own[around] = False
    used = steps(facts)
    moments = intervals.distinct(np.concatenate((ops.start_ns, ops.end_ns, [used.start_ns, used.end_ns])))
    last = np.full(len(moments), main)
    at = nesting.innermost_at(moments, last, ops.track, ops.start_ns, ops.end_ns)
    busy = (at >= 0) & own[at]
    free = ~busy[:-1]
    pieces = intervals.union(Intervals(moments[:-1][free], moments[1:][free]))
    long = pieces.ends - pieces.starts >= LEAST_WAIT_NS
    return Intervals(pieces.starts[long], pieces.ends[long])
