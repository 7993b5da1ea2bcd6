"""Which of the files that a script opens for writing, and of the folders that it makes, are named."""

import string
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from diagnose.capture.agent.script_files import MOST_WRITTEN, Writes
from tests.capture.scripts import environment


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writes:
    """Of a script in the folder `here`, whose recording is in `here/out`."""
    for name in ("here", "out"):
        tmp_path = tmp_path / name
        tmp_path.mkdir()
    monkeypatch.chdir(tmp_path.parent)
    return Writes(Path("out"))


def test_files_inside_are_named_relative_and_others_whole(written: Writes) -> None:
    for path in ("model.pt", Path("logs/a.txt"), b"bytes.bin", "/data/../model.bin", "model.pt"):
        written.note(path)
    assert written.found() == ["model.pt", "logs/a.txt", "bytes.bin", "/model.bin"]


@pytest.mark.parametrize(
    "path",
    [
        "out/rank0.trace.json",
        "__pycache__/train.cpython-311.pyc",
        "/dev/null",
        "/proc/self/oom_score_adj",
        f"{tempfile.gettempdir()}/torchinductor/x.cpp",
        Path.home() / ".cache" / "huggingface" / "x",
        Path(subprocess.__file__).parent / "x.txt",
        3,
        None,
    ],
)
def test_caches_temporary_files_libraries_and_our_own_are_not(written: Writes, path: object) -> None:
    written.note(path)
    assert written.found() == []


def test_a_folder_is_named_until_something_in_it_is(written: Writes) -> None:
    """And one that is there already, as `makedirs(exist_ok=True)` tries to make it."""
    for folder in ("logs", "logs/version_0", "saved", "/data/ckpt", "saved"):
        written.note(folder, folder=True)
    assert written.found() == ["logs/version_0/", "saved/", "/data/ckpt/"]
    written.note("logs/version_0/metrics.csv")
    written.note("logs", folder=True)
    assert written.found() == ["saved/", "/data/ckpt/", "logs/version_0/metrics.csv"]


def test_reading_what_an_earlier_run_wrote_is_noted(written: Writes) -> None:
    """Not what this run wrote itself, and nothing of others."""
    again = Writes(Path("out"), ["model.pt", "logs/a.txt", "/data/b.bin"])
    again.note("model.pt")
    for path in ("model.pt", Path("logs/../logs/a.txt"), b"/data/b.bin", "logs/a.txt", "data.csv", 3):
        again.note_reading(path)
    assert again.reread == ["logs/a.txt", "/data/b.bin"]
    written.note_reading("model.pt")
    assert written.reread == []


def test_so_many_are_enough(written: Writes) -> None:
    names = [f"{letter}.pt" for letter in string.ascii_letters]
    for name in names:
        written.note(name)
    assert written.found() == names[:MOST_WRITTEN]


def test_of_those_that_differ_by_numbers_the_first_is_named(written: Writes) -> None:
    for step in range(20, 2000, 20):
        written.note(f"ckpt/step-{step}", folder=True)
        written.note(f"ckpt/step-{step}/model.pt")
        written.note(f"ckpt/step-{step}/state.json")
    assert written.found() == ["ckpt/step-20/model.pt", "ckpt/step-20/state.json"]
    again = Writes(Path("out"), written.found())
    again.note_reading("ckpt/step-1980/state.json")
    again.note("ckpt/step-2000/model.pt")
    again.note_reading("ckpt/step-2000/model.pt")
    assert again.reread == ["ckpt/step-1980/state.json"]


def test_what_is_opened_for_reading_is_not(tmp_path: Path) -> None:
    """In a process of its own, as nobody can end an audit hook."""
    program = """
import os, sys
from pathlib import Path
from diagnose.capture.agent import script_files
Path("data.csv").write_text("1")
script_files.watch(Path("out"))
open("data.csv").read()
Path("data.csv").read_bytes()
os.close(os.open("data.csv", os.O_RDONLY))
Path("new.txt").write_text("2")
open("more.txt", "a").close()
open("both.txt", "w+").close()
os.close(os.open("low.bin", os.O_WRONLY | os.O_CREAT))
Path("old").mkdir()
os.makedirs("old", exist_ok=True)
os.makedirs("logs/version_0")
Path("old/model.pt").write_text("4")
print(script_files.found())
"""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "['new.txt', 'more.txt', 'both.txt', 'low.bin', 'logs/version_0/', 'old/model.pt']\n"
