"""A job in brief: by ranks, groups and critical path, of schedules whose times are known by hand."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from diagnose.advice.assembly import summarised
from diagnose.contracts.job import JobRank, JobSummary
from diagnose.facts.communication.job_times import WhyUnmatched
from diagnose.facts.communication.matching import join as joined_job
from diagnose.replay.job import join
from diagnose.replay.job_path import MOST_STRETCHES, JobPathKind
from diagnose.trace.job import CollectiveSequence
from tests.replay.playing import MS, Meet, NextStep, Own, Program, Recv, Send, one_step_each, play


def summary_of(sequences: list[CollectiveSequence]) -> JobSummary:
    job = joined_job(sequences)
    assert job is not None
    return summarised(job, join(job))


def summary(*programs: Program) -> JobSummary:
    return summary_of(play(programs))


def spent(one: JobRank) -> tuple[int, ...]:
    return one.compute_ns, one.host_ns, one.wait_ns or 0, one.transfer_ns or 0, one.unmatched_ns


def path(found: JobSummary) -> dict[tuple[str, int | None], int]:
    return {(one.what.value, one.rank): one.ns for one in found.critical_path}


def test_a_step_waits_for_the_slow_rank_and_the_transfer() -> None:
    found = summary(*one_step_each(10, 30))
    assert found.step_ns == 32 * MS
    assert path(found) == {("compute", 1): 30 * MS, ("transfer", None): 2 * MS}
    fast, slow = found.ranks
    assert (spent(fast), spent(slow)) == ((10 * MS, 0, 20 * MS, 2 * MS, 0), (30 * MS, 0, 0, 2 * MS, 0))
    assert (fast.awaited_ns, slow.compute_late_ns, slow.host_late_ns, slow.held_late_ns) == (0, 20 * MS, 0, 0)
    assert found.compute_ns == ((10 * MS,) * 3, (30 * MS,) * 3)
    assert found.wait_ns == ((20 * MS,) * 3, (0,) * 3)


def lane(found: JobSummary) -> list[tuple[float, float, str, int | None]]:
    return [(one.from_ns / MS, one.ns / MS, one.what.value, one.rank) for one in found.path_lane]


def test_the_path_of_the_last_step_is_told_in_order_of_time() -> None:
    found = summary(*one_step_each(10, 30))
    assert lane(found) == [(0, 30, "compute", 1), (30, 2, "transfer", None)]
    handed = summary(
        [Own(10 * MS), Send(1, 2 * MS), Own(40 * MS), Meet((0, 1)), NextStep()],
        [Recv(0, 2 * MS), Own(30 * MS), Meet((0, 1)), NextStep()],
    )
    # Rank 1 is through 42 ms after the start, rank 0 after 52.
    assert lane(handed) == [(0, 10, "compute", 0), (10, 2, "transfer", None), (12, 40, "compute", 0)]


def test_stretches_of_the_path_that_nobody_would_see_are_parts_of_their_neighbours() -> None:
    """Of a step of 1 s a 400th is 2.5 ms: 500 pieces of 2 ms each, on two ranks in turn."""
    both = [Own(MS), Meet((0, 1), MS)] * 500
    found = summary([*both, NextStep()] * 2, [*both, NextStep()] * 2)
    assert 300 < len(found.path_lane) <= MOST_STRETCHES
    assert sum(one.ns for one in found.path_lane) == 1_000 * MS


def test_without_a_recording_of_each_rank_waiting_is_bounded_from_below() -> None:
    """Rank 3 comes last, after 40 ms, and is not recorded: of the others rank 1 comes last, after 30 ms."""
    found = summary_of(play(one_step_each(10, 30, 20, 40))[:3])
    assert found.step_ns == 42 * MS
    assert [spent(rank) for rank in found.ranks] == [
        (10 * MS, 0, 20 * MS, 0, 12 * MS),
        (30 * MS, 0, 0, 0, 12 * MS),
        (20 * MS, 0, 10 * MS, 0, 12 * MS),
    ]
    assert path(found) == {("compute", 1): 30 * MS, ("unmatched", None): 12 * MS}
    assert [rank.awaited_ns for rank in found.ranks] == [0, 30 * MS, 0]
    (apart,) = found.unmatched
    assert (apart.why, apart.missing, apart.held_ns) == (WhyUnmatched.NOT_RECORDED, (3,), 12 * MS)
    assert found.groups == ()


def test_of_two_ranks_in_different_groups_nothing_is_bounded() -> None:
    pairs = ((10, (0, 1)), (30, (0, 1)), (20, (2, 3)), (40, (2, 3)))
    everyone = play([[Own(ms * MS), Meet(group, 2 * MS), NextStep()] * 3 for ms, group in pairs])
    found = summary_of([everyone[0], everyone[2]])
    assert [spent(rank) for rank in found.ranks] == [(10 * MS, 0, 0, 0, 22 * MS), (20 * MS, 0, 0, 0, 22 * MS)]


def on_host(one: CollectiveSequence) -> CollectiveSequence:
    """The same, but a rank that does not compute."""
    return replace(one, compute_ns=0 * one.compute_ns, lane=replace(one.lane, compute_ns=0 * one.lane.compute_ns))


def test_a_rank_that_is_late_on_its_host_is_charged_with_that() -> None:
    fast, slow = play([[Own(ms * MS), Meet((0, 1)), NextStep()] * 2 for ms in (10, 30)])
    found = summary_of([fast, on_host(slow)])
    assert path(found) == {("host", 1): 30 * MS}
    assert (found.ranks[1].compute_ns, found.ranks[1].host_ns) == (0, 30 * MS)
    assert (found.ranks[1].compute_late_ns, found.ranks[1].host_late_ns) == (0, 20 * MS)


def test_who_hands_waiting_on_is_charged_but_the_path_goes_on_to_who_began_it() -> None:
    found = summary(
        [Own(10 * MS), Meet((0, 1)), NextStep()],
        [Meet((1, 2)), Own(10 * MS), Meet((0, 1)), NextStep()],
        [Own(20 * MS), Meet((1, 2)), NextStep()],
    )
    # Rank 2 lets rank 1 wait for 20 ms. Rank 0 waits from 10 to 30 ms for rank 1, which itself waits until 20 ms.
    assert path(found) == {("compute", 2): 20 * MS, ("compute", 1): 10 * MS}
    assert [rank.wait_ns for rank in found.ranks] == [20 * MS, 20 * MS, 0]
    assert (found.ranks[1].compute_late_ns, found.ranks[1].held_late_ns) == (10 * MS, 10 * MS)
    assert found.ranks[2].compute_late_ns == 20 * MS


def test_a_transfer_is_waited_for_at_its_later_side_and_is_a_link_of_its_own() -> None:
    found = summary([Own(10 * MS), Send(1, 3 * MS), NextStep()] * 2, [Recv(0, 3 * MS), Own(20 * MS), NextStep()] * 2)
    # Rank 0 hands over at 10 ms; rank 1 takes from 13 to 33; the second is ready at 23 but taken at 33 to 36.
    assert found.step_ns == 28 * MS
    assert path(found) == {("compute", 1): 20 * MS, ("compute", 0): 5 * MS, ("transfer", None): 3 * MS}
    (link,) = found.groups
    assert (link.kind, link.ranks, link.calls) == ("p2p", (0, 1), 1)
    assert link.wait_ns == 10 * MS  # 10 of the receiver in the first step, 10 of the sender in the second.
    assert link.transfer_ns == 6 * MS


def test_what_a_group_moves_in_which_time_is_its_bandwidth() -> None:
    sequences = play(one_step_each(10, 30))
    sized = [replace(one, calls=replace(one.calls, bytes=one.calls.bytes * 0 + 4_000_000)) for one in sequences]
    (group,) = summary_of(sized).groups
    assert (group.calls, group.bytes, group.bandwidth_bytes_per_s) == (1, 4_000_000, 2e9)
    assert (group.ns, group.wait_ns, group.transfer_ns) == (12 * MS, 10 * MS, 2 * MS)
    assert summary_of(sequences).groups[0].bytes is None


def test_waiting_for_a_rank_without_a_recording_is_not_known_and_not_zero() -> None:
    sequences = play(
        [
            [Own(10 * MS), Meet((0, 1)), Meet((0, 2), MS), NextStep()],
            [Own(20 * MS), Meet((0, 1)), NextStep()],
            [Own(50 * MS), Meet((0, 2), MS), NextStep()],
        ]
    )
    found = summary_of(sequences[:2])
    first = found.ranks[0]
    assert (first.wait_ns, first.unmatched_ns, first.transfer_ns) == (10 * MS, 31 * MS, 0)
    (missed,) = found.unmatched
    assert (missed.why, missed.missing, missed.ranks) == (WhyUnmatched.NOT_RECORDED, (2,), (0,))
    assert (missed.calls, missed.held_ns) == (1, 31 * MS)
    assert path(found)["unmatched", 0] > 0
    alone = summary_of(sequences[1:])  # Nothing that rank 2 does is matched.
    assert (alone.ranks[1].wait_ns, alone.ranks[1].awaited_ns, alone.wait_ns[1]) == (None, 0, None)
    assert alone.ranks[1].compute_late_ns is None


own = st.integers(0, 30)


@given(st.lists(st.tuples(own, own, own, own), min_size=1, max_size=4), st.integers(0, 3))
def test_the_path_adds_up_to_the_step_and_ranks_to_theirs(steps: list[tuple[int, int, int, int]], took: int) -> None:
    programs: list[list[Own | Meet | Send | Recv | NextStep]] = [[], [], [], []]
    for at, one in enumerate(steps):
        for rank, (program, ms) in enumerate(zip(programs, one, strict=True)):
            program += [Own(ms * MS + 1), Meet((0, 1) if rank < 2 else (2, 3), took * MS)]
            if rank in (1, 2):
                program.append(Send(2, took) if rank == 1 else Recv(1, took))
            program += [Own(one[(rank + at) % 4]), Meet((0, 1, 2, 3), took), NextStep()]
    sequences = play(programs)
    found = summary_of(sequences)
    assert sum(one.ns for one in found.critical_path) == found.step_ns
    assert all(one.what is not JobPathKind.UNEXPLAINED for one in found.critical_path)
    for sequence, rank_told in zip(sequences, found.ranks, strict=True):
        parts = spent(rank_told)
        assert min(parts) >= 0
        mean = (sequence.bounds_ns[-1] - sequence.bounds_ns[0]) / len(steps)
        assert abs(sum(parts) - mean) <= 1
    # What ranks wait is charged to ranks, all of it.
    waited = sum(one.wait_ns or 0 for one in found.ranks)
    assert abs(waited - sum(one.awaited_ns for one in found.ranks)) <= 2 * len(found.ranks)
