"""Work in this process, or in several, of which one may be killed."""

import os
from pathlib import Path

import pytest

from diagnose.source import processes
from diagnose.source.base import InputError
from diagnose.source.ranks import TraceFile
from diagnose.source.recording import RankFiles


def files(count: int) -> list[RankFiles]:
    return [RankFiles(TraceFile(Path(f"rank{index}.json"), named=False)) for index in range(count)]


def name_and_process(one: RankFiles) -> tuple[str, int]:
    return one.trace.path.name, os.getpid()


def killed_by_the_third(one: RankFiles) -> str:
    if one.trace.path.name == "rank2.json":
        os._exit(9)
    return one.trace.path.name


def refused(one: RankFiles) -> str:
    raise ValueError(one.trace.path.name)


def test_small_files_stay_in_this_process_and_each_waits_until_it_is_asked_for() -> None:
    done: list[str] = []

    def work(one: RankFiles) -> int:
        done.append(one.trace.path.name)
        return os.getpid()

    results = processes.results(work, files(2), jobs=8)
    assert next(results) == (0, os.getpid())
    assert done == ["rank0.json"]
    assert list(results) == [(1, os.getpid())]


@pytest.mark.slow
def test_all_files_are_worked_on_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "POOL_BYTES", 0)
    found = dict(processes.results(name_and_process, files(9), jobs=2))
    assert {at: name for at, (name, _) in found.items()} == {at: f"rank{at}.json" for at in range(9)}
    assert os.getpid() not in {process for _, process in found.values()}


@pytest.mark.slow
def test_a_file_whose_process_is_killed_costs_that_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "POOL_BYTES", 0)
    found = dict(processes.results(killed_by_the_third, files(6), jobs=2))
    lost = found.pop(2)
    assert isinstance(lost, InputError)
    assert "rank2.json was killed" in str(lost)
    assert found == {at: f"rank{at}.json" for at in (0, 1, 3, 4, 5)}


@pytest.mark.slow
@pytest.mark.parametrize("least_bytes", [0, 1 << 20])
def test_what_work_raises_is_raised(monkeypatch: pytest.MonkeyPatch, least_bytes: int) -> None:
    monkeypatch.setattr(processes, "POOL_BYTES", least_bytes)
    with pytest.raises(ValueError, match=r"rank\d.json"):
        list(processes.results(refused, files(3), jobs=2))
