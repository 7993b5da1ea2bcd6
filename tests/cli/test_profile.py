"""`diagnose profile` as a command: words that are ours and the script's, refusals, the diagnosis at the end."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.capture.scripts import STEP, command, environment, script
from tests.cli.invoking import refused, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Name the script to run, for example: diagnose profile train.py"),
        (("--",), "Name the command to run after --."),
        (("-m",), "Name the module to run after -m."),
        (("none.py", "-x"), "none.py does not exist. Check the path, or run a command with: diagnose profile -- n"),
        (("--step", "3", "train.py"), "No such option '--step'"),
        (("--steps", "0", "train.py"), "0 is not in the range"),
        (("--steps",), "Option '--steps' requires an argument"),
        (("--", "no-such-command", "x"), "Cannot run no-such-command: No such file or directory. Check its name"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("profile", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_an_own_option_behind_the_script_is_the_script_s_and_told_once() -> None:
    said = "diagnose: --out goes to the script. Put options of diagnose before the script.\n"
    assert run("profile", "none.py", "--out", "x", "-q").stderr.startswith(said)
    assert "goes to the script" not in run("profile", "-q", "none.py", "--out=x").stderr
    assert "goes to the script" not in run("profile", "--", "none", "--out=x").stderr


def test_a_folder_that_is_in_use_is_refused_before_the_run(tmp_path: Path) -> None:
    path = script(tmp_path, "print('ran')\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    refused(run("profile", "-o", tmp_path / "out", path), "out is not empty. Name a new folder.")
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep"


def test_a_folder_is_used_again_after_a_failed_run(tmp_path: Path) -> None:
    path = script(tmp_path, "raise SystemExit(3)\n")
    for _ in range(2):
        done = run("profile", "-o", tmp_path / "out", path)
        assert done.returncode == 3
        assert "not empty" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    path = script(tmp_path, "print('ran')\n")
    tmp_path.chmod(0o500)
    refused(run("profile", "-o", tmp_path / "out", path), "Cannot write to", "Name another folder with --out.")


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    path = script(tmp_path, "print('ran')\n")
    refused(run("profile", "-o", path / "out", path), "Cannot write to", "Name another folder with --out.")


def test_a_recording_ends_in_its_diagnosis(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script(tmp_path, STEP + "for i in range(1000):\n    step()\n")
    words = [word for word in command("-q", "--steps", 3, "train.py") if word != "--no-analyze"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("train.py · CPU only · torch ")
    assert "s/step · " in done.stdout
    (folder,) = (tmp_path / "diagnose-runs").iterdir()
    assert folder.name.startswith("train-2")
    report = json.loads((folder / "report.json").read_text())
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert report["steps"]["recorded"] == 4
    assert report["steps"]["unprofiled_step_time_ns"] > 0
    assert report["provenance"]["manifest"]["complete"]
    again = run("analyze", folder, "--format", "json")
    assert json.loads(again.stdout) | {"provenance": None} == report | {"provenance": None}
