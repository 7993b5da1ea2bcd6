"""What a rank does between its collectives, and where it is held up."""

import numpy as np
import pytest

from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.core.base import Missing
from diagnose.synthetic.reading import facts_of
from diagnose.trace.job import CollectiveSequence

MS = 1_000_000

TWO_A_STEP = """
    4 steps of 100
    cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | c10d::allreduce_ 0.5-0.6 | device_sync 1-99.9
    gpu     sgemm 0.1-50 @0.05
    gpu 20  allreduce 50-70 @0.3 group_size=2 | allreduce 71-90 @0.55 group_size=2
"""


def lane(found: CollectiveSequence) -> list[tuple[str, int, float, float, float]]:
    """Events as (what, call, from, until, own) in ms from the first used step on."""
    zero, columns = int(found.bounds_ns[0]), ("call", "waits", "from_ns", "until_ns", "own_ns")
    events = zip(*(getattr(found.lane, name).tolist() for name in columns), strict=True)
    return [
        ("wait" if waits else "step" if call < 0 else "ask", call, (begin - zero) / MS, (end - zero) / MS, own / MS)
        for call, waits, begin, end, own in events
    ]


def test_on_a_device_it_is_held_up_by_communication_that_nothing_hides() -> None:
    facts = facts_of("""
        3 steps of 100
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-70 @0.05
        gpu 20  allreduce 60-90 @0.3 group_size=2
    """)
    found = collective_sequence(facts)
    # A step ends with its last work: at 90 ms. The next begins on the device 10.1 ms later and computes for 69.9.
    assert not found.on_cpu
    assert found.compute_ns.tolist() == [69_900_000] * 2
    assert lane(found) == [
        ("ask", 0, 70.0, 70.0, 70.0),
        ("wait", 0, 80.0, 100.0, 10.0),  # the last 10 ms of compute hide the first 10 of the all-reduce
        ("step", -1, 100.0, 100.0, 0.0),
        ("ask", 1, 170.0, 170.0, 70.0),
        ("wait", 1, 180.0, 200.0, 10.0),
    ]
    assert found.lane.compute_ns.tolist() == [59_900_000, 10 * MS, 0, 59_900_000, 10 * MS]


def test_on_the_host_it_is_held_up_where_it_is_in_no_op_of_its_own_until_a_collective_is_over() -> None:
    facts = facts_of("""
        3 steps of 100
        2 threads, 4 cores
        cpu       aten::mm 0-40 | c10d::allreduce_ 40-40.1 | aten::add 40.1-50 | aten::mul 80-99
        cpu gloo  gloo:all_reduce 40.5-80
    """)
    found = collective_sequence(facts)
    assert (found.on_cpu, found.operations) == (True, ("allreduce",))
    assert lane(found)[:3] == [
        ("ask", 0, 40.5, 40.5, 40.5),
        ("wait", 0, 50.0, 80.0, 9.5),
        ("step", -1, 100.0, 100.0, 20.0),
    ]
    assert found.compute_ns.tolist() == [68_900_000] * 2  # 40, 9.9 and 19 ms of ops


@pytest.mark.parametrize(
    ("after", "held"),
    [
        ("aten::mul 85-99", (40.5, 80.0)),  # It goes on 5 ms late, of 39.5 for which it stood.
        ("aten::add 79-79.5 | aten::mul 80.4-99", (40.5, 79.0)),  # Recorded to be over 1 ms late.
        ("aten::add 60-79 | aten::mul 80.4-99", (79.0, 80.0)),  # Most of it was hidden.
        ("aten::mul 95-99", None),  # For 15 ms it did something else.
    ],
)
def test_ends_need_not_meet_exactly_where_a_thread_stands_for_long(
    after: str, held: tuple[float, float] | None
) -> None:
    synthetic = f"""
        3 steps of 100
        2 threads, 4 cores
        cpu       aten::mm 0-40 | c10d::allreduce_ 40-40.1 | {after}
        cpu gloo  gloo:all_reduce 40.5-80
        """
    waits = [event[2:4] for event in lane(collective_sequence(facts_of(synthetic))) if event[0] == "wait"]
    assert waits[:1] == ([] if held is None else [pytest.approx(held)])


def test_what_it_asks_for_while_it_is_held_up_was_asked_for_before() -> None:
    found = collective_sequence(facts_of(TWO_A_STEP.replace("4 steps", "2 steps")))
    events = lane(found)
    assert [event[0] for event in events] == ["ask", "wait", "ask", "wait"]
    assert [event[4] for event in events] == [60.0, 0.0, 1.0, 0.0]  # 1 ms between two collectives is its own
    assert len(set(found.calls.queue.tolist())) == 1  # of one stream: one after the other


def test_without_collectives_or_steps_there_is_no_course() -> None:
    with pytest.raises(Missing, match="marked steps"):
        collective_sequence(facts_of("cpu aten::mm 0-1\ngpu sgemm 0.5-90 @0.2"))
    alone = collective_sequence(facts_of("3 steps of 100\ncpu aten::mm 0-1\ngpu sgemm 0.5-90 @0.2"))
    assert not len(alone.calls.ids)
    assert np.diff(alone.bounds_ns).tolist() == [100 * MS] * 2


def test_without_steps_the_window_stands_for_one() -> None:
    host = "cpu aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4"
    found = collective_sequence(facts_of(f"{host}\ngpu sgemm 0.1-70 @0.05\ngpu 20 allreduce 60-90 @0.3"))
    assert (found.window, found.numbers) == (True, (0,))
    assert [event[:2] for event in lane(found)] == [("ask", 0), ("wait", 0)]


@pytest.mark.parametrize(("most", "steps"), [(6, 3), (5, 2), (4, 2), (2, 1)])
def test_of_very_many_collectives_those_of_whole_steps_are_taken(
    monkeypatch: pytest.MonkeyPatch, most: int, steps: int
) -> None:
    monkeypatch.setattr("diagnose.facts.communication.collective_sequence.MOST_CALLS", most)
    found = collective_sequence(facts_of(TWO_A_STEP))
    assert len(found.numbers) == len(found.compute_ns) == len(found.bounds_ns) - 1 == steps
    assert len(found.calls.ids) == 2 * steps
    # Of too many in a step none are taken.
    monkeypatch.setattr("diagnose.facts.communication.collective_sequence.MOST_CALLS", 1)
    with pytest.raises(Missing, match="a step of 1 collectives at most"):
        collective_sequence(facts_of(TWO_A_STEP))


def test_gaps_between_kernels_beside_a_collective_do_not_wait_for_it() -> None:
    facts = facts_of("""
        3 steps of 100
        rank 0 of 2
        cpu     aten::mm 0-0.1 | aten::mm 0.2-0.3 | aten::mm 0.4-0.5 | device_sync 1-99.9
        gpu     sgemm 1-40 @0.05 | sgemm 41-60 @0.25 | sgemm 80-90 @0.45
        gpu 20  allreduce 30-80 @0.3 group_size=2
    """)
    found = collective_sequence(facts)
    waits = (found.lane.until_ns - found.lane.from_ns)[found.lane.waits]
    assert waits.tolist() == [20_000_000] * 2  # from 60 to 80 of each step
