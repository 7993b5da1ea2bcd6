"""Replay: the earliest times that a graph's edges allow, for many sets of delays at once, in one pass.

Most points have a single edge into them, so they are a fixed time after another point: chains of such points are
summed up as arrays, and only points where edges meet are visited: one by one, or in a graph of many ranks all at once
that need nothing of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from diagnose.replay.graph import OFF, Graph
from diagnose.trace.intervals import IntArray

MOST_CELLS = 6_000_000
"""Delays held at once, edges x scenarios: 48 MB."""


@dataclass(frozen=True)
class Structure:
    """A graph folded up: each point is a *meeting* point or lies on a chain behind one."""

    meeting: IntArray
    """Position in `visited` of the meeting point that each point's chain starts from. Shape (points,)."""
    chain_order: IntArray
    """Points so that each chain is contiguous, its meeting point first. Shape (points,)."""
    chain_edge: IntArray
    """The only edge into each point of `chain_order`; -1 for the meeting point itself."""
    chain_start: IntArray
    """Position in `chain_order` of the first point of each point's chain, in `chain_order`'s order."""
    visited: IntArray
    """Meeting points in topological order."""
    first_edge: IntArray
    """Edges into visited point k are met_edges[first_edge[k]:first_edge[k + 1]]. Shape (visited + 1,)."""
    met_edges: IntArray
    """Edges into meeting points."""
    level: IntArray
    """Visited points level[k]:level[k + 1] need only those before them; empty: they are visited one by one."""


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
    visited, met, level = np.flatnonzero(~on_chain), np.flatnonzero(~on_chain[target]), np.zeros(0, dtype=np.int64)
    if wide:
        visited, level = _by_level(visited, up[graph.edges.source[met]], target[met])
    place = np.full(count, -1, dtype=np.int64)
    place[visited] = np.arange(len(visited))
    met = met[np.argsort(place[target[met]], kind="stable")]
    chain_order = np.lexsort((depth, up))
    heads = up[chain_order]
    starts = np.flatnonzero(np.concatenate(([True], heads[1:] != heads[:-1])))
    return Structure(
        meeting=place[up],
        chain_order=chain_order,
        chain_edge=np.where(on_chain[chain_order], only_edge[chain_order], -1),
        chain_start=np.repeat(starts, np.diff(np.append(starts, count))),
        visited=visited,
        first_edge=np.searchsorted(place[target[met]], np.arange(len(visited) + 1)),
        met_edges=met,
        level=level,
    )


def _by_level(points: IntArray, source: IntArray, target: IntArray) -> tuple[IntArray, IntArray]:
    """The points by how many edges lead to them one after the other at most, and where each level begins and ends."""
    needed = np.bincount(target, minlength=int(points.max(initial=-1)) + 1)
    order = np.argsort(source, kind="stable")
    follower, first = target[order], np.searchsorted(source[order], np.arange(len(needed) + 1))
    front, found = points[needed[points] == 0], list[IntArray]()
    while len(front):
        found.append(front)
        counts = first[front + 1] - first[front]
        edges = np.repeat(first[front] - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        followers = follower[edges]
        np.subtract.at(needed, followers, 1)
        front = np.unique(followers[needed[followers] == 0])
    return np.concatenate([points[:0], *found]), np.concatenate(([0], np.cumsum([len(one) for one in found])))


def times(graph: Graph, structure: Structure, delay_ns: IntArray, residual_ns: IntArray, at: IntArray) -> IntArray:
    """The time of the points `at` under each scenario. Shape (points asked, scenarios).

    `delay_ns` (edges, scenarios) and `residual_ns` (points, scenarios) replace the graph's; a point without any edge
    into it keeps its observed time. Edges that are OFF constrain nothing.
    """
    offset = _along_chains(structure, delay_ns, residual_ns)
    met, edges = structure.met_edges, graph.edges
    source, target = edges.source[met], edges.target[met]
    total = delay_ns[met] + offset[source] + residual_ns[target]
    total[delay_ns[met] == OFF] = OFF
    begun = np.full((len(structure.visited), delay_ns.shape[1]), OFF, dtype=np.int64)
    begun[np.diff(structure.first_edge) == 0] = graph.observed_ns[
        structure.visited[np.diff(structure.first_edge) == 0], None
    ]
    if len(structure.level):
        _visit_levels(begun, total, structure.meeting[source], structure)
    else:
        _visit(begun, total, structure.meeting[source].tolist(), structure.first_edge.tolist())
    found: IntArray = begun[structure.meeting[at]] + offset[at]
    return found


def _along_chains(structure: Structure, delay_ns: IntArray, residual_ns: IntArray) -> IntArray:
    """How long after its meeting point each point comes. Shape (points, scenarios)."""
    steps = np.where((structure.chain_edge >= 0)[:, None], delay_ns[structure.chain_edge], 0)
    on_chain = structure.chain_edge >= 0
    steps[on_chain] += residual_ns[structure.chain_order[on_chain]]
    summed = np.cumsum(steps, axis=0)
    offset = np.empty_like(summed)
    offset[structure.chain_order] = summed - summed[structure.chain_start]
    return offset


def _visit(begun: IntArray, total: IntArray, source: list[int], first_edge: list[int]) -> None:
    """Fill in the meeting points' times, in order: the latest that an edge into each demands."""
    add, latest = np.add, np.maximum
    rows, totals = list(begun), list(total)
    late = np.empty(begun.shape[1], dtype=np.int64)
    for k in range(len(rows)):
        row, first, end = rows[k], first_edge[k], first_edge[k + 1]
        if first < end:
            add(rows[source[first]], totals[first], out=row)
            for edge in range(first + 1, end):
                add(rows[source[edge]], totals[edge], out=late)
                latest(row, late, out=row)


def _visit_levels(begun: IntArray, total: IntArray, source: IntArray, structure: Structure) -> None:
    """The same, a level at a time; the points of the first have no edges into them."""
    first_edge, level = structure.first_edge, structure.level.tolist()
    for begin, end in pairwise(level[1:]):
        some = slice(first_edge[begin], first_edge[end])
        demanded = begun[source[some]] + total[some]
        begun[begin:end] = np.maximum.reduceat(demanded, first_edge[begin:end] - some.start, axis=0)


def pure(graph: Graph, structure: Structure) -> IntArray:
    """Times of the step bounds by the rules of the model alone. Shape (used + 1,)."""
    delay = np.where(graph.delay_ns == OFF, OFF, graph.edges.estimate_ns)[:, None]
    none = np.zeros((len(graph.residual_ns), 1), dtype=np.int64)
    return times(graph, structure, delay, none, graph.bounds)[:, 0]
