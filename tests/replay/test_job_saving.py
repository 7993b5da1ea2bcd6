"""What fixes of collectives save of a job's step, on its devices and on the host."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.peers import peers
from diagnose.facts.core.base import Facts
from diagnose.replay import simulate
from diagnose.replay.edits import Detach, Edit, Remove, Shorten
from diagnose.replay.graph import EdgeKind, arranged, edges
from diagnose.replay.job_saving import JobReplay
from diagnose.synthetic.reading import facts_of
from diagnose.trace.intervals import IntArray

DEVICE = """
    4 steps of 100
    rank {rank} of 2
    cpu     c10d::_allgather_base_ 0.2-0.4 | aten::mm 0.5-1 | wait 1.1-1.2 | aten::mm 1.3-2
    cpu     c10d::allreduce_ 2.2-2.4 | wait 2.5-2.6 | optimizer 3-4 | device_sync 5-99.9
    gpu     sgemm 1-31 @0.6 | sgemm 41-71 @1.4 | adam 91-99 @3.5
    gpu 20  allgather 1-41 @0.3 operation=_allgather_base | allreduce 71-91 @2.3 operation=allreduce
"""
"""A gather beside which 30 ms are computed, 30 ms that need it, and a reduction of 20 ms that needs those."""
QUEUE = """
    4 steps of 100
    rank {rank} of 2
    cpu     c10d::_allgather_base_ 0.2-0.4 | c10d::allreduce_ 0.5-0.7 | c10d::_reduce_scatter_base_ 0.8-1
    cpu     wait 1.1-1.2 | aten::mm 1.3-2 | optimizer 3-4 | device_sync 5-99.9
    gpu     sgemm 71-91 @1.4 | adam 91-99 @3.5
    gpu 20  allgather 1-41 @0.3 operation=_allgather_base | allreduce 41-51 @0.6 operation=allreduce
    gpu 20  reduce_scatter 51-71 @0.9 operation=_reduce_scatter_base
"""
"""Three that follow each other on their stream, and compute that waits for the last."""
LATE = """
    4 steps of 83
    rank {rank} of 2
    cpu     c10d::_allgather_base_ {late}.2-{late}.4 | aten::mm {late}.5-{late}.6 | sync 23-82.4
    cpu     c10d::_allgather_base_ {late}.7-{late}.8 | aten::mm {late}.85-{late}.9
    gpu     sgemm 21.4-51.4 @{late}.55 | sgemm 52.3-82.3 @{late}.87
    gpu 20  allgather {late}.5-21.4 @{late}.3 operation=_allgather_base
    gpu 20  allgather 51.4-52.3 @{late}.75 operation=_allgather_base
"""
"""Two gathers of 0.9 ms, each before 30 ms that need it. The host begins 20 ms later on the first rank."""


def ranks(text: str) -> Facts:
    return facts_of("---".join(text.format(rank=rank) for rank in (0, 1)))


def saved_ms(facts: Facts, *edits: Edit) -> float:
    (saving,) = JobReplay(facts, peers(facts).job).savings([edits])
    return saving.likely_ns / 1e6


def calls(facts: Facts, operation: str) -> IntArray:
    table = collective_table(facts)
    return table.ids[np.char.startswith(table.operation.astype(str), operation)]


def test_a_collective_that_is_removed_is_so_on_all_ranks() -> None:
    facts = ranks(DEVICE)
    assert saved_ms(facts, Remove(calls(facts, "allreduce"))) == pytest.approx(20, abs=0.1)
    queue = ranks(QUEUE)  # What follows it in its queue still follows what came before.
    assert saved_ms(queue, Remove(calls(queue, "allreduce"))) == pytest.approx(10, abs=0.1)


def test_work_does_not_last_longer_because_what_it_waited_for_is_gone() -> None:
    """The gather's end, from which the second 30 ms were counted, comes before the end of the first 30 then."""
    facts = ranks(DEVICE)
    assert saved_ms(facts, Remove(calls(facts, "_allgather"))) == pytest.approx(10, abs=0.1)


def test_a_collective_that_is_shortened_takes_less_on_all_ranks() -> None:
    facts = ranks(DEVICE)
    assert saved_ms(facts, Shorten(calls(facts, "allreduce"), 0.25)) == pytest.approx(15, abs=0.1)
    assert saved_ms(facts, Shorten(calls(facts, "_allgather"), 0.5)) == pytest.approx(10, abs=0.1)


def test_a_host_that_no_longer_waits_is_hidden_and_what_needs_a_collective_is_not() -> None:
    facts = facts_of("---".join(LATE.format(rank=rank, late=late) for rank, late in ((0, 20), (1, 0))))
    waits = np.flatnonzero(facts.rank.spans["name"].astype(str) == "cudaStreamSynchronize")
    assert saved_ms(facts, Detach(waits)) == pytest.approx(83 - 61.8, abs=0.3)


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
