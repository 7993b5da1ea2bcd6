"""Commands that record one job together: one on each machine, or one for each rank. Machines are processes here."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import diagnose
from diagnose.capture.agent.plan import WORK, Plan
from diagnose.capture.run import prepare, run
from diagnose.trace.manifest import Manifest, RankManifest
from tests.capture.scripts import STEP, command, environment, manifest_of, script, started

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

DDP = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(100_000):
    optimizer.zero_grad()
    time.sleep(0.02 if rank == int(os.environ.get("SLOW", -1)) else 0.005)
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
"""

WAITING = DDP.replace(
    "    optimizer.zero_grad()",
    """    while i == 5 and "WAITS" in os.environ and not os.path.exists("go-on"):
        time.sleep(0.05)
    optimizer.zero_grad()""",
)
"""In the job whose environment says so all ranks wait before they are recorded."""

APART = """
import os, sys, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
parameter = torch.zeros(8, requires_grad=True)
optimizer = torch.optim.SGD([parameter], lr=0.1)
for i in range(int(sys.argv[1])):
    parameter.sum().backward()
    optimizer.step()
    time.sleep(0.01)
    while rank == 1 and i == int(sys.argv[2]) and not os.path.exists("others-ended"):
        time.sleep(0.05)
"""
"""Ranks that need not wait for each other: in rank 1 step argv[2] takes until all others have ended."""


@dataclass(frozen=True)
class Ended:
    """How several commands of a job ended, in their order."""

    codes: list[int]
    said: list[str]


def launcher(*words: object) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *map(str, words)]


def node(number: int, port: int, ranks: int = 2) -> list[str]:
    where = ("--nnodes", 2, "--node-rank", number, "--nproc-per-node", ranks, "--master-addr", "127.0.0.1")
    return launcher(*where, "--master-port", port, "train.py")


def ended(*children: subprocess.Popen[str], timeout: float = 600) -> Ended:
    said = [child.communicate(timeout=timeout)[1] for child in children]
    return Ended([child.returncode for child in children], said)


def first_steps(ranks: tuple[RankManifest, ...]) -> set[int | None]:
    return {rank.timing.first_step if rank.timing is not None else None for rank in ranks}


def test_a_command_on_each_machine_and_one_recording(tmp_path: Path, free_port: int) -> None:
    script(tmp_path, DDP)
    words = command("-o", "out", "--steps", 3)
    other, first = (started(tmp_path, *words, "--", *node(number, free_port)) for number in (1, 0))
    done = ended(first, other)
    assert done.codes == [0, 0], done.said
    whole = manifest_of(tmp_path / "out")
    assert [(rank.rank, rank.node, rank.peers) for rank in whole.ranks] == [(0, 0, 2), (1, 0, 2), (2, 1, 2), (3, 1, 2)]
    assert (whole.complete, whole.notes) == (True, ())
    assert len(first_steps(whole.ranks)) == 1
    assert done.said[1].splitlines()[-1] == "diagnose: the command of rank 0 will complete the recording in out"
    assert "the interactive report is" in done.said[0]
    assert not (tmp_path / "out" / WORK).exists()
    assert len(diagnose.analyze(tmp_path / "out").provenance.sources) == 4


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


@pytest.mark.exhaustive
def test_a_command_for_each_rank_as_srun_starts_them(tmp_path: Path, free_port: int) -> None:
    script(tmp_path, DDP)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port, "WORLD_SIZE": 2}
    step = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    children = [
        started(
            tmp_path,
            *command("-o", "out", "--steps", 3, "--no-analyze", "train.py"),
            **where,
            **step,
            RANK=rank,
            SLURM_PROCID=rank,
            SLURM_NODEID=rank,
            SLURM_LOCALID=0,
        )
        for rank in (1, 0)
    ]
    done = ended(*children)
    assert done.codes == [0, 0], done.said
    whole = manifest_of(tmp_path / "out")
    assert [(one.rank, one.node, one.peers) for one in whole.ranks] == [(0, 0, 1), (1, 1, 1)]
    assert whole.complete
    assert len(first_steps(whole.ranks)) == 1
    assert [said.count("recording") for said in done.said] == [1, 3], done.said  # Only rank 0's tells the course.


@pytest.mark.exhaustive
def test_machines_that_share_no_folder(tmp_path: Path, free_port: int) -> None:
    """Each has a recording of its own ranks, of the same steps; together they are the job's."""
    script(tmp_path, DDP)
    children = [
        started(
            tmp_path, *command("-o", f"out{number}", "--steps", 3, "--no-analyze", "--"), *node(number, free_port, 1)
        )
        for number in (0, 1)
    ]
    done = ended(*children)
    assert done.codes == [0, 0], done.said
    assert not any("waiting up to" in said for said in done.said)
    parts = [manifest_of(tmp_path / f"out{number}") for number in (0, 1)]
    assert [[rank.rank for rank in part.ranks] for part in parts] == [[0], [1]]
    assert [part.notes[0].partition(" left")[0] for part in parts] == ["Rank 1", "Rank 0"]
    assert len(first_steps((*parts[0].ranks, *parts[1].ranks))) == 1
    job = diagnose.analyze(tmp_path / "out0", tmp_path / "out1").job
    assert len(job.ranks) == 2


def test_a_second_job_in_the_same_folder_is_refused_and_the_first_is_whole(tmp_path: Path) -> None:
    script(tmp_path, WAITING)
    words = command("-o", "out", "--steps", 3, "--no-analyze", "--")
    first = started(tmp_path, *words, *launcher("--standalone", "--nproc-per-node", 2, "train.py"), WAITS=1)
    while not (tmp_path / "out" / WORK / "job.json").exists():
        time.sleep(0.05)
    refused = ended(started(tmp_path, *words, *launcher("--standalone", "--nproc-per-node", 3, "train.py")))
    assert refused.codes == [2]
    assert refused.said[0].startswith("Error: Another command is recording into ")
    (tmp_path / "go-on").touch()
    assert ended(first).codes == [0]
    assert [(rank.rank, rank.world_size) for rank in manifest_of(tmp_path / "out").ranks] == [(0, 2), (1, 2)]


@pytest.mark.exhaustive
def test_ranks_of_another_job_that_bears_the_same_name_write_nothing(tmp_path: Path, free_port: int) -> None:
    """Rank 0 of the second finds its place taken, and tells its other ranks, of which the first job has fewer."""
    script(tmp_path, WAITING)
    same = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "same", "MASTER_PORT": free_port}
    words = command("-o", "out", "--steps", 3, "--no-analyze", "--")
    first = started(tmp_path, *words, *launcher("--standalone", "--nproc-per-node", 2, "train.py"), **same, WAITS=1)
    while not (tmp_path / "out" / WORK / "rank0.claim").exists():
        time.sleep(0.02)
    second = started(tmp_path, *words, *launcher("--standalone", "--nproc-per-node", 3, "train.py"), **same)
    while (
        "diagnose: another run is recording in this folder, so this run is not recorded."
        not in second.stderr.readline()
    ):
        assert second.poll() is None
    (tmp_path / "go-on").touch()
    assert ended(first).codes == [0]
    second.terminate()
    (said,) = ended(second).said
    assert said.splitlines()[-1] == f"Error: {tmp_path / 'out'} is in use by another run. Name a new folder."
    whole = manifest_of(tmp_path / "out")
    assert [(rank.rank, rank.world_size) for rank in whole.ranks] == [(0, 2), (1, 2)]
    assert not list((tmp_path / "out").glob("rank2.*"))


@pytest.mark.exhaustive
def test_a_second_attempt_of_an_elastic_launcher_is_left_alone(tmp_path: Path) -> None:
    """Its first attempt fails before anything is recorded; what counts is that the training goes on and is told."""
    fails = 'sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)\n'
    script(tmp_path, STEP + "for i in range(30):\n    step()\n" + fails)
    words = command("-o", "out", "--no-analyze", "--")
    again = launcher("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "train.py")
    done = ended(started(tmp_path, *words, *again))
    assert done.codes == [2], done.said
    assert "2 more processes used a rank that was already recorded. They are not included." in done.said[0]


def recorded(folder: Path, plan: Plan, *words: object) -> Manifest:
    """What `diagnose profile` records of a command with such a plan."""
    given = [str(word) for word in words]
    here, before = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    os.environ.update(environment())
    try:
        return run(given, prepare(folder / "out", plan, given), plan, lambda what: None).manifest
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.exhaustive
def test_of_many_ranks_some_and_the_slowest_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With "auto" of 3 ranks, where 2 were many."""
    script(tmp_path, DDP)
    monkeypatch.setenv("SLOW", "2")
    words = launcher("--standalone", "--nproc-per-node", 3, "train.py")
    whole = recorded(tmp_path, Plan(steps=2, most_ranks=2), *words)
    assert [(rank.rank, rank.recorded, rank.trace is not None) for rank in whole.ranks] == [
        *((0, True, True), (1, False, False), (2, True, True))
    ]
    assert whole.complete
    assert all(rank.unprofiled is not None and rank.ended == "recorded" for rank in whole.ranks)
    assert len(first_steps(tuple(rank for rank in whole.ranks if rank.recorded))) == 1
    notes = {note.what: note.severity for note in diagnose.analyze(tmp_path / "out").integrity}
    assert notes["Rank 1 was timed but not recorded."].value == "note"
    assert not any("left no trace" in one for one in notes)


@pytest.mark.exhaustive
def test_ranks_that_are_named_are_recorded_without_rank_0(tmp_path: Path) -> None:
    script(tmp_path, DDP)
    words = launcher("--standalone", "--nproc-per-node", 2, "train.py")
    whole = recorded(tmp_path, Plan(steps=2, ranks="1"), *words)
    assert [(rank.rank, rank.trace is not None) for rank in whole.ranks] == [(0, False), (1, True)]
    assert whole.complete


@pytest.mark.exhaustive
def test_a_rank_that_hangs_before_the_recording_holds_nobody_up(tmp_path: Path) -> None:
    """The others record and end without it; it goes on to its own end."""
    script(tmp_path, APART)
    words = [sys.executable, "-c", STARTED, "train.py", "1000", "5"]
    whole = recorded(tmp_path, Plan(steps=2, patience_s=1.0), *words)
    assert [(rank.rank, rank.trace is not None, rank.ended) for rank in whole.ranks] == [
        *((0, True, "recorded"), (1, False, "recorded"), (2, True, "recorded"))
    ]
    assert "Only 2 of 3 ranks completed the recording." in whole.ranks[0].notes
    assert whole.ranks[1].notes == ("Recording stopped: the other ranks are unreachable.",)
    assert not whole.complete


def test_a_first_rank_that_is_killed_before_the_recording_holds_nobody_up(tmp_path: Path) -> None:
    """With it goes the store, so that the others, once they have begun, cannot agree: they train on to their end."""
    wait = "    while i == 5 and rank == 0 and not (os.path.exists('1') and os.path.exists('2')): time.sleep(0.01)\n"
    kill = "    if i == 5 and rank == 0: os.kill(os.getpid(), 9)\n"
    script(tmp_path, APART + "    open(str(rank), 'w').close()\n" + wait + kill)
    whole = recorded(tmp_path, Plan(steps=2), sys.executable, "-c", STARTED, "train.py", "100", "-1")
    assert [(rank.rank, rank.ended) for rank in whole.ranks] == [(0, None), (1, "recorded"), (2, "recorded")]
    assert [rank.steps_made for rank in whole.ranks[1:]] != [None, None]
    for rank in whole.ranks[1:]:
        assert rank.notes == ("Recording stopped: the other ranks are unreachable.",)


@pytest.mark.exhaustive
def test_a_rank_that_cannot_write_ends_with_the_others(tmp_path: Path) -> None:
    """Its file's name is taken. Would it leave at once, the other would fail in its next all-reduce."""
    script(tmp_path, DDP.replace("for i in", "if rank == 1: os.mkdir('out/rank1.trace.json.gz')\nfor i in"))
    done = ended(
        started(
            tmp_path,
            *command("-o", "out", "--steps", 2, "--no-analyze", "--"),
            *launcher("--standalone", "--nproc-per-node", 2, "train.py"),
        )
    )
    assert done.codes == [0], done.said
    first, second = manifest_of(tmp_path / "out").ranks
    assert (first.trace, second.trace) == ("rank0.trace.json.gz", None)
    assert "IsADirectoryError: " in second.notes[0]
    assert first.steps_made == second.steps_made


def test_a_rank_that_is_killed_while_recording_leaves_the_others_theirs(tmp_path: Path) -> None:
    kill = "    if rank == 1 and i > 20 and os.path.exists('out/rank1.trace.json.gz'): os.kill(os.getpid(), 9)\n"
    script(tmp_path, APART + kill)
    words = [sys.executable, "-c", STARTED, "train.py", "3000", "-1"]
    whole = recorded(tmp_path, Plan(steps=2, patience_s=2.0), *words)
    assert [(rank.rank, rank.trace, rank.ended) for rank in whole.ranks] == [
        *((0, "rank0.trace.json.gz", "recorded"), (1, "rank1.trace.json.gz", None)),
        (2, "rank2.trace.json.gz", "recorded"),
    ]
    assert "rank1 ended without a message: killed, or exited with os._exit." in whole.notes
    assert len(diagnose.analyze(tmp_path / "out").provenance.sources) == 3


STARTED = """
import os, subprocess, sys, socket
with socket.socket() as some:
    some.bind(("127.0.0.1", 0))
    port = some.getsockname()[1]
given = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3"}
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env={**given, "RANK": str(rank)}) for rank in range(3)]
for one in ranks[::2]:
    one.wait()
open("others-ended", "w").close()
ranks[1].wait()
"""
"""Starts three ranks; unlike torchrun it does not end the others if one is killed."""


AHEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
  int (*real)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int done = real(id, now);
  if (id == CLOCK_REALTIME) now->tv_sec += 30;
  return done;
}
"""
"""A machine whose clock is 30 s ahead."""


@pytest.fixture
def ahead(tmp_path: Path) -> Path:
    """A library that puts the clock ahead; skips where no machine can be played."""
    (tmp_path / "ahead.c").write_text(AHEAD)
    library = tmp_path / "ahead.so"
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "--uts", "true"]
    build = ["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "ahead.c"), "-ldl"]
    for words in (namespace, build):
        if shutil.which(words[0]) is None or subprocess.run(words, capture_output=True).returncode:
            pytest.skip(f"{words[0]} does not work here")
    return library


@pytest.mark.exhaustive
def test_machines_are_told_apart_and_their_clocks_aligned(tmp_path: Path, free_port: int, ahead: Path) -> None:
    """Both are called alike, as virtual machines may be; one has a clock that is 30 s ahead."""
    script(tmp_path, DDP)
    children = []
    for number in (0, 1):
        (tmp_path / f"boot{number}").write_text(f"{number}2345678-1111-2222-3333-444455556666")
        play = f"mount --bind boot{number} /proc/sys/kernel/random/boot_id && hostname same && exec " + '"$@"'
        machine = ["unshare", "--user", "--map-root-user", "--mount", "--uts", "sh", "-c", play, "sh"]
        words = [*machine, *command("-o", "out", "--steps", 3, "--no-analyze", "--"), *node(number, free_port, 1)]
        children.append(started(tmp_path, *words, **({"LD_PRELOAD": ahead} if number else {})))
    done = ended(*children)
    assert done.codes == [0, 0], done.said
    first, second = manifest_of(tmp_path / "out").ranks
    assert (first.node, second.node) == (0, 1)
    assert None not in (first.machine, second.machine)
    assert first.machine != second.machine
    begins = [first_step_us(tmp_path / "out" / f"rank{rank}.trace.json.gz") for rank in (0, 1)]
    assert begins[1] - begins[0] > 20_000_000
    job = diagnose.analyze(tmp_path / "out").job
    assert job.clocks == 2
    assert all(one.wait_ns + one.transfer_ns < 10_000_000_000 for one in job.ranks)


def first_step_us(trace: Path) -> float:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return min(event["ts"] for event in events if str(event.get("name", "")).startswith("ProfilerStep#"))
