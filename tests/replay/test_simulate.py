"""The pass over a graph: the same times as visiting point after point, whatever the graph looks like."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from diagnose.replay.graph import OFF, EdgeKind, Graph, arranged, edges, joined
from diagnose.replay.simulate import folded, times
from diagnose.trace.intervals import IntArray

SCENARIOS = 3


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to four lanes of points, and edges along lanes and between them."""
    lanes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    count = sum(lanes)
    ends = np.cumsum(lanes)
    lane = np.repeat(np.arange(len(lanes)), lanes)
    observed = np.concatenate([np.sort(draw(_numbers(size, 0, 100_000))) for size in lanes])
    along = np.setdiff1d(np.arange(1, count), ends)
    along = along[draw(_numbers(len(along), 0, 9)) > 0]
    parts = [edges(EdgeKind.STREAM, along - 1, along, draw(_numbers(len(along), 0, 500)))]
    for kind in (EdgeKind.LAUNCH, EdgeKind.HOST, EdgeKind.WAIT, EdgeKind.TRACK):
        size = draw(st.integers(0, count))
        source, target = draw(_numbers(size, 0, count - 1)), draw(_numbers(size, 0, count - 1))
        parts.append(edges(kind, source[source != target], target[source != target], draw(st.integers(0, 9_000))))
    return arranged(observed, lane, joined(parts), np.array([0, count - 1]))


def _numbers(size: int, low: int, high: int) -> st.SearchStrategy[IntArray]:
    some = st.lists(st.integers(low, high), min_size=size, max_size=size)
    return some.map(lambda numbers: np.array(numbers, dtype=np.int64))


def one_by_one(graph: Graph, delay_ns: IntArray, residual_ns: IntArray) -> IntArray:
    """The times of all points under one scenario; OFF where every edge into a point is."""
    found = np.full(len(graph.observed_ns), OFF)
    for point in range(len(found)):
        into = np.flatnonzero(graph.edges.target == point)
        some = [edge for edge in into if delay_ns[edge] != OFF and found[graph.edges.source[edge]] != OFF]
        if some:
            found[point] = max(found[graph.edges.source[edge]] + delay_ns[edge] for edge in some) + residual_ns[point]
        elif not len(into):
            found[point] = graph.observed_ns[point]
    return found


@given(graphs(), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=100, deadline=None)
def test_all_points_at_once_are_as_one_by_one(graph: Graph, seed: int, wide: bool) -> None:
    assume(len(graph.edges.source))
    random = np.random.default_rng(seed)
    delay = np.repeat(graph.delay_ns[:, None], SCENARIOS, axis=1)
    delay[:, 1:] = random.integers(0, 5_000, delay[:, 1:].shape)
    may_be_off = np.isin(graph.edges.kind, (EdgeKind.WAIT, EdgeKind.TRACK))
    delay[may_be_off, 2] = np.where(random.random(may_be_off.sum()) < 0.5, OFF, 100)
    residual = random.integers(0, 300, (len(graph.residual_ns), SCENARIOS))
    found = times(graph, folded(graph, wide), delay, residual, np.arange(len(graph.observed_ns)))
    for scenario in range(SCENARIOS):
        expected = one_by_one(graph, delay[:, scenario], residual[:, scenario])
        known = expected != OFF
        assert (found[known, scenario] == expected[known]).all()
        assert (found[~known, scenario] < OFF // 2).all()
