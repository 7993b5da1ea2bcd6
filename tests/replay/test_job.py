"""The joined replay of ranks: exact as recorded, and by the rules of schedules once something is changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.facts.communication.meetings import join as joined_job
from diagnose.replay.job import Joined, Left, join
from diagnose.trace.job import Course, Job
from tests.replay.playing import MS, Meet, NextStep, Own, Program, Recv, Send, play


def job_of(*programs: Program) -> Job:
    found = joined_job(play(programs))
    assert found is not None
    return found


def scaled(joined: Joined, *keep: float) -> int:
    """The job's step if of each rank's own time this share is left."""
    own = [np.rint(ns * share).astype(np.int64) for ns, share in zip(joined.own_ns, keep, strict=True)]
    return int(joined.step_ns([own])[0])


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


def with_calls(joined: Joined, own_ms: list[list[int]], share: float, happens: list[bool]) -> int:
    """The job's step if of all calls this share is left, and only some happen; alike on all ranks."""
    left = Left(np.full(len(happens), share), np.array(happens))
    return int(joined.step_ns([[np.array(one) * MS for one in own_ms]], [[left] * len(own_ms)])[0])


def test_a_transfer_that_is_shorter_is_so_on_all_of_its_ranks() -> None:
    joined = join(job_of(*one_step_each(10, 30)))
    own = [[round(ns / MS) for ns in one] for one in joined.own_ns]
    assert with_calls(joined, own, 1.0, [True] * 3) == 32 * MS
    assert with_calls(joined, own, 0.5, [True] * 3) == 31 * MS  # ranks still meet


def test_ranks_do_not_wait_for_each_other_in_a_call_that_is_removed() -> None:
    turns: list[Program] = [
        [Own(a * MS), Meet((0, 1), 2 * MS), Own(b * MS), Meet((0, 1), 2 * MS), NextStep()] * 2
        for a, b in ((10, 30), (30, 10))
    ]
    joined = join(job_of(*turns))
    own = [[round(ns / MS) for ns in one] for one in joined.own_ns]
    assert with_calls(joined, own, 1.0, [True] * 4) == 64 * MS  # 30 + 2 + 30 + 2
    assert with_calls(joined, own, 1.0, [False, True] * 2) == 42 * MS  # each computes for 40, then they meet
    assert with_calls(joined, own, 1.0, [False] * 4) == 40 * MS


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
    courses = play(one_step_each(10, 30, 20))
    moved = [_ahead(one, by) for one, by in zip(courses, ahead, strict=True)]
    found = joined_job(moved)
    assert found is not None
    assert found.ahead_ns.tolist() == ahead
    assert int(join(found).step_ns([join(found).own_ns])[0]) == 32 * MS


def _ahead(one: Course, by: int) -> Course:
    """The same by a clock of its own that is ahead."""
    calls = replace(one.calls, begin_ns=one.calls.begin_ns + by, end_ns=one.calls.end_ns + by)
    lane = replace(one.lane, from_ns=one.lane.from_ns + by, until_ns=one.lane.until_ns + by)
    return replace(one, machine=one.rank, bounds_ns=one.bounds_ns + by, calls=calls, lane=lane)
