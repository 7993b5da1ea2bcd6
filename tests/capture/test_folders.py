"""Which folders a recording may go to, and which commands share one."""

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from diagnose.capture import folders
from diagnose.capture.agent.plan import Part, Plan
from diagnose.capture.folders import Heartbeat, Owner, begun
from diagnose.capture.run import CannotRecord

OURS = ["manifest.json", "report.html", "report.json", "rank0.graph.json.gz", "rank0.values.json.gz"]
BUSY = r"Another command is recording into .*\. Name a new folder, or wait\."


def take(folder: Path, overwrite: bool = False, job: str | None = None, plan: Plan | None = None) -> Part:
    return folders.take(folder, plan or Plan(), job, overwrite)[0]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def left_by(folder: Path, owner: Owner, job: str | None = None) -> Path:
    """As a process leaves it that is killed before anything has been recorded. Returns its sign of life."""
    part = take(folder, job=job)
    (folder / "manifest.json").write_text("{}")
    (part.work / folders.OWNER).write_bytes(msgspec.json.encode(owner))
    return part.work / folders.OWNER


def ended_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_what_an_attempt_without_a_recording_has_left_goes(tmp_path: Path) -> None:
    for name in OURS:
        (tmp_path / name).write_text("left")
    take(tmp_path)
    assert names(tmp_path) == [".work"]


@pytest.mark.parametrize(
    "kept", ["rank0.trace.json.gz", "rank3.detail.json.gz", "rank0.trace.sqlite", "trace.nsys-rep"]
)
def test_a_recording_stays_unless_it_may_be_replaced(tmp_path: Path, kept: str) -> None:
    for name in (*OURS, kept):
        (tmp_path / name).write_text("kept")
    with pytest.raises(
        CannotRecord, match=r"already has a recording\. Name a new folder, or replace it with --overwrite"
    ):
        take(tmp_path)
    assert names(tmp_path) == sorted([*OURS, kept])
    take(tmp_path, overwrite=True)
    assert names(tmp_path) == [".work"]


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json.bak", "rank0.txt", "report"])
def test_files_of_others_are_never_removed(tmp_path: Path, name: str) -> None:
    for one in (*OURS, name):
        (tmp_path / one).write_text("kept")
    with pytest.raises(CannotRecord, match="is not empty"):
        take(tmp_path, overwrite=True)
    assert names(tmp_path) == sorted([*OURS, name])


@pytest.mark.parametrize("owner", [Owner(socket.gethostname(), os.getpid()), Owner("another-machine", 1)])
def test_a_recording_that_may_still_be_made_is_left_alone(tmp_path: Path, owner: Owner) -> None:
    left_by(tmp_path, owner)
    with pytest.raises(CannotRecord, match=BUSY):
        take(tmp_path, overwrite=True)
    assert names(tmp_path) == [".work", "manifest.json"]


def test_what_a_killed_attempt_has_left_goes(tmp_path: Path) -> None:
    before = left_by(tmp_path, Owner(socket.gethostname(), ended_process()))
    part = take(tmp_path)
    assert names(tmp_path) == [".work"]
    assert names(tmp_path / ".work") == sorted(["job.json", part.name])
    assert not before.exists()


def test_a_command_on_another_machine_is_there_as_long_as_it_gives_signs_of_life(tmp_path: Path) -> None:
    sign = left_by(tmp_path, Owner("another-machine", 1))
    silent = time.time() - folders.SILENT_S - 5
    os.utime(sign, (silent, silent))
    beats = Heartbeat(Part.at(sign.parent))
    beats._last_s -= folders.HEARTBEAT_S + 1
    beats.beat()
    with pytest.raises(CannotRecord, match=BUSY):
        take(tmp_path)
    os.utime(sign, (silent, silent))
    beats.beat()  # Too early for the next one.
    take(tmp_path)
    assert not sign.exists()


def test_one_folder_is_taken_once(tmp_path: Path) -> None:
    take(tmp_path / "new")
    with pytest.raises(CannotRecord, match=BUSY):
        take(tmp_path / "new", overwrite=True)


def test_commands_of_one_job_share_a_folder_and_those_of_another_are_refused(tmp_path: Path) -> None:
    first, second = take(tmp_path, job="4711.0"), take(tmp_path, job="4711.0", overwrite=True)
    assert (first.run, first.recording) == (second.run, second.recording)
    assert first.work != second.work
    assert begun(second).first == first.name
    for other in ("4712.0", None):
        with pytest.raises(CannotRecord, match=BUSY):
            take(tmp_path, job=other, overwrite=True)
    with pytest.raises(CannotRecord, match="use different options"):
        take(tmp_path, job="4711.0", plan=Plan(steps=7))


def test_of_commands_that_begin_at_once_one_is_first(tmp_path: Path) -> None:
    """Over what an attempt of the same job has left."""
    left_by(tmp_path, Owner(socket.gethostname(), ended_process()), job="4711.0")
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: folders.take(tmp_path, Plan(), "4711.0"), range(8)))
    assert sum(first for _, first in taken) == 1
    assert len({part.run for part, _ in taken}) == 1
    assert len({part.name for part, _ in taken}) == 8


@pytest.mark.skipif(not folders.started(os.getpid()), reason="only /proc tells")
def test_a_process_that_has_the_number_of_one_that_ended_is_another(tmp_path: Path) -> None:
    """As the first process of a container that starts anew."""
    left_by(tmp_path, Owner(socket.gethostname(), os.getpid(), "1"))
    take(tmp_path)
    with pytest.raises(CannotRecord, match=BUSY):
        take(tmp_path)
