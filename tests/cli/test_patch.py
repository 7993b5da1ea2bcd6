"""`diagnose patch` as a command: a diff on standard output that applies, notes on standard error, sentences."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture.scripts import ROOT, environment, plain, profile, script
from tests.cli.invoking import refused
from tests.drawing import Drawing
from tests.patches.patching import line_of

pytestmark = pytest.mark.slow

CASES = ROOT / "sample_traces" / "planted"

LOADER = """
import gc
import time
import torch
from torch.utils.data import DataLoader as DL, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Stored(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((64,), index / 320), index % 10


def main():
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DL(
        Stored(),
        batch_size=16,  # few
    )
    for epoch in range(6):
        for number, (rows, labels) in enumerate(loader):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
            gc.collect()
    print(loader.num_workers, number)


if __name__ == "__main__":
    main()
"""
"""Loads in the training process, and collects garbage in every step."""


def patched(folder: Path, *words: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "diagnose", "patch", *map(str, words)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        check=False,
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with train.py and its recording, out."""
    folder = tmp_path_factory.mktemp("recorded")
    assert profile(folder, "--warmup", 5, "--no-analyze", script(folder, LOADER).name).code == 0
    return folder


@pytest.fixture
def job(recorded: Path, tmp_path: Path) -> Path:
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_the_diff_applies_and_the_script_runs_as_patched(job: Path) -> None:
    done = patched(job, "out", "--fix", "garbage_collection", "--fix", "dataloader_starvation")
    assert done.returncode == 0, done.stderr
    subprocess.run(["git", "apply", "-"], cwd=job, input=done.stdout, check=True)
    assert (job / "train.py").read_text() == LOADER.replace(
        "batch_size=16,  # few\n", "batch_size=16,  # few\n        num_workers=1,\n"
    ).replace("            gc.collect()\n", "            if number % 500 == 0:\n                gc.collect()\n")
    ran = subprocess.run([sys.executable, "train.py"], cwd=job, env=environment(), capture_output=True, check=True)
    assert ran.stdout == b"1 19\n"
    notes = done.stderr.decode()
    assert "1. garbage_collection\n   fix        Move `gc.collect()` out" in notes
    assert "   changes    train.py:32: gc.collect() if number % 500 == 0\n" in notes
    assert re.search(r"^\d\. dataloader_starvation$", notes, re.MULTILINE)
    assert f"   changes    train.py:{line_of(LOADER, 'loader = DL(')}: DataLoader(num_workers=1)\n" in notes
    assert notes.endswith("The diff has 2 fixes in 1 file.\n")


def test_the_recording_knows_its_files_and_a_changed_one_is_not_written(job: Path) -> None:
    (source,) = json.loads((job / "out" / "manifest.json").read_text())["sources"]
    assert (Path(source["file"]).name, source["script"]) == ("train.py", True)
    assert source["sha256"] == hashlib.sha256(LOADER.encode()).hexdigest()
    before = LOADER.replace("# few", "# many")
    (job / "train.py").write_text(before)
    done = patched(job, "out", "--write")
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.endswith(
        b"Error: train.py has changed since the recording. Nothing was written."
        b" Record again, or apply the diff by hand.\n"
    )
    assert (job / "train.py").read_text() == before


@pytest.mark.exhaustive
def test_what_is_written_is_the_diff(job: Path) -> None:
    done = patched(job, "out", "--fix", "dataloader_starvation", "--write", "--output", "fixes.diff", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (job / "train.py").read_text() == LOADER.replace("# few\n", "# few\n        num_workers=1,\n")
    subprocess.run(["git", "apply", "--reverse", "fixes.diff"], cwd=job, check=True)
    assert (job / "train.py").read_text() == LOADER
    again = patched(job, "out", "--fix", "9")
    assert b"Error: --fix 9 names no finding of this run. There are: 1 garbage_coll" in again.stderr


def test_the_page_shows_what_a_sample_gives(tmp_path: Path) -> None:
    case = CASES / "mixed" / "two_faults_between_ranks"
    shutil.copytree(case / "medium", tmp_path / "medium")
    shutil.copy(case / "make.py", tmp_path)
    os.utime(tmp_path / "make.py", (0, 0))
    done = patched(tmp_path, "medium")
    page = (ROOT / "docs" / "patching.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^```(text|diff)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    assert done.stderr.decode() == shown["text"]
    assert done.stdout.decode() == shown["diff"]
    subprocess.run(["git", "apply", "--check", "-"], cwd=tmp_path, input=done.stdout, check=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("case", "switch", "bad", "good"),
    [
        ("optimizer/optimizer_one_by_one", "run.fixed)", "False)", "True)"),
        ("optimizer/gradients_filled_with_zeros", "set_to_none=run.fixed", "set_to_none=False", "set_to_none=True"),
        ("synchronisation/anomaly_detection_left_on", "not run.fixed", "True", "False"),
        ("data_loading/one_worker_too_few", "4 if run.fixed else 1", "1", "2"),
        ("data_loading/loader_waits_for_storage", "num_workers=workers", "num_workers=0", "num_workers=1"),
    ],
)
def test_a_planted_fault_is_fixed_as_its_switch_fixes_it(
    tmp_path: Path, case: str, switch: str, bad: str, good: str
) -> None:
    """As the case is written the value comes from its switch, and is left to the user; with the fault in its place, it
    is patched to the text that the switch stands for. Loaders get as many workers as the diagnosis says."""
    text = (CASES / case / "make.py").read_text()
    assert text.count(switch) == 1
    (tmp_path / "make.py").write_text(text)
    done = patched(tmp_path, CASES / case / "medium", "--fix", "1")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b" comes from `" in done.stderr
    (tmp_path / "make.py").write_text(text.replace(switch, bad))
    done = patched(tmp_path, CASES / case / "medium", "--fix", "1")
    for options in (["--check"], []):
        subprocess.run(["git", "apply", *options, "-"], cwd=tmp_path, input=done.stdout, check=True)
    assert (tmp_path / "make.py").read_text() == text.replace(switch, good)


@pytest.mark.parametrize("case", ["launch/histograms_of_all_gradients", "launch/new_length_in_every_step"])
def test_a_planted_case_trains_with_its_patch(tmp_path: Path, case: str) -> None:
    shutil.copy(CASES / case / "make.py", tmp_path)
    compiles = case == "launch/new_length_in_every_step"
    done = patched(tmp_path, CASES / case / "medium", "--output", "fixes.diff")
    assert done.returncode == 0
    subprocess.run(["git", "apply", "fixes.diff"], cwd=tmp_path, check=True)
    assert ("dynamic=True" if compiles else "foreach=False, fused=True") in (tmp_path / "make.py").read_text()
    if not compiles:  # Compiling takes a compiler, and minutes.
        command = [sys.executable, "make.py", "--steps", "3", "--level", "weak"]
        subprocess.run(command, cwd=tmp_path, env=environment(), check=True)


def test_without_its_files_there_is_one_sentence(tmp_path: Path) -> None:
    done = plain(tmp_path, "-m", "diagnose", "patch", CASES / "optimizer" / "optimizer_one_by_one" / "medium")
    refused(
        done, "Nothing can be patched: make.py is not here. Run diagnose patch in the folder of the recording's script."
    )


@pytest.mark.exhaustive
def test_in_a_folder_of_a_checkout_names_start_at_its_top(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    here = tmp_path / "src"
    here.mkdir()
    shutil.copy(CASES / "mixed" / "two_faults_between_ranks" / "make.py", here)
    done = patched(here, CASES / "mixed" / "two_faults_between_ranks" / "medium")
    assert done.stdout.startswith(b"diff --git a/src/make.py b/src/make.py\n")
    assert done.stderr.endswith(b"Apply the diff in the top folder of the git checkout.\n")
    assert b"Note: src/make.py is newer than the recording.\n" in done.stderr
    for folder in (here, tmp_path):
        subprocess.run(["git", "apply", "--check", "-"], cwd=folder, input=done.stdout, check=True)


@pytest.mark.exhaustive
def test_a_trace_with_nothing_to_measure_is_inconclusive(tmp_path: Path) -> None:
    path = Drawing().span("unheard_of", "x", 0, 5).write(tmp_path / "trace.json")
    done = patched(tmp_path, path)
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"There is no fix to make.\n" in done.stderr
    assert b" has too little data. Run diagnose analyze " in done.stderr


def test_no_diff_is_written_over_a_script(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text("x = 1\n")
    done = patched(tmp_path, CASES / "optimizer" / "optimizer_one_by_one" / "medium", "--output", "make.py")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"Error: make.py is a Python file. Name a file such as fixes.diff.\n"
    assert (tmp_path / "make.py").read_text() == "x = 1\n"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")
    for words in (["nowhere"], ["train.py"], ["."]):
        done = patched(tmp_path, *words)
        assert done.returncode == 2
        assert done.stderr.startswith(b"Error: ")
        assert done.stderr.count(b"\n") == 1


@pytest.mark.exhaustive
def test_what_was_kept_needs_trials(tmp_path: Path) -> None:
    case = CASES / "optimizer" / "optimizer_one_by_one" / "medium"
    done = patched(tmp_path, case, "--kept")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"Error: This run has no trials. Run diagnose try first.\n"
    done = patched(tmp_path, case, "--kept", "--fix", "1")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
