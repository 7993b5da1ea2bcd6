"""Which file is which rank, and what a path may stand for."""

import gzip
import os
from pathlib import Path

import pytest

from diagnose.source import ranks
from diagnose.source.base import InputError
from diagnose.trace.model import Run
from tests.drawing import Drawing


def trace(path: Path, rank: int | None = None, world: int | None = None, **header: object) -> Path:
    info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}} if rank is not None else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    return Drawing(**info, **header).op("aten::mm", 0, 5).write(path)


def placed(run: Run) -> dict[int, str]:
    return {rank.index: Path(rank.provenance.path).name for rank in run.ranks}


def notes(run: Run) -> str:
    return " ".join(note.what for note in run.integrity)


def test_what_a_file_says_comes_before_its_name_and_the_name_before_the_order(tmp_path: Path) -> None:
    trace(tmp_path / "a.json")
    trace(tmp_path / "rank7.json", rank=1, world=4)
    trace(tmp_path / "worker3.pt.trace.json")
    trace(tmp_path / "z.json")
    run = ranks.load([tmp_path])
    assert placed(run) == {0: "a.json", 1: "rank7.json", 3: "worker3.pt.trace.json", 2: "z.json"}


@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank12.json", 12), ("rank_3.trace.json", 3), ("host_worker-5.json", 5), ("run.rank0.json", 0), ("GPU2.json", 2)],
)
def test_ranks_in_names(tmp_path: Path, name: str, rank: int) -> None:
    trace(tmp_path / name)
    trace(tmp_path / "rank99.json")
    assert placed(ranks.load([tmp_path]))[rank] == name


def test_two_files_of_one_rank_are_named_and_one_is_used(tmp_path: Path) -> None:
    trace(tmp_path / "first.json", rank=0, world=1)
    trace(tmp_path / "second.json", rank=0, world=1)
    run = ranks.load([tmp_path])
    assert placed(run) == {0: "first.json"}
    assert "second.json (rank 0, as first.json)" in notes(run)


@pytest.mark.parametrize(
    ("given", "world", "said"),
    [
        ((0, 2, 3), 5, "The ranks given are 0, 2, 3 of 5."),
        ((2,), 8, "The only rank given is 2 of 8."),
        ((0, 1), 2, ""),
        ((0,), (1 << 62) - 1, f"The only rank given is 0 of {(1 << 62) - 1}."),
    ],
)
def test_missing_ranks_are_named(tmp_path: Path, given: tuple[int, ...], world: int, said: str) -> None:
    for rank in given:
        trace(tmp_path / f"{rank}.json", rank=rank, world=world)
    assert notes(ranks.load([tmp_path])) == said


def test_folders_globs_and_files_in_natural_order_each_once(tmp_path: Path) -> None:
    names = ["b/t10.json", "b/t2.json", "a/t1.json", "b/t1.json.gz"]
    for name in names[:3]:
        trace(tmp_path / name)
    (tmp_path / names[3]).write_bytes(gzip.compress((tmp_path / "a/t1.json").read_bytes()))
    found = ranks.find([str(tmp_path / "a" / "*.json"), tmp_path / "b", tmp_path / "b" / "t2.json"])
    names_found = [file.path.relative_to(tmp_path).as_posix() for file in found]
    assert names_found == ["a/t1.json", "b/t1.json.gz", "b/t2.json", "b/t10.json"]
    assert [file.named for file in found] == [True, False, True, False]


def test_what_is_no_trace_by_name_is_not_looked_at(tmp_path: Path) -> None:
    trace(tmp_path / "rank0.trace.json")
    for name in ("manifest.json", "report.json", "rank0.detail.json", "rank0.json.tmp", "notes.txt", "model.pt"):
        (tmp_path / name).write_text("no trace at all")
    assert [file.path.name for file in ranks.find([tmp_path])] == ["rank0.trace.json"]


def test_a_bad_file_in_a_folder_is_noted_and_the_rest_used(tmp_path: Path) -> None:
    trace(tmp_path / "rank0.json")
    (tmp_path / "rank1.json").write_text("{}")
    run = ranks.load([tmp_path])
    assert placed(run) == {0: "rank0.json"}
    assert "rank1.json is JSON, but not a profiler trace" in notes(run)


@pytest.mark.parametrize("given", ["nothing.json", "no*.json", "empty"])
def test_paths_that_lead_nowhere(tmp_path: Path, given: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"does not exist|holds no trace"):
        ranks.find([tmp_path / given])


def test_a_folder_of_bad_files_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(InputError, match="no traceEvents"):
        ranks.load([tmp_path])


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "loop.json"
    path.symlink_to(path)
    with pytest.raises(InputError, match=r"loop\.json"):
        ranks.load([path])


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="is a pipe or a device"):
        ranks.load([tmp_path / "pipe.json"])


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        ranks.read(tmp_path)


def test_a_path_too_long_for_the_system_is_refused() -> None:
    with pytest.raises(InputError, match=r"Cannot read x+: File name too long\."):
        ranks.find(["x" * 5000])


MINUTE_NS = 60_000_000_000
NOVEMBER_NS = 1_795_255_200_000_000_000  # 2026-11-21 10:00 UTC


def at(path: Path, minute: int, rank: int | None = None, world: int | None = None, **header: object) -> Path:
    """A trace of five microseconds that begins so many minutes after ten."""
    return trace(path, rank, world, baseTimeNanoseconds=NOVEMBER_NS + minute * MINUTE_NS, **header)


def refused(*paths: Path) -> str:
    with pytest.raises(InputError) as error:
        ranks.load(paths)
    return str(error.value)


def test_jobs_of_different_world_sizes_are_not_one(tmp_path: Path) -> None:
    for rank in (0, 1):
        at(tmp_path / "a" / f"rank{rank}.json", 0, rank, world=2)
    for rank in (2, 3):
        at(tmp_path / "b" / f"rank{rank}.json", 0, rank, world=4)
    said = refused(tmp_path)
    assert "recordings belong to 2 jobs" in said
    assert f"{tmp_path}/a/rank0.json and 1 more (world size 2, 2026-11-21 10:00 UTC)" in said
    assert f"{tmp_path}/b/rank2.json and 1 more (world size 4, 2026-11-21 10:00 UTC)" in said
    assert said.endswith("Analyse one job at a time.")
    assert len(ranks.load([tmp_path / "a"]).ranks) == 2


def test_recordings_that_never_ran_at_the_same_time_are_not_one_job_s(tmp_path: Path) -> None:
    at(tmp_path / "no_workers.json", 0)
    at(tmp_path / "workers.json", 3)
    assert "(2026-11-21 10:00 UTC)" in refused(tmp_path)


def test_clocks_of_hosts_may_differ_by_hours_where_each_rank_is_there_once(tmp_path: Path) -> None:
    at(tmp_path / "rank0.json", 0, 0, world=3)
    at(tmp_path / "rank1.json", 1, 1, world=3)
    assert len(ranks.load([tmp_path]).ranks) == 2
    at(tmp_path / "rank2.json", 140, 2, world=3)
    found = ranks.load([tmp_path])
    assert len(found.ranks) == 3
    assert [note.what for note in found.integrity] == ["By their clocks the ranks ran 2 h 19 min apart."]
    (tmp_path / "rank1.json").unlink()
    assert "recordings belong to 2 jobs" in refused(tmp_path)


def test_ranks_that_occur_in_several_folders_are_of_several_jobs(tmp_path: Path) -> None:
    """Of the one job two ranks of four were kept, of the other all."""
    for rank in (0, 1):
        at(tmp_path / "a" / f"rank{rank}.json", 0, rank, world=4)
    for rank in range(4):
        at(tmp_path / "b" / f"rank{rank}.json", 0, rank, world=4)
    assert "recordings belong to 2 jobs" in refused(tmp_path)


def test_ranks_of_one_job_may_lie_in_a_folder_each(tmp_path: Path) -> None:
    for rank in range(4):
        at(tmp_path / f"host{rank}" / "trace.json", 0, rank, world=4)
    assert len(ranks.load([tmp_path]).ranks) == 4


def test_gpus_of_two_makers_are_of_two_jobs(tmp_path: Path) -> None:
    for name, runtime, header in (("a", "cudaLaunchKernel", {}), ("b", "hipLaunchKernel", {"hip_runtime_version": 1})):
        draw = Drawing(baseTimeNanoseconds=NOVEMBER_NS, **header).launch("k", (0, 1), (2, 5), api=runtime)
        draw.write(tmp_path / f"{name}.json")
    assert "recordings belong to 2 jobs" in refused(tmp_path)
