"""The chain of edges that a recording's end waits for, walked back from it: the critical path of the graph."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, once
from diagnose.replay.build import recorded_graph
from diagnose.replay.graph import OFF, Graph
from diagnose.trace.intervals import IntArray


class Chain(Struct, frozen=True):
    """Stretches of time without gaps from the first bound of the used steps to the last. Arrays of shape (stretches,).

    A stretch is the time that an edge leads over. Clocks of host and device differ a little, so that one may be empty.
    """

    edge: IntArray  # Position in `Graph.edges`; -1 for time before a point that depends on nothing.
    start_ns: IntArray
    delay_end_ns: IntArray  # Up to here it is the edge's delay; the rest, to `end_ns`, is residual.
    end_ns: IntArray


def chain(graph: Graph) -> Chain:
    """The chain: at every point the edge that demands the latest time is the one that was waited for.

    Delays are no longer than observed: of edges that demand the same it is the one whose full delay reaches farthest.
    """
    begin = int(graph.observed_ns[graph.bounds[0]])
    some, observed = graph.edges, graph.observed_ns
    binding = _binding(graph)
    before = np.where((binding >= 0) & (observed > begin), some.source[binding], -1).tolist()
    points, point = list[int](), int(graph.bounds[-1])
    while (up := before[point]) >= 0:
        points.append(point)
        point = up
    edge = binding[points[::-1]]
    reached = np.minimum.accumulate(observed[[*points, point]])[::-1]
    start, stop = np.maximum(reached[:-1], begin), reached[1:]
    explained = np.clip(observed[some.source[edge]] + graph.delay_ns[edge], start, stop)
    if len(reached) and reached[0] > begin:  # Nothing is known of what came before.
        edge, explained = np.append(-1, edge), np.append(begin, explained)
        start, stop = np.append(begin, start), np.append(reached[0], stop)
    return Chain(edge, start, explained, stop)


@once
def recorded_chain(facts: Facts) -> Chain:
    """The chain of all that was recorded. Raises Missing like `recorded_graph`."""
    return chain(recorded_graph(facts))


def _binding(graph: Graph) -> IntArray:
    """Of each point the edge into it that was waited for, or -1. Shape (points,)."""
    some = graph.edges
    found = np.full(len(graph.observed_ns), -1, dtype=np.int64)
    if not len(some.target):
        return found
    begun, on = graph.observed_ns[some.source], graph.delay_ns != OFF
    first = np.flatnonzero(np.diff(some.target, prepend=-1))  # Edges are sorted by target.
    size = np.diff(first, append=len(some.target))
    latest = np.where(on, begun + graph.delay_ns, OFF)
    last = on & (latest == np.repeat(np.maximum.reduceat(latest, first), size))
    farthest = np.where(last, begun + some.estimate_ns, OFF)
    chosen = last & (farthest == np.repeat(np.maximum.reduceat(farthest, first), size))
    found[some.target[first]] = np.maximum.reduceat(np.where(chosen, np.arange(len(chosen)), -1), first)
    return found


def unexplained(found: Chain) -> int:
    """Time on the chain that only residuals explain, in ns."""
    return int((found.end_ns - found.delay_end_ns)[found.edge >= 0].sum())
