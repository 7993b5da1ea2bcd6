"""Ranks joined where they communicate, so that a change on one rank moves the others.

Each rank is a chain of its own stretches between calls. A collective of all begins on each rank when that rank has
come, and is over on all some transfer time after the last one has; a transfer needs its two ranks. Who waits for a
call goes on when it is over. All of that are edges of one graph (`replay.graph`), so that a replay is one pass.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.communication.peers import peers
from diagnose.facts.core.base import Facts, once
from diagnose.replay import graph as graphs
from diagnose.replay import simulate
from diagnose.replay.graph import OFF, EdgeKind, Edges, Graph, edges
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import Calls, CollectiveSequence, Job

Shares = npt.NDArray[np.float64]

MOST_EARLY_NS = 20_000_000
"""A rank may be recorded to leave a collective so much before the last one came: spans of gloo end some ms early where
a machine is busy, and clocks differ."""
WIDE = 8  # Ranks from which on it is quicker to go through a job's graph level by level (measured).


class Change(Struct, frozen=True):
    """What a job's ranks do instead of what they did."""

    own_ns: tuple[IntArray, ...]  # Own time of each rank; shapes as `Joined.own_edge`.
    keep: Shares  # Of each call of each rank in turn what is left of its transfer; NaN: not asked for. Shape (calls,).


class Joined(Struct, frozen=True):
    """The graph of a job, and where the own time and the calls of ranks stand in it."""

    graph: Graph
    """Edges of a rank have its number in `lanes` as track, and as owner an event (HOST) or a call.

    Those into and out of a join_point have no track, and its position in `Job.join_points` as owner.
    """
    lanes: IntArray  # Shape (ranks,).
    structure: simulate.Structure
    own_edge: tuple[IntArray, ...]  # By rank, that of each event's own time, and of what follows. Shape (events + 1,).
    first_call: IntArray  # Where the calls of each rank begin, among those of all. Shape (ranks + 1,).
    transfer_edge: IntArray  # Transfers: of calls that met from when the last rank came. Shape (transfers,).
    transferred: IntArray  # The call of each. Shape (transfers,).
    sync_edge: IntArray  # Where ranks come to join points, and where they wait for calls. Shape (syncs,).
    synced: IntArray  # The call of each. Shape (syncs,).
    pass_edge: IntArray  # Without a call, what follows in its queue still follows what came before. Shape (passes,).
    passed: IntArray  # The call of each. Shape (passes,).
    starts: IntArray  # Point where each rank begins.
    ends: IntArray
    steps: int

    def step_ns(self, changes: Sequence[Change]) -> IntArray:
        """The job's mean step: from when the last rank begins to when the last one ends. Shape (changes,)."""
        delay = np.repeat(self.graph.delay_ns[:, None], len(changes), axis=1)
        residual = np.repeat(self.graph.residual_ns[:, None], len(changes), axis=1)
        for column, change in enumerate(changes):
            for edge, own in zip(self.own_edge, change.own_ns, strict=True):
                delay[edge, column] = own
            gone = np.isnan(change.keep)
            transfer_ns = delay[self.transfer_edge, column]
            keep = np.where(gone, 0.0, change.keep)[self.transferred]
            left_ns = np.rint(transfer_ns * keep).astype(np.int64)
            delay[self.transfer_edge, column] = np.where(transfer_ns > 0, left_ns, transfer_ns)
            free = self.sync_edge[gone[self.synced]]
            delay[free, column] = OFF
            delay[self.pass_edge[gone[self.passed]], column] = 0
            residual[self.graph.edges.target[free], column] = 0
        ends = simulate.times(self.graph, self.structure, delay, residual, self.ends).max(axis=0)
        begin = self.graph.observed_ns[self.starts].max()
        return np.asarray(np.rint((ends - begin) / self.steps).astype(np.int64))

    @property
    def recorded(self) -> Change:
        """The change that changes nothing: own times and calls as recorded."""
        return Change(tuple(self.graph.delay_ns[edge] for edge in self.own_edge), np.ones(self.first_call[-1]))


class _Rank(Struct, frozen=True):
    """The points of one rank, and when they were: its begin, its events and its end; then arrival and end of calls."""

    sequence: CollectiveSequence
    event: IntArray
    arrive: IntArray
    over: IntArray
    arrived_ns: IntArray
    over_ns: IntArray
    alone: npt.NDArray[np.bool_]  # Calls that wait for nobody, or for nobody whose recording is known.


@once
def joined_ranks(facts: Facts) -> Joined:
    """The job that a rank is of. Raises Missing if the other ranks are not known."""
    return join(peers(facts).job)


def join(job: Job) -> Joined:
    """The graph of a job's ranks."""
    ranks, count = _ranks(job)
    join_points = count + np.arange(len(job.join_points))
    parts = [edge for rank in ranks for edge in _chain(rank)]
    observed, lane = np.zeros(count + len(join_points), dtype=np.int64), np.arange(count + len(join_points))
    for one in ranks:
        bounds_ns = one.sequence.bounds_ns
        observed[one.event] = np.concatenate((bounds_ns[:1], one.sequence.lane.until_ns, bounds_ns[-1:]))
        observed[one.arrive], observed[one.over] = one.arrived_ns, one.over_ns
        lane[one.event] = one.event[0]
    observed[join_points] = [met.last_ns for met in job.join_points]
    parts += _met(job, ranks, join_points, observed)
    bounds = np.array([[rank.event[0], rank.event[-1]] for rank in ranks]).T.ravel()
    over, arrive = (np.concatenate([getattr(rank, name) for rank in ranks]) for name in ("over", "arrive"))
    asked = np.concatenate((over, arrive))
    graph = graphs.arranged(observed, lane, graphs.joined(parts), bounds, asked, jitter_ns=MOST_EARLY_NS)
    call_of = np.full(len(observed), -1)
    call_of[graph.marks] = np.tile(np.arange(len(over)), 2)
    transfers = np.flatnonzero(graph.edges.kind == EdgeKind.WORK)
    syncs = np.flatnonzero(np.isin(graph.edges.kind, (EdgeKind.WAIT, EdgeKind.EVENT)))
    passes = np.flatnonzero(graph.edges.kind == EdgeKind.DELIVERY)
    return Joined(
        graph=graph,
        lanes=np.array([rank.event[0] for rank in ranks]),
        structure=simulate.folded(graph, wide=len(ranks) >= WIDE),
        own_edge=_own_edges(graph, ranks),
        first_call=np.concatenate(([0], np.cumsum([len(rank.over) for rank in ranks]))),
        transfer_edge=transfers,
        transferred=call_of[graph.edges.target[transfers]],
        sync_edge=syncs,
        synced=call_of[graph.edges.source[syncs]],
        pass_edge=passes,
        passed=call_of[graph.edges.source[passes]],
        starts=graph.bounds[: len(ranks)],
        ends=graph.bounds[len(ranks) :],
        steps=len(job.sequences[0].numbers),
    )


def _ranks(job: Job) -> tuple[list[_Rank], int]:
    """Each rank with the numbers of its points in the joint graph, and how many points there are in all."""
    found, count = list[_Rank](), 0
    for sequence in job.sequences:
        events, calls = len(sequence.lane.call) + 2, len(sequence.calls.ids)
        at = np.arange(count, count + events + 2 * calls)
        event, arrive, over = np.split(at, [events, events + calls])
        begin, end = sequence.calls.begin_ns.copy(), sequence.calls.end_ns.copy()
        found.append(_Rank(sequence, event, arrive, over, begin, end, np.ones(calls, dtype=bool)))
        count += len(at)
    for met in job.join_points:
        for at, call, ended in zip(met.ranks.tolist(), met.calls.tolist(), met.ended_ns.tolist(), strict=True):
            rank = found[at]
            rank.over_ns[call] = ended
            # A send of NCCL may be over before it is received; one of gloo never is.
            rank.alone[call] = met.transfer and not rank.sequence.on_cpu and ended < met.last_ns
    for rank in found:
        lane, waits = rank.sequence.lane, np.flatnonzero(rank.sequence.lane.waits)
        call = lane.call[waits]
        np.minimum.at(rank.over_ns, call, np.maximum(lane.until_ns[waits], rank.arrived_ns[call]))
    return found, count


def _met(job: Job, ranks: list[_Rank], points: IntArray, observed: IntArray) -> list[Edges]:
    """Edges of joint calls: each rank's arrival to the join point, and from both to the end of its call."""
    if not len(points):
        return []
    first_row = np.concatenate(([0], np.cumsum([len(rank.arrive) for rank in ranks])))
    row = np.concatenate([first_row[met.ranks] + met.calls for met in job.join_points])
    point_number = np.repeat(np.arange(len(points)), [len(met.ranks) for met in job.join_points])
    arrive, over, alone = (
        np.concatenate([getattr(rank, name) for rank in ranks])[row] for name in ("arrive", "over", "alone")
    )
    joint, point = ~alone, points[point_number]
    # The transfer is negative where an end was recorded too early.
    transfer = observed[over] - observed[point]
    return [
        edges(EdgeKind.EVENT, arrive, point, 0, point_number),
        edges(EdgeKind.WORK, point[joint], over[joint], transfer[joint], point_number[joint]),
        edges(EdgeKind.DELIVERY, arrive[joint], over[joint]),
    ]


def _chain(one: _Rank) -> list[Edges]:
    """The edges of a rank by itself: own time, where it asks, what it waits for, and calls that follow each other."""
    lane, over = one.sequence.lane, one.over_ns
    for_nothing = lane.waits & (over[lane.call] <= lane.from_ns) if len(over) else lane.waits  # It is over already.
    held = np.where(for_nothing, lane.until_ns - lane.from_ns, 0)
    reached = lane.until_ns[-1] if len(lane.until_ns) else one.sequence.bounds_ns[0]
    own = np.append(lane.own_ns + held, max(int(one.sequence.bounds_ns[-1] - reached), 0))
    before, behind = _in_queue(one.sequence.calls)
    alone, lane_of = np.flatnonzero(one.alone), int(one.event[0])
    asks, waits = np.flatnonzero(~lane.waits & (lane.call >= 0)), np.flatnonzero(lane.waits)
    asked, awaited = lane.call[asks], lane.call[waits]
    free = np.full(len(over), np.iinfo(np.int64).min)
    np.maximum.at(free, behind, over[before])
    issued = np.maximum(one.arrived_ns[asked] - np.maximum(lane.until_ns[asks], free[asked]), 0)
    returns = np.where(for_nothing[waits], 0, lane.until_ns[waits] - over[awaited])
    return [
        edges(EdgeKind.HOST, one.event[:-1], one.event[1:], own, np.arange(len(own)), lane_of),
        edges(EdgeKind.LAUNCH, one.event[1 + asks], one.arrive[asked], issued, asked, lane_of),
        edges(EdgeKind.STREAM, one.over[before], one.arrive[behind], 0, behind, lane_of),
        edges(EdgeKind.WORK, one.arrive[alone], one.over[alone], over[alone] - one.arrived_ns[alone], alone, lane_of),
        edges(EdgeKind.WAIT, one.over[awaited], one.event[1 + waits], returns, awaited, lane_of),
    ]


def _in_queue(calls: Calls) -> tuple[IntArray, IntArray]:
    """(call before, call behind it) on a stream or thread, and (call waited for, waiting call). Shapes (pairs,).

    Each call is behind all that the kernel before carries: those of one kernel run at once.
    """
    queue, ids, elsewhere = calls.queue, calls.ids, np.flatnonzero(calls.after >= 0)
    order = np.argsort(queue, kind="stable")
    line, kernel = queue[order], ids[order]
    new = np.concatenate(([True], (line[1:] != line[:-1]) | (kernel[1:] != kernel[:-1])))[: len(order)]
    batch, first = np.cumsum(new) - 1, np.flatnonzero(new)
    count = np.diff(np.append(first, len(order)))
    follows = np.concatenate(([False], line[first][1:] == line[first][:-1]))[: len(first)]
    behind = np.flatnonzero(follows[batch])
    last = batch[behind] - 1
    before, after = order[graphs.positions(first[last], count[last])], order[np.repeat(behind, count[last])]
    return np.append(before, calls.after[elsewhere]), np.append(after, elsewhere)


def _own_edges(graph: Graph, ranks: list[_Rank]) -> tuple[IntArray, ...]:
    """For each rank the edges between its own events, in order."""
    all_edges = graph.edges
    own = np.flatnonzero(all_edges.kind == EdgeKind.HOST)
    own = own[np.lexsort((all_edges.owner[own], all_edges.track[own]))]
    counts = np.array([len(rank.event) - 1 for rank in ranks])
    if len(own) != counts.sum():
        raise ValueError("a rank's events are not in order")
    return tuple(np.split(own, np.cumsum(counts)[:-1]))


class CallsOfAll:
    """The calls of all ranks of a job in turn, and those that correspond to the calls of one rank.
    A rank that asks for the same in the same order runs the same code: its calls change like those of that rank. A
    collective changes on all ranks that meet in it."""

    def __init__(self, job: Job, fixed: int) -> None:
        """`fixed`: position of the rank whose calls are changed."""
        first = np.concatenate(([0], np.cumsum([len(sequence.calls.ids) for sequence in job.sequences])))
        own = job.sequences[fixed]
        self.asked_ids = own.calls.ids[_asked(own)]  # Spans, in the order in which that rank asks.
        self._alike = [first[at] + _asked(one) for at, one in enumerate(job.sequences) if same_calls(one, own)]
        self._count = int(first[-1])
        self._member = np.concatenate([first[met.ranks] + met.calls for met in job.join_points] or [first[:0]])
        self._join_point = np.repeat(np.arange(len(job.join_points)), [len(met.ranks) for met in job.join_points])

    def left(self, of_asked: Shares) -> Shares:
        """Of each call of each rank the share that is left of it, from those of `asked_ids`; NaN: not asked for."""
        left = np.ones(self._count)
        for calls in self._alike:
            left[calls] = of_asked
        changed = left[self._member] != 1.0
        met, share = self._join_point[changed], left[self._member[changed]]
        count = np.bincount(met, minlength=int(self._join_point.max(initial=-1)) + 1)
        mean = np.bincount(met, weights=share, minlength=len(count)) / np.maximum(count, 1)
        left[self._member] = np.where(count > 0, mean, 1.0)[self._join_point]
        return left


def same_calls(one: CollectiveSequence, other: CollectiveSequence) -> bool:
    """Whether both ask for the same calls in the same order."""
    return _operations(one) == _operations(other)


def _operations(one: CollectiveSequence) -> list[str]:
    call = one.lane.call[~one.lane.waits]
    return ["" if k < 0 else one.operations[one.calls.operation[k]] for k in call.tolist()]


def _asked(one: CollectiveSequence) -> IntArray:
    return np.asarray(one.lane.call[~one.lane.waits & (one.lane.call >= 0)])
