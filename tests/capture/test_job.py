"""Which commands record the same job."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from diagnose.capture.agent import board as boards
from diagnose.capture.agent import place
from diagnose.capture.agent.board import Board, StoreBoard, Words
from diagnose.capture.agent.plan import WORK
from diagnose.capture.agent.recordings import Recording
from diagnose.capture.folders import of

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
PODS = {"WORLD_SIZE": "2", "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"}


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ("python train.py", {}),
        ("torchrun --nproc-per-node 8 train.py", {}),
        ("torchrun --nnodes 1 --master-addr h train.py", {}),
        ("torchrun --standalone --nnodes=1 train.py", {}),
        ("srun torchrun --nnodes 2 train.py", {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}),  # a batch script
        ("python train.py", {**STEP, "SLURM_STEP_NUM_TASKS": "1"}),
        ("python train.py", {**PODS, "WORLD_SIZE": "1"}),
        ("python train.py", {"WORLD_SIZE": "many"}),
    ],
)
def test_a_command_that_records_alone(command: str, environment: dict[str, str]) -> None:
    assert of(command.split(), environment) is None


@pytest.mark.parametrize(
    ("first", "second", "environments"),
    [
        ("torchrun --nnodes 2 --node-rank 0 --master-addr h", "torchrun --nnodes 2 --node-rank 1 --master-addr h", {}),
        ("torchrun --nnodes=1:4 --rdzv-id=a", "torchrun --nnodes=1:4 --rdzv_id a", {}),
        ("accelerate launch --num_machines 2 --main_process_ip h", "x --num_machines 2 --main_process_ip h", {}),
        ("python a.py", "python a.py --local-rank 1", STEP),
        ("torchrun a.py", "torchrun b.py", PODS),
        ("python a.py", "python a.py", {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prte-1@1"}),
        ("torchrun a.py", "torchrun a.py", {"PET_NNODES": "2", "PET_RDZV_ID": "x"}),
    ],
)
def test_commands_of_one_job_say_the_same(first: str, second: str, environments: dict[str, str]) -> None:
    found = of(first.split(), environments)
    assert found is not None
    assert found == of(second.split(), environments)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (STEP, {**STEP, "SLURM_STEP_ID": "1"}),
        (STEP, {**STEP, "SLURM_RESTART_COUNT": "1"}),
        (PODS, {**PODS, "MASTER_ADDR": "other-master-0"}),
    ],
)
def test_other_jobs_say_something_else(first: dict[str, str], second: dict[str, str]) -> None:
    assert of(["python"], first) != of(["python"], second)


@pytest.mark.parametrize("entered", [False, True])
@pytest.mark.parametrize("interrupted", ["__enter__", "__exit__"])
def test_what_was_recorded_is_kept_when_marking_a_step_is_interrupted(
    interrupted: str, entered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / WORK).mkdir()
    recording = Recording(detailed=False)
    recording.begin(0)
    torch.ones(8).sum()
    recording.mark(1)
    original = getattr(torch.profiler.record_function, interrupted)

    def method(*args: object) -> object:
        if not entered:
            signal.raise_signal(signal.SIGINT)
        done = original(*args)
        signal.raise_signal(signal.SIGINT)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(torch.profiler.record_function, interrupted, method)
        with pytest.raises(KeyboardInterrupt):
            recording.mark(2)
    recording.end(tmp_path / "trace.json.gz", tmp_path / WORK)
    with gzip.open(tmp_path / "trace.json.gz") as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert names.count("ProfilerStep#0") == 1
    assert "aten::sum" in names


distributed: Any = pytest.importorskip("torch.distributed")


def folder_boards(tmp_path: Path) -> Callable[[], Words]:
    return lambda: Board(tmp_path)


def store_boards(tmp_path: Path) -> Callable[[], Words]:
    """Each as the first of its process, so that they mean the same words."""
    store = distributed.HashStore()

    def made() -> Words:
        boards._recordings = 0
        return StoreBoard(store, 2)

    return made


@pytest.fixture(params=[folder_boards, store_boards])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Words]:
    made: Callable[[], Words] = request.param(tmp_path)
    return made


def test_what_one_says_another_hears(board: Callable[[], Words]) -> None:
    first, second = board(), board()
    assert second.read("timing") is None
    first.post("timing", step=12, name="x")
    time.sleep(second.delay_s)
    assert second.read("timing") == first.read("timing") == {"step": 12, "name": "x"}


def test_the_rank_with_the_greatest_value_is_found(board: Callable[[], Words]) -> None:
    first, second = board(), board()
    assert first.greatest("own") is None
    for rank, value in ((3, 50), (0, 10), (7, 90), (5, 90), (1, 20)):
        (first if rank % 2 else second).offer("own", rank, value)
    assert first.greatest("own") in (5, 7)
    assert second.greatest("own") == first.greatest("own")


def test_processes_that_have_come_are_counted() -> None:
    store, before = distributed.HashStore(), boards._recordings
    first = StoreBoard(store, 2)
    boards._recordings = before
    second = StoreBoard(store, 2)
    assert first.counted("done") == 0
    first.count("done")
    second.count("done")
    assert (first.counted("done"), second.counted("done")) == (2, 2)


def test_words_of_the_recording_before_are_not_heard() -> None:
    store = distributed.HashStore()
    StoreBoard(store, 2).post("end", step=1, steps=0)
    assert StoreBoard(store, 2).read("end") is None


def test_no_thread_of_ours_is_left_while_nothing_is_asked() -> None:
    words, before = StoreBoard(distributed.HashStore(), 2), set(threading.enumerate())
    words.post("timing", step=1)
    (ours,) = set(threading.enumerate()) - before
    words.rest()
    ours.join(10)
    assert not ours.is_alive()
    assert words.read("timing") == {"step": 1}


SERVER = (
    "import torch.distributed as d, sys, time; s = d.TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False)\n\
print(s.port, flush=True); time.sleep(600)"
)


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that keeps a store, and its port."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    yield process, int(process.stdout.readline())
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_store_that_hangs_or_dies_is_not_asked_again(
    server: tuple[subprocess.Popen[str], int], how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "ANSWER_S", 60.0)
    process, port = server
    words = StoreBoard(distributed.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False), 2)
    words.post("timing", step=1)
    assert not words.lost
    os.kill(process.pid, how)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # It may answer until then.
    monkeypatch.setattr(boards, "ANSWER_S", 1.0)
    assert words.read("end") is None
    assert words.lost
    monkeypatch.setattr(boards, "ANSWER_S", threading.TIMEOUT_MAX)  # Asked once more, it would hang.
    assert words.read("end") is None
    assert words.read("timing") == {"step": 1}


def test_ranks_that_are_named() -> None:
    assert place.named("all", 4) == {0, 1, 2, 3}
    assert place.named("auto", place.MOST) == set(range(place.MOST))
    assert place.named("auto", place.MOST + 1) is None
    assert place.named("0,1, 8-15", 10) == {0, 1, 8, 9}
    assert place.named("12", 10) == set()


@pytest.mark.parametrize("text", ["", "some", "1-", "-1", "1,,2", "1-2-3", "²"])
def test_what_names_no_ranks_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"are not ranks\. Write auto, all, or numbers such as 0,1,8-15\."):
        place.named(text, 4)


GROUPS = """
import torch.distributed as d
from torch.testing._internal.distributed.fake_pg import FakeStore
from diagnose.capture.agent import chosen
d.init_process_group("fake", rank=0, world_size=1024, store=FakeStore())
mesh = d.init_device_mesh("cpu", (16, 8, 8), mesh_dim_names=("pp", "dp", "tp"))
print(*sorted(place.of_groups(0, 1024)))
"""


@pytest.mark.slow
def test_of_a_large_job_each_group_of_rank_0_is_recorded() -> None:
    """16 stages, 8 replicas, 8 shards: the stages of rank 0, its replicas, its shards, and of all the first 8."""
    done = subprocess.run([sys.executable, "-c", GROUPS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = {*range(8), *(8 * replica for replica in range(8)), *(64 * stage for stage in range(16))}
    assert set(map(int, done.stdout.split())) == expected
