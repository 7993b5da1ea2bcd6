"""Which folders a recording may go to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from diagnose.capture.folders import Owner, take
from diagnose.capture.run import CannotRecord

OURS = ["manifest.json", "report.html", "report.json", "rank0.graph.json.gz", "rank0.values.json.gz"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def left_by(folder: Path, owner: Owner) -> None:
    """As a process leaves it that is killed before anything has been recorded."""
    (folder / ".work").mkdir(parents=True)
    (folder / ".work" / "owner.json").write_bytes(msgspec.json.encode(owner))
    (folder / ".work" / "plan.json").write_text("{}")
    (folder / "manifest.json").write_text("{}")


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
    with pytest.raises(CannotRecord, match=r"holds a recording\. Name a new folder, or use overwrite"):
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
    with pytest.raises(CannotRecord, match="Another recording is being made"):
        take(tmp_path, overwrite=True)
    assert names(tmp_path) == [".work", "manifest.json"]


def test_what_a_killed_attempt_has_left_goes(tmp_path: Path) -> None:
    left_by(tmp_path, Owner(socket.gethostname(), ended_process()))
    take(tmp_path)
    assert names(tmp_path) == [".work"]
    assert names(tmp_path / ".work") == ["owner.json"]


def test_one_folder_is_taken_once(tmp_path: Path) -> None:
    take(tmp_path / "new")
    with pytest.raises(CannotRecord, match="Another recording is being made"):
        take(tmp_path / "new", overwrite=True)
