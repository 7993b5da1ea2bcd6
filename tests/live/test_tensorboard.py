"""Scalars for TensorBoard: what is told of a log, and when."""

import importlib
from pathlib import Path

import pytest

from diagnose.live.now import rank_now
from tests.live.boards import points
from tests.live.drawn import MS, log, window

pytest.importorskip("torch")
pytest.importorskip("tensorboard")
TensorBoard = importlib.import_module("diagnose.live.tensorboard").TensorBoard


def test_each_window_is_a_point_once_it_is_complete(tmp_path: Path) -> None:
    written = TensorBoard(tmp_path / "runs" / "one")
    windows = [window(at, waits_ns=at * MS, resident_bytes=8e8) for at in range(4)]
    written.show([rank_now(log(*windows[:2]))])
    folder = tmp_path / "runs" / "one" / "rank0"
    assert [step for _, step, _ in points(folder)] == [40]
    written.show([rank_now(log(*windows))])
    written.show([rank_now(log(*windows))])
    assert [step for _, step, _ in points(folder)] == [40, 80, 120]
    written.close()
    found = points(folder)
    assert [(at_s, step) for at_s, step, _ in found] == [(1_700_000_003.0 + k, 40 * (k + 1)) for k in range(4)]
    assert found[2][2] == pytest.approx(
        {
            "step_seconds/mean": 0.025,
            "step_seconds/median": 0.025,
            "step_seconds/p99": 0.025,
            "mean_seconds/forward": 0.004,
            "mean_seconds/backward": 0.0,
            "mean_seconds/optimizer": 0.0,
            "steps_per_second": 40.0,
            "share/loader": 0.08,
            "share/evaluation": 0.0,
            "share/save": 0.0,
            "share/collection": 0.0,
            "share/compilation": 0.0,
            "share/outside": 0.0,
            "process_and_device/resident_bytes": 8e8,
        }
    )


def test_each_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    written = TensorBoard(tmp_path)
    written.show([rank_now(log(window(0))), rank_now(log(window(0), window(1), rank=7))])
    written.close()
    assert [len(points(tmp_path / name)) for name in ("rank0", "rank7")] == [1, 2]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Not a directory"):
        TensorBoard(tmp_path / "file" / "runs")
