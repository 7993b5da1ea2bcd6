"""A graph gone through level by level gives the times that going through it one by one gives."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from diagnose.replay import simulate
from diagnose.replay.graph import EdgeKind, arranged, edges
from diagnose.trace.intervals import IntArray

POINTS = 24
PAIRS = st.lists(st.tuples(st.integers(0, POINTS - 1), st.integers(0, POINTS - 1), st.integers(0, 50)), max_size=60)


def longest(delay: dict[tuple[int, int], int]) -> list[int]:
    """The time of each point by the definition: the latest that any edge demands; point k starts at 10 k if none."""
    found: list[int] = []
    for point in range(POINTS):
        demanded = [found[source] + ns for (source, target), ns in delay.items() if target == point]
        found.append(max(demanded) if demanded else 10 * point)
    return found


@given(PAIRS)
def test_both_ways_give_the_latest_that_edges_demand(pairs: list[tuple[int, int, int]]) -> None:
    delay = {(source, target): ns for source, target, ns in pairs if source < target}
    assume(delay)
    rows = np.array([(*pair, ns) for pair, ns in delay.items()], dtype=np.int64).reshape(-1, 3)
    lane: IntArray = np.arange(POINTS)
    observed = 10 * lane
    graph = arranged(observed, lane, edges(EdgeKind.HOST, rows[:, 0], rows[:, 1], rows[:, 2]), lane)
    delays = np.array(
        [delay[pair] for pair in zip(graph.edges.source.tolist(), graph.edges.target.tolist(), strict=True)]
    )
    asked = np.stack([delays, 2 * delays], axis=1).reshape(-1, 2).astype(np.int64)
    none = np.zeros((POINTS, 2), dtype=np.int64)
    want = np.array([longest(delay), longest({pair: 2 * ns for pair, ns in delay.items()})]).T
    for wide in (False, True):
        structure = simulate.folded(graph, wide)
        assert simulate.times(graph, structure, asked, none, lane).tolist() == want.tolist()
