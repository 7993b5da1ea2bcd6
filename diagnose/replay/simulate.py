"""Replay: the earliest times that a graph's edges allow, for many sets of delays at once, in one pass.

Most points have a single edge into them, so they are a fixed time after another point: chains of such points are
summed up as arrays. Points where edges meet follow each other as well, as work does on a stream: a *run* of such
points, of which all other edges come from runs before, is found at once, as a running maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.replay.graph import OFF, EdgeKind, Graph
from diagnose.trace.intervals import IntArray

MOST_CELLS = 6_000_000
"""Delays held at once, edges x scenarios: 48 MB."""

_LEADING = (EdgeKind.HOST, EdgeKind.WORK, EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.QUEUE, EdgeKind.STEP)
"""Kinds of edges that no edit turns off, so that their delays can be summed up."""


@dataclass(frozen=True)
class Runs:
    """Meeting points, run by run. Edges are positions in `Structure.met_edges`."""

    bounds: list[list[int]]
    """Of each run where it begins and ends in `visited`, and where its edges begin and end in `other`."""
    along: IntArray
    """The edge from the point before in the run; -1 for the first. Shape (visited,)."""
    beside: IntArray
    """One edge from a run before; -1 none. Shape (visited,)."""
    other: IntArray
    """All edges that are neither, run by run ..."""
    into: IntArray
    """... and the positions in `visited` that they lead to."""


@dataclass(frozen=True)
class Structure:
    """A graph folded up: each point is a *meeting* point or lies on a chain behind one."""

    meeting: IntArray
    """Position in `visited` of the meeting point that each point's chain starts from. Shape (points,)."""
    chained: IntArray
    """The points on chains, chain by chain, without meeting points."""
    chain_edge: IntArray
    """The only edge into each of them."""
    chain_start: IntArray
    """Position in `chained` where the chain of each of them starts."""
    visited: IntArray
    """Meeting points in topological order, run by run."""
    met_edges: IntArray
    """Edges into meeting points."""
    runs: Runs


def folded(graph: Graph) -> Structure:
    """The structure of a graph; it depends on no delay."""
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
    run, along = _runs(place[up[graph.edges.source[met]]], place[target[met]], len(visited), graph.edges.kind[met])
    order = np.argsort(run, kind="stable")
    visited = visited[order]
    place[visited] = np.arange(len(visited))
    chained = np.lexsort((depth, up))
    chained = chained[on_chain[chained]]
    heads = up[chained]
    starts = np.flatnonzero(np.diff(heads, prepend=-1))
    return Structure(
        meeting=place[up],
        chained=chained,
        chain_edge=only_edge[chained],
        chain_start=np.repeat(starts, np.diff(np.append(starts, len(heads)))),
        visited=visited,
        met_edges=met,
        runs=_divided(run[order], along[order], place[target[met]]),
    )


def _runs(source: IntArray, target: IntArray, count: int, kind: npt.NDArray[np.int8]) -> tuple[IntArray, IntArray]:
    """The run of each of `count` meeting points, and the edge that leads to it along the run, or -1.

    A point is in the run of the one before it if that is the last of the run and all else comes from earlier runs.
    """
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
    return np.array(run, dtype=np.int64), np.array(along, dtype=np.int64)


def _divided(run: IntArray, along: IntArray, target: IntArray) -> Runs:
    """The edges into visited points by what they are to the points' runs; `target` of each edge."""
    rest = np.ones(len(target), dtype=bool)
    rest[along[along >= 0]] = False
    rest = np.flatnonzero(rest)
    rest = rest[np.argsort(target[rest], kind="stable")]
    into, first = np.unique(target[rest], return_index=True)
    beside = np.full(len(run), -1, dtype=np.int64)
    beside[into] = rest[first]
    other = np.delete(rest, first)
    begin = np.searchsorted(run, np.arange(run.max(initial=-1) + 2))
    begin_other = np.searchsorted(target[other], begin)
    bounds = np.stack((begin[:-1], begin[1:], begin_other[:-1], begin_other[1:]), axis=1).tolist()
    return Runs(bounds, along, beside, other, target[other])


def times(graph: Graph, structure: Structure, delay_ns: IntArray, residual_ns: IntArray, at: IntArray) -> IntArray:
    """The time of the points `at` under each scenario. Shape (points asked, scenarios).

    `delay_ns` (edges, scenarios) and `residual_ns` (points, scenarios) replace the graph's; a point without any edge
    into it keeps its observed time. Edges that are OFF constrain nothing.
    """
    offset = _along_chains(structure, delay_ns, residual_ns)
    met, edges = structure.met_edges, graph.edges
    total = delay_ns[met]
    off = total == OFF
    total += offset[edges.source[met]]
    total += residual_ns[edges.target[met]]
    total[off] = OFF
    begun = _visited(structure, total, structure.meeting[edges.source[met]], graph.observed_ns[structure.visited])
    found: IntArray = begun[structure.meeting[at]] + offset[at]
    return found


def _along_chains(structure: Structure, delay_ns: IntArray, residual_ns: IntArray) -> IntArray:
    """How long after its meeting point each point comes. Shape (points, scenarios)."""
    steps = delay_ns[structure.chain_edge]
    steps += residual_ns[structure.chained]
    summed = np.cumsum(steps, axis=0)
    steps -= summed  # what was summed up before each point, negative
    summed += steps[structure.chain_start]
    offset = np.zeros_like(residual_ns)
    offset[structure.chained] = summed
    return offset


def _visited(structure: Structure, total: IntArray, source: IntArray, observed_ns: IntArray) -> IntArray:
    """The meeting points' times: the latest that an edge into each demands. Shape (visited, scenarios).

    `total` and `source` (a position in `visited`) are of the edges into them. Along a run
    x[k] = max(x[k - 1] + a[k], b[k]), so that x - cumsum(a) is the running maximum of b - cumsum(a).
    """
    runs, shape = structure.runs, (len(structure.visited), total.shape[1])
    led, met = np.flatnonzero(runs.along >= 0), np.flatnonzero(runs.beside >= 0)
    since = np.zeros(shape, dtype=np.int64)
    since[led] = total[runs.along[led]]
    np.cumsum(since, axis=0, out=since)
    beside = np.repeat(observed_ns[:, None], shape[1], axis=1)
    beside[led] = 2 * OFF
    beside[met] = total[runs.beside[met]]
    beside -= since
    come_from = np.full(len(observed_ns), len(observed_ns))
    come_from[met] = source[runs.beside[met]]
    other = total[runs.other] - since[runs.into]
    others, into = source[runs.other].tolist(), runs.into.tolist()
    begun = np.zeros((shape[0] + 1, shape[1]), dtype=np.int64)  # points without an edge beside follow the last row
    for begin, end, first_other, end_other in runs.bounds:
        rows = begun[begin:end]
        np.take(begun, come_from[begin:end], axis=0, out=rows, mode="clip")  # the other modes copy
        rows += beside[begin:end]
        for k in range(first_other, end_other):
            row = begun[into[k]]
            np.maximum(row, begun[others[k]] + other[k], out=row)
        np.maximum.accumulate(rows, axis=0, out=rows)
        rows += since[begin:end]
    return begun


def pure(graph: Graph, structure: Structure) -> IntArray:
    """Times of the step bounds by the rules of the model alone. Shape (used + 1,)."""
    delay = np.where(graph.delay_ns == OFF, OFF, graph.edges.estimate_ns)[:, None]
    none = np.zeros((len(graph.residual_ns), 1), dtype=np.int64)
    return times(graph, structure, delay, none, graph.bounds)[:, 0]
