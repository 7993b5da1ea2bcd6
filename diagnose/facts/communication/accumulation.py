"""Are gradients that are only accumulated reduced over the ranks, once for every micro-batch?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.causes import TimeCause
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_activities, host_threads
from diagnose.facts.core.names import DDP_FORWARD
from diagnose.facts.core.spans import host_spans, launched_in, require_ops
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Activity

_REDUCES = "c10d::allreduce_"
_REDUCER = ("torch::distributed::reducer::mul_out", "torch.distributed.ddp.reducer::copy_bucket_to_grad")


@dataclass(frozen=True)
class Accumulation:
    """Reductions of gradients by DistributedDataParallel between two steps of the optimizer."""

    rounds: int
    """Backward passes with reductions for each step of the optimizer (the median); 0 if DDP reduces nothing."""
    alike: bool
    """All rounds reduce equally often: the same gradients."""
    op_ids: IntArray
    """What the reducer does on the host in all rounds but the last before each step of the optimizer."""
    ids: IntArray
    """Collectives of these rounds that are carried out on the host."""
    track: int
    """Of the main thread."""
    waits: Intervals
    """When it did nothing but wait for those."""
    ns: int
    """Time in which a collective of these rounds was running, per step."""


@fact
def accumulation(facts: Facts) -> Accumulation:
    """Rounds of reductions in the recording. Raises Missing without ops, and like collective_table."""
    require_ops(facts)
    table, rounds = collective_table(facts), _rounds(facts)
    ops = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE, named=lambda name: name in (_REDUCES, *_REDUCER))
    ops = ops.where(rounds.early(ops.start_ns))
    launched = device_work(facts).ids[launched_in(facts, ops.outermost()) >= 0]
    on_host = table.on_host & rounds.early(table.times.starts)
    early = on_host | np.isin(table.ids, launched)
    used = steps(facts)
    running = intervals.clip(intervals.union_of(table.times, early), used.start_ns, used.end_ns)
    waiting = host_activities(facts)[TimeCause.OTHER_RANK]
    return Accumulation(
        rounds=round(float(np.median(rounds.counts))) if len(rounds.counts) else 0,
        alike=rounds.alike,
        op_ids=ops.ids,
        ids=table.ids[on_host],
        track=host_threads(facts).main,
        waits=intervals.intersect(waiting, intervals.union_of(table.times, on_host)),
        ns=round_half_up(running.total, used.count),
    )


@dataclass(frozen=True)
class _Turns:
    """A turn ends with a step of the optimizer; each forward of DDP in it begins a round."""

    forward_ns: IntArray
    optimizer_ns: IntArray

    def place(self, moments: IntArray) -> tuple[IntArray, IntArray]:
        """The round and the turn that each moment is in; round -1 before the first forward of its turn."""
        turn = np.searchsorted(self.optimizer_ns, moments, side="right")
        begun = np.append(np.iinfo(np.int64).min, self.optimizer_ns)[turn]
        found = np.searchsorted(self.forward_ns, moments, side="right") - 1
        since = np.append(self.forward_ns, np.iinfo(np.int64).min)[found]
        return np.where(since >= begun, found, -1), turn


@dataclass(frozen=True)
class _Rounds:
    turns: _Turns
    last: IntArray
    """The last round of each turn that reduces; -1 if none does. Shape (turns,)."""
    counts: IntArray
    """Rounds that reduce, of each whole turn that has some."""
    alike: bool

    def early(self, moments: IntArray) -> npt.NDArray[np.bool_]:
        """Which moments are in a round after which another one of the same turn reduces again."""
        found, turn = self.turns.place(moments)
        early: npt.NDArray[np.bool_] = (found >= 0) & (found < self.last[turn])
        return early


def _rounds(facts: Facts) -> _Rounds:
    forward = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name == DDP_FORWARD).outermost()
    optimizer = host_spans(
        facts, SpanKind.ANNOTATION, named=lambda name: kinds.activity(name) is Activity.OPTIMIZER_STEP
    ).outermost()
    reduces = host_spans(facts, SpanKind.COLLECTIVE, SpanKind.OP, named=lambda name: name == _REDUCES)
    turns = _Turns(forward.start_ns, optimizer.start_ns)
    found, turn = turns.place(reduces.start_ns)
    found, turn = found[found >= 0], turn[found >= 0]
    last = np.full(len(optimizer.ids) + 1, -1)
    np.maximum.at(last, turn, found)
    whole = (turn > 0) & (turn < len(optimizer.ids))
    seen, calls = np.unique(np.stack((turn[whole], found[whole])), axis=1, return_counts=True)
    _, counts = np.unique(seen[0], return_counts=True)
    return _Rounds(turns, last, counts, alike=len(calls) > 0 and bool(calls.min() == calls.max()))
