"""Replay: the earliest times that a graph's edges allow, for many sets of delays at once, in one pass.

Most points have a single edge into them, so they are a fixed time after another point: chains of such points are
summed up as arrays. What is left is points where edges meet: `Runs` or `Levels`.

Points are numbered 0..n-1 so that edges lead forward, edges 0..m-1. In the graph of one rank points follow each other
for long, as work on a stream does: a *run* of points, of which all other edges come from runs before, is a running
maximum. In the graph of many ranks there are many points that need nothing of each other: a *level* of them.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.replay.graph import OFF, EdgeKind, Graph, positions
from diagnose.trace.intervals import IntArray

# Kinds of edges that no edit turns off, so that their delays can be summed up.
_LEADING = (EdgeKind.HOST, EdgeKind.WORK, EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.QUEUE, EdgeKind.STEP)


class Runs(Struct, frozen=True):
    """Points run by run."""

    order: IntArray  # The points. Other fields count in this order.
    bounds: list[list[int]]  # Of each run where it begins and ends in `order`, and where its edges do in `other`.
    along: IntArray  # The edge from the point before in the run; -1 for the first. Shape (points,).
    beside: IntArray  # One edge from a run before; -1 none. Shape (points,).
    other: IntArray  # All edges that are neither, run by run ...
    into: IntArray  # ... and the positions in `order` that they lead to.

    def latest(self, total: IntArray, source: IntArray, observed_ns: IntArray) -> IntArray:
        """The latest time that an edge into each point demands, or else `observed_ns`. Shape (points, scenarios).
        `total` and `source` (in this order) are of the edges. Along a run x[k] = max(x[k - 1] + a[k], b[k]), so that
        x - cumsum(a) is the running maximum of b - cumsum(a)."""
        count, scenarios = len(self.order), total.shape[1]
        led, met = np.flatnonzero(self.along >= 0), np.flatnonzero(self.beside >= 0)
        since = np.zeros((count, scenarios), dtype=np.int64)
        since[led] = total[self.along[led]]
        np.cumsum(since, axis=0, out=since)
        beside = np.repeat(observed_ns[:, None], scenarios, axis=1)
        beside[led] = 2 * OFF
        beside[met] = total[self.beside[met]]
        beside -= since
        come_from = np.full(count, count)
        come_from[met] = source[self.beside[met]]
        other = total[self.other] - since[self.into]
        others, into = source[self.other].tolist(), self.into.tolist()
        begun = np.zeros((count + 1, scenarios), dtype=np.int64)  # points without an edge beside follow the last row
        for begin, end, first_other, end_other in self.bounds:
            rows = begun[begin:end]
            np.take(begun, come_from[begin:end], axis=0, out=rows, mode="clip")  # the other modes copy
            rows += beside[begin:end]
            for k in range(first_other, end_other):
                row = begun[into[k]]
                np.maximum(row, begun[others[k]] + other[k], out=row)
            np.maximum.accumulate(rows, axis=0, out=rows)
            rows += since[begin:end]
        return begun[:-1]


class Levels(Struct, frozen=True):
    """Points level by level: those of a level need only those of levels before."""

    order: IntArray  # The points. Other fields count in this order.
    bounds: IntArray  # Where each level begins in `order`, and where the last one ends.
    edges: IntArray  # The edges by the point that they lead to.
    first_edge: IntArray  # Where those into each point begin in `edges`, and where the last end. Shape (points + 1,).

    def latest(self, total: IntArray, source: IntArray, observed_ns: IntArray) -> IntArray:
        """As `Runs.latest`."""
        begun = np.repeat(observed_ns[:, None], total.shape[1], axis=1)
        for begin, end in pairwise(self.bounds[1:].tolist()):  # nothing leads to points of the first level
            first, stop = self.first_edge[begin], self.first_edge[end]
            some = self.edges[first:stop]
            demanded = begun[source[some]] + total[some]
            begun[begin:end] = np.maximum.reduceat(demanded, self.first_edge[begin:end] - first, axis=0)
        return begun


def runs(source: IntArray, target: IntArray, kind: npt.NDArray[np.int8], count: int) -> Runs:
    """`count` points run by run, given the edges sorted by target. A point is in the run of the one before it if that
    is the last of the run and all else comes from earlier runs."""
    sources, may_lead = source.tolist(), np.isin(kind, _LEADING).tolist()
    first_edge = np.searchsorted(target, np.arange(count + 1)).tolist()
    run, along, last = list[int](), list[int](), list[int]()
    for point in range(count):
        latest = other = best = -1
        for edge in range(first_edge[point], first_edge[point + 1]):
            came = run[sources[edge]]
            if came > latest:
                latest, other, best = came, latest, edge
            elif came > other:
                other = came
        if latest > other and may_lead[best] and last[latest] == sources[best]:
            last[latest] = point
        else:
            latest, best = len(last), -1
            last.append(point)
        run.append(latest)
        along.append(best)
    return _divided(np.array(run, dtype=np.int64), np.array(along, dtype=np.int64), target)


def _divided(run: IntArray, along: IntArray, target: IntArray) -> Runs:
    """The runs, given that of each point, the edge that leads to it along the run, and where edges lead."""
    order = np.argsort(run, kind="stable")
    run, along = run[order], along[order]
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    rest = np.ones(len(target), dtype=bool)
    rest[along[along >= 0]] = False
    rest = np.flatnonzero(rest)
    rest = rest[np.argsort(place[target[rest]], kind="stable")]
    into, first = np.unique(place[target[rest]], return_index=True)
    beside = np.full(len(run), -1, dtype=np.int64)
    beside[into] = rest[first]
    other = np.delete(rest, first)
    begin = np.searchsorted(run, np.arange(run.max(initial=-1) + 2))
    begin_other = np.searchsorted(place[target[other]], begin)
    bounds = np.stack((begin[:-1], begin[1:], begin_other[:-1], begin_other[1:]), axis=1).tolist()
    return Runs(order, bounds, along, beside, other, place[target[other]])


def levels(source: IntArray, target: IntArray, count: int) -> Levels:
    """`count` points in levels, by the longest path of edges that leads to each."""
    needed = np.bincount(target, minlength=count)
    by_source = np.argsort(source, kind="stable")
    follower, first = target[by_source], np.searchsorted(source[by_source], np.arange(count + 1))
    front, found = np.flatnonzero(needed == 0), list[IntArray]()
    while len(front):
        found.append(front)
        counts = first[front + 1] - first[front]
        followers = follower[positions(first[front], counts)]
        np.subtract.at(needed, followers, 1)
        front = np.unique(followers[needed[followers] == 0])
    order = np.concatenate([np.arange(0), *found])
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    by_target = np.argsort(place[target], kind="stable")
    return Levels(
        order=order,
        bounds=np.concatenate(([0], np.cumsum([len(one) for one in found]))),
        edges=by_target,
        first_edge=np.searchsorted(place[target][by_target], np.arange(count + 1)),
    )


MOST_CELLS = 1_000_000  # Delays held at once, edges x scenarios: 8 MB, which memory that was used before can hold.


class Structure(Struct, frozen=True):
    """A graph folded up: each point is a *join* point or lies on a chain behind one."""

    join_point: IntArray  # Position in `visited` of that from which each point's chain starts. Shape (points,).
    chained: IntArray  # The points on chains, chain by chain, without join points.
    chain_edge: IntArray  # The only edge into each of them.
    chain_start: IntArray  # Position in `chained` where the chain of each of them starts.
    visited: IntArray  # Join points in the order of `join_points`.
    met_edges: IntArray  # Edges into join points.
    join_points: Runs | Levels


def folded(graph: Graph, wide: bool = False) -> Structure:
    """The structure of a graph; it depends on no delay. `wide`: many lanes run side by side, as ranks of a job do."""
    count, target = len(graph.observed_ns), graph.edges.target
    degree = np.bincount(target, minlength=count)
    only_edge = np.full(count, -1, dtype=np.int64)
    only_edge[target[degree[target] == 1]] = np.flatnonzero(degree[target] == 1)
    single = np.flatnonzero(degree == 1)
    _, first = np.unique(graph.edges.source[only_edge[single]], return_index=True)
    on_chain = np.zeros(count, dtype=bool)
    on_chain[single[first]] = True
    up = np.where(on_chain, graph.edges.source[only_edge], np.arange(count))
    depth = on_chain.astype(np.int64)
    while (up[up] != up).any():
        depth += depth[up]
        up = up[up]
    met, visited = np.flatnonzero(~on_chain[target]), np.flatnonzero(~on_chain)
    place = np.full(count, -1, dtype=np.int64)
    place[visited] = np.arange(len(visited))
    source, into = place[up[graph.edges.source[met]]], place[target[met]]
    kind, size = graph.edges.kind[met], len(visited)
    join_points = levels(source, into, size) if wide else runs(source, into, kind, size)
    visited = visited[join_points.order]
    place[visited] = np.arange(len(visited))
    chained = np.lexsort((depth, up))
    chained = chained[on_chain[chained]]
    heads = up[chained]
    starts = np.flatnonzero(np.diff(heads, prepend=-1))
    return Structure(
        join_point=place[up],
        chained=chained,
        chain_edge=only_edge[chained],
        chain_start=np.repeat(starts, np.diff(np.append(starts, len(heads)))),
        visited=visited,
        met_edges=met,
        join_points=join_points,
    )


def times(graph: Graph, structure: Structure, delay_ns: IntArray, residual_ns: IntArray, at: IntArray) -> IntArray:
    """The time of the points `at` under each scenario. Shape (points asked, scenarios).
    `delay_ns` (edges, scenarios) and `residual_ns` (points, scenarios) replace the graph's; a point without any edge
    into it keeps its observed time. Edges that are OFF constrain nothing."""
    offset = _along_chains(structure, delay_ns, residual_ns)
    met, edges = structure.met_edges, graph.edges
    total = delay_ns[met]
    off = total == OFF
    total += offset[edges.source[met]]
    total += residual_ns[edges.target[met]]
    total[off] = OFF
    source = structure.join_point[edges.source[met]]
    begun = structure.join_points.latest(total, source, graph.observed_ns[structure.visited])
    return np.asarray(begun[structure.join_point[at]] + offset[at])


def _along_chains(structure: Structure, delay_ns: IntArray, residual_ns: IntArray) -> IntArray:
    """How long after its join point each point comes. Shape (points, scenarios)."""
    steps = delay_ns[structure.chain_edge]
    steps += residual_ns[structure.chained]
    summed = np.cumsum(steps, axis=0)
    steps -= summed  # what was summed up before each point, negative
    summed += steps[structure.chain_start]
    offset = np.zeros_like(residual_ns)
    offset[structure.chained] = summed
    return offset


def pure(graph: Graph, structure: Structure) -> IntArray:
    """Times of the step bounds by the rules of the model alone. Shape (used + 1,)."""
    delay = np.where(graph.delay_ns == OFF, OFF, graph.edges.estimate_ns)[:, None]
    none = np.zeros((len(graph.residual_ns), 1), dtype=np.int64)
    return times(graph, structure, delay, none, graph.bounds)[:, 0]
