"""The joined replay of ranks: exact as recorded, and by the rules of schedules once something is changed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from diagnose.facts.communication.matching import join as joined_job
from diagnose.replay.job import CallsOfAll, Joined, join
from diagnose.trace.job import CollectiveSequence, Job
from tests.replay.playing import MS, Meet, NextStep, Own, Program, Recv, Send, play


def job_of(*programs: Program) -> Job:
    found = joined_job(play(programs))
    assert found is not None
    return found


def scaled(joined: Joined, *keep: float) -> int:
    """The job's step if of each rank's own time this share is left."""
    own = [np.rint(ns * share).astype(np.int64) for ns, share in zip(joined.recorded.own_ns, keep, strict=True)]
    return int(joined.step_ns([replace(joined.recorded, own_ns=tuple(own))])[0])


def one_step_each(*own_ms: float) -> list[Program]:
    """Ranks that compute for so long, meet for 2 ms, and do so in three steps."""
    everyone = tuple(range(len(own_ms)))
    return [[Own(round(ms * MS)), Meet(everyone, 2 * MS), NextStep()] * 3 for ms in own_ms]


def test_the_slower_of_two_ranks_sets_the_pace_until_the_other_is_the_slower() -> None:
    joined = join(job_of(*one_step_each(10, 30)))
    assert scaled(joined, 1, 1) == 32 * MS
    assert scaled(joined, 1, 0.5) == 17 * MS
    assert scaled(joined, 1, 0.1) == 12 * MS  # now the other one is waited for
    assert scaled(joined, 0, 1) == 32 * MS  # who is never last can be sped up for nothing


def test_a_rank_of_a_second_group_is_waited_for_through_a_rank_that_is_in_both() -> None:
    programs: list[Program] = [
        [Own(10 * MS), Meet((0, 1)), NextStep()] * 3,
        [Meet((1, 2)), Own(10 * MS), Meet((0, 1)), NextStep()] * 3,
        [Own(20 * MS), Meet((1, 2)), NextStep()] * 3,
    ]
    joined = join(job_of(*programs))
    # Rank 2 comes at 20, 40 and 60 ms, and after each rank 1 computes for 10 ms.
    assert scaled(joined, 1, 1, 1) == round(70 * MS / 3)
    assert scaled(joined, 0, 1, 1) == round(70 * MS / 3)
    # Rank 2 comes at 5 ms, then sooner than rank 1 is through with its 10 ms: 5, 15, 25, 35.
    assert scaled(joined, 1, 1, 0.25) == round(35 * MS / 3)


def two_join_points(*own_ms: tuple[int, int]) -> list[Program]:
    """Ranks that compute, meet for 2 ms, compute and meet for 4 ms, in three steps."""
    everyone = tuple(range(len(own_ms)))
    return [
        [Own(first * MS), Meet(everyone, 2 * MS), Own(then * MS), Meet(everyone, 4 * MS), NextStep()] * 3
        for first, then in own_ms
    ]


def with_calls(joined: Joined, keep: list[float]) -> float:
    """The job's step in ms if of each rank's calls in a step these shares of the transfer are left."""
    ranks = len(joined.first_call) - 1
    return int(joined.step_ns([replace(joined.recorded, keep=np.tile(keep, 3 * ranks))])[0]) / MS


def test_a_collective_that_is_not_asked_for_holds_nobody_up() -> None:
    joined = join(job_of(*two_join_points((10, 5), (4, 20))))
    assert with_calls(joined, [1, 1]) == (10 + 2) + (20 + 4)
    assert with_calls(joined, [0, 1]) == 10 + (20 + 4)  # Ranks meet all the same.
    assert with_calls(joined, [0.5, 0.25]) == (10 + 1) + (20 + 1)
    assert with_calls(joined, [np.nan, 1]) == max(10 + 5, 4 + 20) + 4
    # The first is over at 12 ms, then rank 1 comes last, 24 ms later each time, and ends 20 ms after the third.
    assert with_calls(joined, [1, np.nan]) == (12 + 2 * (24 + 2) + 20) / 3


def test_calls_of_ranks_that_run_the_same_change_with_those_of_one() -> None:
    """Ranks 0 and 1 meet, 2 and 3 do, and 4 has calls of its own and meets all in the end."""
    everyone = (0, 1, 2, 3, 4)
    programs: list[Program] = [
        *([Meet(two), Own(MS), Meet(everyone), NextStep()] * 2 for two in ((0, 1), (0, 1), (2, 3), (2, 3))),
        [Own(MS), Meet(everyone), NextStep()] * 2,
    ]
    calls = CallsOfAll(job_of(*programs), fixed=1)
    left = calls.left(np.array([0.5, 1.0, np.nan, 0.25]))
    assert np.array_equal(left, [*[0.5, 1, np.nan, 0.25] * 4, 1, 0.25], equal_nan=True)


def gpipe(stages: int, micro: int, forward: int, backward: int) -> list[Program]:
    """All forward passes, then all backward passes."""
    programs: list[Program] = []
    for stage in range(stages):
        before, after = stage > 0, stage < stages - 1
        program: list[Own | Send | Recv | Meet | NextStep] = []
        for _ in range(micro):
            program += [Recv(stage - 1)] * before + [Own(forward)] + [Send(stage + 1)] * after
        for _ in range(micro):
            program += [Recv(stage + 1)] * after + [Own(backward)] + [Send(stage - 1)] * before
        programs.append([*program, Meet(tuple(range(stages))), NextStep()])
    return [one * 2 for one in programs]


@pytest.mark.parametrize(("stages", "micro"), [(2, 2), (2, 4), (4, 4), (4, 8)])
def test_a_pipeline_of_half_the_work_takes_what_the_schedule_says(stages: int, micro: int) -> None:
    forward, backward = 4 * MS, 8 * MS
    joined = join(job_of(*gpipe(stages, micro, forward, backward)))
    # The first micro-batch goes through all stages and back, the others follow: (m + p - 1) of each kind.
    assert scaled(joined, *[1.0] * stages) == (micro + stages - 1) * (forward + backward)
    assert scaled(joined, *[0.5] * stages) == (micro + stages - 1) * (forward + backward) // 2


times = st.lists(st.integers(1, 40), min_size=3, max_size=3)


@given(times, st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_less_work_never_takes_longer_and_never_less_than_the_busiest_rank_has_to_do(
    own_ms: list[int], keep: list[float]
) -> None:
    joined = join(job_of(*one_step_each(*own_ms)))
    whole, less = scaled(joined, 1, 1, 1), scaled(joined, *keep)
    assert whole == (max(own_ms) + 2) * MS
    assert less <= whole
    busiest = max(ms * share for ms, share in zip(own_ms, keep, strict=True))
    assert less == pytest.approx((busiest + 2) * MS, abs=2)


@given(times, st.permutations(range(3)))
def test_the_order_of_ranks_changes_nothing(own_ms: list[int], order: list[int]) -> None:
    assert scaled(join(job_of(*one_step_each(*own_ms))), 1, 1, 1) == scaled(
        join(job_of(*one_step_each(*(own_ms[at] for at in order)))), 1, 1, 1
    )


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1))
def test_groups_that_share_no_rank_do_not_hold_each_other_up(first: int, second: int, keep: float) -> None:
    programs: list[Program] = [
        [Own(first * MS), Meet((0, 1)), NextStep()] * 3,
        [Own(MS), Meet((0, 1)), NextStep()] * 3,
        [Own(second * MS), Meet((2, 3)), NextStep()] * 3,
        [Own(MS), Meet((2, 3)), NextStep()] * 3,
    ]
    joined = join(job_of(*programs))
    expected = max(first * keep, 1, second) * MS
    assert scaled(joined, keep, 1, 1, 1) == pytest.approx(expected, abs=2)


def test_without_a_change_the_steps_are_as_long_as_recorded_on_any_clock() -> None:
    ahead = [0, 3_000_000_000, -7 * MS]
    sequences = play(one_step_each(10, 30, 20))
    moved = [_ahead(one, by) for one, by in zip(sequences, ahead, strict=True)]
    found = joined_job(moved)
    assert found is not None
    assert found.ahead_ns.tolist() == ahead
    assert int(join(found).step_ns([join(found).recorded])[0]) == 32 * MS


def _ahead(one: CollectiveSequence, by: int) -> CollectiveSequence:
    """The same by a clock of its own that is ahead."""
    calls = replace(one.calls, begin_ns=one.calls.begin_ns + by, end_ns=one.calls.end_ns + by)
    lane = replace(one.lane, from_ns=one.lane.from_ns + by, until_ns=one.lane.until_ns + by)
    return replace(one, machine=one.rank, bounds_ns=one.bounds_ns + by, calls=calls, lane=lane)
