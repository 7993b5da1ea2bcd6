"""Following logs that grow: who is told when, and that nothing of it disturbs."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from diagnose.live import follow
from diagnose.live.follow import Following
from diagnose.live.now import RankNow
from diagnose.source import run_log
from tests.capture.scripts import wait_for
from tests.live.drawn import written


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
    path, original = written(tmp_path, windows=2, opened=True), run_log._current

    def later(*arguments: Any) -> Any:
        monkeypatch.setattr(run_log, "_current", original)
        written(tmp_path, windows=3, opened=True)
        return original(*arguments)

    monkeypatch.setattr(run_log, "_current", later)
    _, now = follow._read(path)
    assert [one.first_step for one in now.latest] == [1, 11, 21]
