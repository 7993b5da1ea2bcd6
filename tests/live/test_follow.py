"""Following logs that grow: who is told when, in which words, and that nothing of it disturbs."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from diagnose.contracts.watched_run import RunPartKind
from diagnose.live import follow, now
from diagnose.live.follow import Following
from diagnose.live.now import RankNow, rank_now
from diagnose.source import run_log
from diagnose.trace.run_log import Column
from tests.capture.scripts import wait_for
from tests.live.drawn import MS, S, log, window, written


class Kept:
    """What was shown: ranks and their steps."""

    name = "keeping"

    def __init__(self, error: Exception | None = None) -> None:
        self.shown: list[list[tuple[int, int]]] = []
        self.closed = 0
        self._error = error

    def show(self, ranks: Sequence[RankNow]) -> None:
        self.shown.append([(one.rank, one.run.steps) for one in ranks])
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "LOOK_S", 0.01)
    monkeypatch.setattr(follow, "PATIENCE_S", 600)


def test_all_ranks_are_told_when_one_of_their_logs_has_grown(tmp_path: Path) -> None:
    kept, said = Kept(), list[str]()
    with Following(tmp_path / "run", [kept], said.append):
        (tmp_path / "run").mkdir()
        written(tmp_path / "run", windows=1, rank=10)
        wait_for(lambda: [(10, 11)] in kept.shown)
        written(tmp_path / "run", windows=2, opened=True, rank=2)
        wait_for(lambda: [(2, 21), (10, 11)] in kept.shown)
    assert kept.shown[-1] == [(2, 21), (10, 11)]
    assert (kept.closed, said) == (1, [])


def test_nothing_is_told_of_a_log_that_has_not_grown_or_not_begun(tmp_path: Path) -> None:
    kept = Kept()
    (tmp_path / "rank1.watch").write_bytes(b"")
    written(tmp_path, windows=1)
    with Following(tmp_path, [kept], pytest.fail):
        wait_for(lambda: bool(kept.shown))
        time.sleep(0.2)
    assert kept.shown == [[(0, 11)]]


def test_the_end_of_a_run_is_told(tmp_path: Path) -> None:
    kept = Kept()
    with Following(tmp_path, [kept], pytest.fail):
        written(tmp_path, windows=3)
    assert kept.shown[-1] == [(0, 31)]


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (KeyError("x"), "diagnose itself failed (KeyError, test_follow.py"),
    ],
)
def test_what_fails_is_named_once_and_ends_alone(tmp_path: Path, error: Exception, why: str) -> None:
    failing, kept, said = Kept(error), Kept(), list[str]()
    written(tmp_path, windows=1)
    with Following(tmp_path, [failing, kept], said.append):
        wait_for(lambda: bool(kept.shown))
        written(tmp_path, windows=2)
        wait_for(lambda: len(kept.shown) > 1)
    (sentence,) = said
    assert sentence.startswith(f"keeping stops: {why}")
    assert sentence.endswith(". The training continues.")
    assert (len(failing.shown), failing.closed, kept.closed) == (1, 1, 1)
    assert kept.shown[-1] == [(0, 21)]


def test_a_show_that_hangs_holds_the_run_up_for_some_seconds_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "PATIENCE_S", 0.1)
    entered, goes_on = threading.Event(), threading.Event()

    class Hanging(Kept):
        def show(self, ranks: Sequence[RankNow]) -> None:
            entered.set()
            goes_on.wait(60)

    hanging = Hanging()
    written(tmp_path, windows=1)
    with Following(tmp_path, [hanging], pytest.fail):
        assert entered.wait(30)
    assert hanging.closed == 0
    goes_on.set()
    wait_for(lambda: hanging.closed == 1)


def test_a_window_that_moves_from_one_file_to_the_other_while_both_are_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between both reads the recorder appends the window that was open, and another one takes its place."""
    path, original = written(tmp_path, windows=2, opened=True), run_log._records

    def later(path: Path, damage: list[int]) -> Any:
        if path.suffix == ".open":
            monkeypatch.setattr(run_log, "_records", original)
            written(tmp_path, windows=3, opened=True)
        return original(path, damage)

    monkeypatch.setattr(run_log, "_records", later)
    _, known = follow._read(path)
    assert [one.first_step for one in known.latest] == [1, 11, 21]


def told(*ranks: RankNow) -> dict[str, str]:
    return dict(now.rows(ranks))


def slow(rank: int) -> RankNow:
    """Of 50 ms a step, and of one more for each rank."""
    ns = (50 + rank) * MS
    column = Column(20, 20 * ns, ns, ns, ((409, 20),))
    return rank_now(log(replace(window(0), steps=20, columns={"step": column}), rank=rank, world_size=99))


def test_a_run_of_one_rank() -> None:
    figures = {"resident_bytes": 8e8, "sm_clock_mhz": 1410, "temperature_c": 61, "slowed": 0}
    one = rank_now(log(*(window(at, waits_ns=5 * MS * (at > 1), **figures) for at in range(4))))
    assert told(one) == {
        "so far": "161 steps in 6.00 s, 40.0 steps/s now",
        "step": "median 25.0 ms, p99 25.0 ms (at first median 25.0 ms, p99 25.0 ms)",
        "waiting for data": "20.0 % (at first 0.0 %) of a step",
        "time": "6.00 s: training steps 60.0 %, start-up and compilation 33.3 %, waiting for data 6.7 %",
        "memory": "resident memory 800 MB",
        "GPU": "SM clock, MHz 1,411; temperature, °C 62.0; throttled by heat or power",
    }
    assert now.line([one]) == (
        "161 steps in 6.00 s, 40.0 steps/s now;"
        " step: median 25.0 ms, p99 25.0 ms (at first median 25.0 ms, p99 25.0 ms);"
        " waiting for data 20.0 % of a step; resident memory 800 MB"
    )


def test_no_step_but_the_first() -> None:
    one = rank_now(log())
    assert told(one) == {"so far": "1 step in 2.00 s", "time": "2.00 s: start-up and compilation 100.0 %"}
    assert now.line([one]) == "1 step in 2.00 s"


def test_a_run_that_stands_still_is_told() -> None:
    assert told(rank_now(log(window(0), after_ns=10 * S)))["so far"] == "41 steps in 13.0 s, 40.0 steps/s now"
    assert told(rank_now(log(window(0), after_ns=11 * S)))["so far"] == "41 steps in 14.0 s, none for 11.0 s"


def test_several_ranks_are_told_one_by_one_and_of_many_the_slowest() -> None:
    two = told(slow(0), slow(1))
    assert two["so far"] == "21 steps in 3.00 s, 20.0 steps/s now (rank 0 of 99)"
    assert two["median steps"] == "rank 0 50.0 ms, rank 1 51.0 ms"
    many = told(*map(slow, range(20)))["median steps"]
    assert many.startswith("rank 19 ")
    assert many.endswith("rank 8 58.0 ms; 8 others are faster")


def test_a_finding_is_told_when_it_is_seen() -> None:
    steps = [Column(40, 40 * ns, ns, ns, ()) for ns in range(20 * MS, 29 * MS, MS)]
    one = rank_now(log(*(replace(window(at), columns={"step": step}) for at, step in enumerate(steps))))
    (found,) = one.findings
    sentence = now.finding(found)
    assert sentence.startswith("Step time rises over the run. The typical step rises from 21.0 ms to 27.0 ms")
    assert told(one)["finding"] == sentence


def test_of_a_run_below_six_minutes_a_third_is_first_and_a_third_is_now() -> None:
    one = rank_now(log(*(window(at, waits_ns=at * MS) for at in range(9)), after_ns=S))
    assert (one.first.steps, one.first.length_ns, one.first.loader_ns) == (120, 3 * S, 1 * MS)
    assert (one.now.steps, one.now.length_ns, one.now.loader_ns) == (120, 3 * S, 7 * MS)
    assert (one.now.mean_ns, one.now.median_ns, one.now.p99_ns) == (25 * MS, 25 * MS, 25 * MS)
    assert one.since_last_step_ns == S


def test_of_a_long_run_two_minutes_are_first_and_two_are_now() -> None:
    one = rank_now(log(*(window(at) for at in range(1000))))
    assert (one.first.steps, one.now.steps) == (120 * 40, 120 * 40)


def test_one_window_is_now_and_none_is_neither() -> None:
    one, none = rank_now(log(window(0))), rank_now(log())
    assert one.first is None
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
