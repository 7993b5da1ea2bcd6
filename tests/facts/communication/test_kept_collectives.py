"""What is kept of the collectives of very many ranks, and what is said of the rest."""

from dataclasses import replace

import numpy as np

from diagnose.facts.communication import peers as keeping
from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.peers import KeptSequence, chosen, compared, kept
from diagnose.synthetic.reading import facts_of_ranks
from diagnose.trace.job import CollectiveSequence, ProcessGroup

RANK = """
4 steps of 100
rank {rank} of 4
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
gpu     sgemm 0.1-{computed} @0.05
gpu 20  allreduce {computed}-90 @0.3 group_size=4
"""
COMPUTED = (60, 80, 70, 65)
MS = 1_000_000


def sequences() -> list[CollectiveSequence]:
    """Four ranks that compute until these ms of each of 3 steps, and leave one all-reduce at 90."""
    synthetic = "---\n".join(RANK.format(rank=rank, computed=until) for rank, until in enumerate(COMPUTED))
    return [collective_sequence(facts) for facts in facts_of_ranks(synthetic)]


def of(calls: int, held_share: float, near: bool = False) -> KeptSequence:
    return KeptSequence(b"", calls, recorded_steps=1, steps=1, held_share=held_share, near=near)


def all_kept(ranks: int) -> dict[int, KeptSequence]:
    return {rank: kept(one, ranks) for rank, one in enumerate(sequences())}


def test_few_ranks_are_kept_whole() -> None:
    found, notes = compared(all_kept(4))
    assert notes == []
    assert found is not None
    assert found.awaited == 1
    assert found.waited_ns.tolist() == [60 * MS, 0, 30 * MS, 45 * MS]
    assert [one.calls for one in all_kept(4).values()] == [3, 3, 3, 3]


def test_fewer_steps_are_kept_of_very_many_ranks() -> None:
    some = all_kept(keeping.MOST_CALLS_OF_JOB // 2)  # 2 collectives each
    assert {(one.calls, one.steps, one.recorded_steps) for one in some.values()} == {(2, 2, 3)}
    found, notes = compared(some)
    assert found is not None
    assert found.waited_ns.tolist() == [40 * MS, 0, 20 * MS, 30 * MS]
    assert [note.what for note in notes] == [
        "Ranks are compared in the first 2 of 3 recorded steps: there are too many collectives for all."
    ]


def test_a_step_is_kept_whole_however_many_ranks_there_are() -> None:
    assert {one.calls for one in all_kept(2 * keeping.MOST_CALLS_OF_JOB).values()} == {1}


def test_where_not_all_ranks_fit_the_first_one_s_groups_and_those_held_up_least_are_kept() -> None:
    some = {0: of(10, 0.5, near=True), 1: of(10, 0.4), 2: of(10, 0.3, near=True), 3: of(10, 0.1), 4: of(10, 0.2)}
    assert chosen(some, most_calls=50) == [0, 1, 2, 3, 4]
    assert chosen(some, most_calls=49) == [0, 2, 3, 4]  # 0, 3, 2, 4, and 1 is one too many
    assert chosen(some, most_calls=20) == [0, 3]
    assert chosen(some, most_calls=9) == []


def test_what_is_left_out_is_said_and_nobody_is_said_to_have_come_last() -> None:
    """Ranks 0 and 1 are kept: the first, and the one held up least. Of the others nothing is known."""
    found, notes = compared(all_kept(4), most_calls=6)
    assert found is not None
    assert found.job.ranks == (0, 1)
    assert not any(met.whole for met in found.job.join_points)
    assert [note.what for note in notes] == [
        "The collectives of 2 of 4 ranks are compared: of the first rank's groups, and of the ranks that are held up"
        " least."
    ]


def test_a_rank_of_which_nothing_is_known_costs_that_rank() -> None:
    some: dict[int, KeptSequence | None] = {**all_kept(4), 3: None}
    found, notes = compared(some)
    assert found is not None
    assert found.job.ranks == (0, 1, 2)
    assert [note.what for note in notes] == ["Not compared with the other ranks: 3."]


def test_fewer_than_two_ranks_cannot_be_compared() -> None:
    some: dict[int, KeptSequence | None] = {0: all_kept(4)[0], 1: None}
    assert compared(some) == (None, [])


def test_a_rank_is_near_the_first_if_it_shares_a_group_that_is_not_of_all() -> None:
    everyone, pair = ProcessGroup("0", "", (0, 1, 2, 3)), ProcessGroup("1", "tp", (0, 2))
    one = sequences()[2]
    assert not kept(replace(one, known_groups=(everyone,)), 4).near
    assert kept(replace(one, known_groups=(everyone, pair)), 4).near


def test_the_share_for_which_a_rank_is_held_up() -> None:
    """Of each step of 100 ms from when computing ends to 90 ms."""
    shares = [one.held_share for one in all_kept(4).values()]
    assert np.allclose(shares, [0.30, 0.10, 0.20, 0.25], atol=0.002)
