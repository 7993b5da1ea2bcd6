"""Replay: the earliest times that a graph's edges allow, for many sets of delays at once, in one pass.

Most points have a single edge into them, so they are a fixed time after another point: chains of such points are
summed up as arrays. What is left is points where edges meet, see `replay.join_points`.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.replay.graph import OFF, Graph
from diagnose.replay.join_points import Levels, Runs, levels, runs
from diagnose.trace.intervals import IntArray

MOST_CELLS = 1_000_000  # Delays held at once, edges x scenarios: 8 MB, which memory that was used before can hold.


class Structure(Struct, frozen=True):
    """A graph folded up: each point is a *join* point or lies on a chain behind one."""

    join_point: IntArray
    """Position in `visited` of the join point that each point's chain starts from. Shape (points,)."""
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
    join_points = (
        levels(source, into, len(visited)) if wide else runs(source, into, graph.edges.kind[met], len(visited))
    )
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
    into it keeps its observed time. Edges that are OFF constrain nothing.
    """
    offset = _along_chains(structure, delay_ns, residual_ns)
    met, edges = structure.met_edges, graph.edges
    total = delay_ns[met]
    off = total == OFF
    total += offset[edges.source[met]]
    total += residual_ns[edges.target[met]]
    total[off] = OFF
    source = structure.join_point[edges.source[met]]
    begun = structure.join_points.latest(total, source, graph.observed_ns[structure.visited])
    found: IntArray = begun[structure.join_point[at]] + offset[at]
    return found


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
