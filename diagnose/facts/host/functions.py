"""Which functions of the user's code does the step's time go to, with what their ops cost in the backward pass?

It needs no rule: it also shows what no rule knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import BackwardNodes, backward_nodes, forward_ops, nodes_of
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.names import BACKWARD
from diagnose.facts.core.source_lines import cut_at_frames, sites_at
from diagnose.facts.core.spans import HostSpans, host_spans, in_used_steps, launched_in, on_training_threads
from diagnose.facts.core.steps import host_window, steps
from diagnose.facts.core.unrecorded_work import host_recorded
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

_CALLS = (SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.RUNTIME, SpanKind.DRIVER)

MOST_OPS = 5  # That are told of a function (our choice).


@dataclass(frozen=True)
class FunctionOp:
    """All calls of an op from one function, with its backward pass."""

    name: str  # Of a node of a backward pass whose op is not known, the node's.
    ns: int  # Per step; on the device if there is one, else on the host.


@dataclass(frozen=True)
class FunctionTime:
    """Time of the step that is of a function of the user's code, and of none that it calls. All times are per step."""

    site: Site | None  # None: no frame of the user's code was open.
    python_ns: int  # Between ops on the training threads, fetching data and waiting in the operating system included.
    ops_ns: int  # In ops that it calls, and in calls of the runtime outside them; waiting inside them included.
    backward_ns: int
    """In nodes of backward passes that go through those ops; other nodes count for whoever started the pass."""
    device_ns: int | None  # Kernels, copies and memsets that all these launched, added up; None without device work.
    longest_ops: tuple[FunctionOp, ...]  # What takes the most of that, longest first, up to MOST_OPS.

    @property
    def host_ns(self) -> int:
        """On the training threads, added up."""
        return self.python_ns + self.ops_ns + self.backward_ns


@fact
def functions(facts: Facts) -> tuple[FunctionTime, ...]:
    """Functions by their time on the host or the device, whichever is longer. Raises Missing without call stacks.

    Times are of what the host did in the used steps, and of what that launched, whenever it ran on the device. So those
    on the host add up to the step as the host saw it, if one thread trains.
    """
    count, names, main = steps(facts).count, facts.rank.spans["name"].cat, host_threads(facts).main
    calls = on_training_threads(facts, host_spans(facts, *_CALLS)).outermost()
    begin, end = host_window(facts)
    unknown = host_recorded(facts).missing_in(begin, end)
    pauses = cut_at_frames(facts, intervals.subtract(intervals.gaps(calls.times, begin, end), unknown), main)
    sites: dict[Site | None, int] = {}
    in_pause = _numbered(sites, sites_at(facts, pauses.starts, np.full(pauses.size, main)))
    nodes = optional(backward_nodes, facts)
    maker = np.arange(len(calls.ids)) if nodes is None else _makers(facts, calls, nodes)
    of_call = _numbered(sites, sites_at(facts, calls.start_ns, calls.track))[maker]
    is_node = np.isin(calls.ids, nodes.spans.ids if nodes else [])
    used, lasted, on_device = in_used_steps(facts, calls.ids), calls.end_ns - calls.start_ns, _device_ns(facts, calls)

    def total(number: IntArray, ns: IntArray) -> list[int]:
        found = np.zeros(len(sites), dtype=np.int64)
        np.add.at(found, number, ns)
        return [round_half_up(one, count) for one in found.tolist()]

    python = total(in_pause, pauses.ends - pauses.starts)
    ops, backward = (total(of_call[some], lasted[some]) for some in (used & ~is_node, used & is_node))
    device = None if on_device is None else total(of_call[used], on_device[used])
    codes = names.codes.to_numpy()[calls.ids[maker]].astype(np.int64)
    longest = _longest(of_call[used], codes[used], (lasted if on_device is None else on_device)[used])
    found = [
        FunctionTime(
            site=site,
            python_ns=python[k],
            ops_ns=ops[k],
            backward_ns=backward[k],
            device_ns=None if device is None else device[k],
            longest_ops=tuple(
                FunctionOp(str(names.categories[code]).removeprefix(f"{BACKWARD}: "), round_half_up(ns, count))
                for code, ns in longest.get(k, ())
            ),
        )
        for site, k in sites.items()
        if k in longest or python[k]
    ]
    return tuple(sorted(found, key=lambda one: (-max(one.host_ns, one.device_ns or 0), repr(one.site))))


def _numbered(numbers: dict[Site | None, int], sites: list[Site | None]) -> IntArray:
    by_identity = {id(site): site for site in sites}
    known = {one: numbers.setdefault(site, len(numbers)) for one, site in by_identity.items()}
    return np.array([known[id(site)] for site in sites], dtype=np.int64)


def _longest(site: IntArray, op: IntArray, ns: IntArray) -> dict[int, list[tuple[int, int]]]:
    """The ops that take longest of each site, with what they take; none that takes nothing."""
    pairs, position = np.unique(np.stack((site, op)), axis=1, return_inverse=True)
    taken = np.zeros(pairs.shape[1], dtype=np.int64)
    np.add.at(taken, position.reshape(-1), ns)
    found: dict[int, list[tuple[int, int]]] = {int(one): [] for one in np.unique(site)}
    for k in np.argsort(-taken, kind="stable").tolist():
        if taken[k] and len(found[int(pairs[0, k])]) < MOST_OPS:
            found[int(pairs[0, k])].append((int(pairs[1, k]), int(taken[k])))
    return found


def _makers(facts: Facts, calls: HostSpans, nodes: BackwardNodes) -> IntArray:
    """For each call its own position; for a node of a backward pass that of the op that made it, where it is known."""
    found, (ops, _) = np.arange(len(calls.ids)), forward_ops(facts)
    op, node = nodes_of(facts, ops)
    made, known = _positions(calls, ops.ids[op]), _positions(calls, nodes.spans.ids[node])
    both = (made >= 0) & (known >= 0)
    found[known[both]] = made[both]
    return found


def _positions(calls: HostSpans, ids: IntArray) -> IntArray:
    at = np.minimum(np.searchsorted(calls.ids, ids), max(len(calls.ids) - 1, 0))
    return np.where(calls.ids[at] == ids, at, -1) if len(calls.ids) else np.full(len(ids), -1)


def _device_ns(facts: Facts, calls: HostSpans) -> IntArray | None:
    work = device_work(facts)
    if not len(work.ids):
        return None
    at, found = launched_in(facts, calls), np.zeros(len(calls.ids), dtype=np.int64)
    np.add.at(found, at[at >= 0], (work.end_ns - work.start_ns)[at >= 0])
    return found
