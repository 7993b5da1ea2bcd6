"""The pace of a run at first and now."""

from diagnose.contracts.watched_run import RunPartKind
from diagnose.live.now import rank_now
from tests.live.drawn import MS, S, log, window


def test_of_a_run_below_six_minutes_a_third_is_first_and_a_third_is_now() -> None:
    one = rank_now(log(*(window(at, waits_ns=at * MS) for at in range(9)), after_ns=S))
    assert one.first is not None
    assert one.now is not None
    assert (one.first.steps, one.first.length_ns, one.first.loader_ns) == (120, 3 * S, 1 * MS)
    assert (one.now.steps, one.now.length_ns, one.now.loader_ns) == (120, 3 * S, 7 * MS)
    assert (one.now.mean_ns, one.now.median_ns, one.now.p99_ns) == (25 * MS, 25 * MS, 25 * MS)
    assert one.since_last_step_ns == S


def test_of_a_long_run_two_minutes_are_first_and_two_are_now() -> None:
    one = rank_now(log(*(window(at) for at in range(1000))))
    assert one.first is not None
    assert one.now is not None
    assert (one.first.steps, one.now.steps) == (120 * 40, 120 * 40)


def test_one_window_is_now_and_none_is_neither() -> None:
    one, none = rank_now(log(window(0))), rank_now(log())
    assert one.first is None
    assert one.now is not None
    assert one.now.steps == 40
    assert (none.first, none.now, none.run.steps, none.since_last_step_ns) == (None, None, 1, 0)


def test_what_comes_after_the_last_step_is_no_part_yet() -> None:
    one = rank_now(log(window(0), after_ns=10 * S))
    assert {part.kind: part.ns for part in one.ended} == {
        RunPartKind.START: 2 * S,
        RunPartKind.TRAINING: 800 * MS,
        RunPartKind.LOADER: 200 * MS,
    }
    assert sum(part.ns for part in one.run.parts) == 13 * S
