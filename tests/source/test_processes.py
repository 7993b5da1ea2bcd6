"""Work in this process, or in several."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diagnose.source import processes
from diagnose.source.base import InputError
from diagnose.source.ranks import TraceFile
from diagnose.source.recording import RankFiles


def files(count: int) -> list[RankFiles]:
    return [RankFiles(TraceFile(Path(f"rank{index}.json"), named=False)) for index in range(count)]


def test_small_files_stay_in_this_process_and_each_waits_until_it_is_asked_for() -> None:
    done: list[int] = []
    with processes.executor(8, files(2)) as pool:
        assert next(iter(pool.map(done.append, (1, 2)))) is None
    assert done == [1]


def test_a_process_that_is_killed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "POOL_BYTES", 0)
    with pytest.raises(InputError, match="smaller --jobs"), processes.executor(2, files(2)) as pool:
        list(pool.map(os._exit, (9, 9)))
