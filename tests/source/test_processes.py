"""Work in this process, or in several, of which one may be killed."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from diagnose.source import processes, ranks, recording
from diagnose.source.arrangement import arrange
from diagnose.source.base import InputError
from diagnose.source.collector import named_category
from diagnose.source.ranks import TraceFile
from diagnose.source.recording import RankFiles
from diagnose.trace.manifest import RankManifest, Timed
from diagnose.trace.model import Ground, Provenance, Rank
from tests.drawing import Drawing


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


ONE = Drawing().op("aten::mm", 0, 10).rank().provenance
MINUTE_NS = 60 * 10**9


def taken(minute: int, pid: int = 7, name: str = "host_7.{}.pt.trace.json", **about: object) -> Provenance:
    begin = 1_700_000_000 * 10**9 + minute * MINUTE_NS
    path = f"/log/{name.format(begin)}"
    times = {"begin_unix_ns": begin, "end_unix_ns": begin + 10 * 10**9}
    return replace(ONE, path=path, process=str(pid), **times, **about)


STEADY, ROUGH, COLD = (50, 50, 50), (50, 60, 50), (149, 149, 149)


@pytest.mark.parametrize(
    ("times_ns", "used"),
    [
        ((COLD, STEADY, ROUGH), 1),
        ((COLD, ROUGH, STEADY), 2),
        ((STEADY, ROUGH, ROUGH), 2),  # the first holds warm-up, and of equal ones the last is used
        ((COLD, (), (50,)), 2),
        ((COLD, (), ()), 0),
    ],
)
def test_the_steadiest_later_recording_is_used(times_ns: Sequence[tuple[int, ...]], used: int) -> None:
    found = arrange([taken(0), taken(2), taken(4)], times_ns)
    assert found.indexes == tuple(0 if at == used else None for at in range(3))
    (note,) = found.integrity
    assert note.what.startswith("One process was recorded 3 times. Used: ")


def test_the_report_names_each_recording_with_its_steps() -> None:
    (note,) = arrange([taken(0, name="t_1.json"), taken(1, name="t_2.json")], [(3000, 5000), ()]).integrity
    used, unused = "Used: t_1.json (steps of 4.00 us).", "Not used: t_2.json (no steps)."
    assert note.what == f"One process was recorded 2 times. {used} {unused}"
    assert note.effect.startswith("Only it has steps.")


def test_ranks_are_compared_in_the_cycle_that_is_steadiest_on_all() -> None:
    """Rank 0 is steadiest in the second cycle, where rank 1 is the least steady."""
    names = ["a_1.{}.pt.trace.json", "b_2.{}.pt.trace.json"]
    given = [taken(minute, pid, names[pid - 1]) for pid in (1, 2) for minute in (0, 1, 2)]
    wild = (50, 90, 50)
    found = arrange(given, [COLD, STEADY, ROUGH, COLD, wild, ROUGH])
    assert found.indexes == (None, None, 0, None, None, 1)


@pytest.mark.parametrize(
    "other",
    [
        taken(0, pid=8, name="host_8.{}.pt.trace.json"),
        taken(0, name="other_7.{}.pt.trace.json"),  # a container counts its processes by itself
        taken(1, rank=1),
        taken(0),  # at the same time
    ],
)
def test_ranks_are_not_taken_for_recordings_of_one_process(other: Provenance) -> None:
    found = arrange([taken(0), other], [STEADY, STEADY])
    assert sorted(index for index in found.indexes if index is not None) == [0, 1]


@pytest.mark.parametrize("known", [{"machine": 0}, {"pid": 3107}])
def test_a_process_is_told_by_its_number_on_its_machine_whatever_files_are_called(known: dict[str, int]) -> None:
    found = arrange([taken(0, name="warm.json", **known), taken(1, name="epoch1.json", **known)], [COLD, STEADY])
    assert found.indexes == (None, 0)


def test_small_numbers_on_unknown_machines_may_be_equal_by_chance() -> None:
    found = arrange([taken(0, name="eager.json"), taken(1, name="compiled.json")], [STEADY, STEADY])
    assert found.indexes == (0, 1)


BEFORE = (9_000_000, 10_000_000, 10_000_000, 10_000_000, 11_000_000)


def noted(after: tuple[int, ...] | None, before: tuple[int, ...] = BEFORE, doubted: bool = True) -> list[str]:
    timed = None if after is None else Timed(first_step=90, wall_ns=after)
    rank = RankManifest(rank=0, unprofiled=Timed(first_step=10, wall_ns=before), unprofiled_after=timed)
    assert all(note.doubts == (Ground.HOST_TIMES,) * doubted for note in recording.notes(rank))
    return [note.what for note in recording.notes(rank)]


def test_a_slower_host_is_noted() -> None:
    assert noted((12_000_000,) * 5) == ["Step time drifted from 10.0 ms to 12.0 ms during the recording."]
    said = noted((12_000_000,) * 5, tuple(range(9_000_000, 11_500_000, 500_000)), doubted=False)
    assert said == ["Step time rises from 10.0 ms to 12.0 ms over the timed steps."]


def test_a_faster_host_is_noted() -> None:
    assert len(noted((8_000_000,) * 5)) == 1


@pytest.mark.parametrize(
    "after",
    [
        *(None, (), (10_400_000,) * 5),  # 4 % more
        (9_900_000, 10_000_000, 12_000_000, 12_000_000, 13_000_000),  # as often as not as before
    ],
)
def test_what_is_within_the_spread_is_none(after: tuple[int, ...] | None) -> None:
    assert noted(after) == []


@pytest.mark.parametrize(
    ("name", "category"),
    [
        *(("aten::add_", "cpu_op"), ("conv2d", "cpu_op"), ("ConvolutionBackward0", "cpu_op")),
        ("autograd::engine::evaluate_function: MmBackward0", "cpu_op"),
        *(("ProfilerStep#3", "user_annotation"), ("Optimizer.step#SGD.step", "user_annotation"), ("My own part", "")),
        *(
            ("cudaLaunchKernel", "cuda_runtime"),
            ("hipMemcpyAsync", "cuda_runtime"),
            ("cuLaunchKernelEx", "cuda_driver"),
        ),
        ("train.py(12): main", "python_function"),
    ],
)
def test_names_tell_what_host_spans_are(name: str, category: str) -> None:
    assert named_category(name) == category


def read(tmp_path: Path, events: list[dict[str, Any]]) -> Rank:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    return ranks.read(path)


def test_the_profiler_before_kineto_wrote_a_list_without_categories(tmp_path: Path) -> None:
    """As torch/autograd/profiler.py: a row of functions of the CPU, and one of those of CUDA."""
    names = {"CPU functions": ["aten::mm", "Eval part"], "CUDA functions": ["sgemm", "Memcpy HtoD (Pinned -> Device)"]}
    events = [
        {"name": name, "ph": "X", "ts": 10 * k, "dur": 5, "tid": 0, "pid": row, "args": {}}
        for row, some in names.items()
        for k, name in enumerate(some)
    ]
    found = read(tmp_path, events)
    assert sorted(map(str, found.spans["kind"])) == ["annotation", "kernel", "memcpy", "op"]
    assert not any("no category" in note.what for note in found.integrity)
    assert found.provenance.process == ""


def test_an_event_that_nothing_explains_is_counted(tmp_path: Path) -> None:
    draw = Drawing().op("aten::mm", 0, 10).span("", "My own part", 10, 20)
    rank = read(tmp_path, draw.events)
    (note,) = (note.what for note in rank.integrity if "category" in note.what)
    assert note.startswith("1 events have no category")


@pytest.mark.parametrize(
    ("call", "category", "device", "maker"),
    [
        ("cudaLaunchKernel", "cuda_runtime", "", "cuda"),
        ("hipLaunchKernel", "cuda_runtime", "", "rocm"),
        ("Launch", "privateuse1_runtime", "", "unknown"),
        ("zeCommandListAppendLaunchKernel", "xpu_runtime", "Intel(R) Data Center GPU Max 1550", "unknown"),
        ("Launch", "privateuse1_runtime", "NVIDIA H100 80GB HBM3", "cuda"),
        ("Launch", "privateuse1_runtime", "AMD Instinct MI300X", "rocm"),
    ],
)
def test_the_maker_of_a_device_is_known_only_where_something_tells_it(
    call: str, category: str, device: str, maker: str
) -> None:
    draw = Drawing(deviceProperties=[{"id": 0, "name": device}] if device else [])
    draw.span(category, call, 0, 5, correlation=1).work("gemm", (10, 20), correlation=1)
    assert draw.rank().provenance.backend == maker
