"""`diagnose try` as a command: a fix that pays is kept, one that cannot be made is said to be, sentences, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import msgspec
import pytest

from diagnose import docs
from diagnose.cli.try_ import _work_folder
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.trials import Report
from diagnose.reports import trials
from diagnose.trace.manifest import Manifest
from diagnose.trials.selection import CannotTry
from tests.capture.scripts import plain, profile, script, started, wait_for
from tests.cli.invoking import refused, run
from tests.exhaustive import some_of

pytestmark = pytest.mark.slow
LOADER = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Stored(Dataset):
    def __len__(self):
        return 8192

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((64,), index / 8192), index % 10


def main():
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(100):
        for number, (rows, labels) in enumerate(DataLoader(Stored(), batch_size=16, shuffle=True)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
            if number % 10 == 9:
                torch.save(model.state_dict(), "model.pt")
                with open("log.txt", "a") as log:
                    log.write(f"{number}\\n")


if __name__ == "__main__":
    main()
"""
"""32 ms of each step are waits for storage, in the process that trains; files are written every ten steps."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with train.py and its recording, out."""
    folder = tmp_path_factory.mktemp("recorded")
    assert profile(folder, script(folder, LOADER).name).code == 0
    return folder


def tried(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return run("try", *words, cwd=folder, OMP_NUM_THREADS="1")


@pytest.mark.exhaustive
def test_a_loader_in_the_training_process_gets_workers_and_they_are_kept(recorded: Path) -> None:
    """Without the waits it is three times as fast, or more: only workers were added. Reports of the recording tell."""
    files = ["--json", "trials.json", "--markdown", "tried.md", "--html", "tried.html"]
    done = tried(recorded, "out", "--fix", "dataloader_starvation", "--pairs", "2", "--yes", *files)
    assert done.returncode == 0, done.stderr
    found = json.loads((recorded / "trials.json").read_text())
    (trial,) = found["trials"]
    assert trial["injected"].startswith("DataLoader at train.py:23: num_workers 0 -> ")
    assert (trial["losses"], trial["verdict"], found["keep"]) == ("same", "keep", ["dataloader_starvation"])
    assert 1 < trial["measured"]["low"] < trial["measured"]["likely"] < trial["measured"]["high"]
    assert min(trial["peak_bytes"].values()) > 50e6
    assert min(trial["warmup_s"].values()) > 0.3
    assert found["together"] is None
    assert found["baseline"]["step_ns"]["low"] > 32e6
    assert "  1. dataloader_starvation  keep  " in done.stdout
    assert done.stdout.startswith("Keep 1 (dataloader_starvation): ")
    assert "writes model.pt, log.txt. Each run writes there again" in done.stderr
    assert sorted(path.name for path in (recorded / "out").iterdir() if path.name.startswith(".")) == []
    jsonschema.validate(found, json.loads(docs.schema_file("trials").read_text()))

    assert (recorded / "tried.md").read_text().startswith("**Keep 1 (dataloader")
    assert "diagnose: the report with these measurements is out/report.html" in done.stderr
    kept = msgspec.json.decode((recorded / "out" / "trials.json").read_bytes(), type=Report)
    assert kept.keep == ("dataloader_starvation",)
    for name in ("tried.html", "out/report.html"):
        assert trials.conclusion(kept).replace("->", "-&gt;") in (recorded / name).read_text()
    again = run("analyze", "out", cwd=recorded)
    assert trials.TITLE in again.stdout
    assert Diagnosis.from_json((recorded / "out" / "report.json").read_text()).trials == kept
    assert Diagnosis.from_json(run("analyze", "out", "--json", "-", cwd=recorded).stdout).trials == kept


ONE_BY_ONE = """
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(60)], torch.nn.Dropout(0.1))
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for number in range(1_000_000):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
"""
"""It sets no seed."""


@pytest.mark.exhaustive
def test_a_switch_is_decided_in_one_run_and_confirmed_in_others(tmp_path: Path) -> None:
    name = script(tmp_path, ONE_BY_ONE).name
    done = tried(tmp_path, "--details", "--fix", "unfused_optimizer", "--yes", "--json", "trials.json", name)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "trials.json").read_text())
    jsonschema.validate(found, json.loads(docs.schema_file("trials").read_text()))
    (trial,), together = found["trials"], found["together"]
    assert (trial["measured_by"], trial["verdict"], found["keep"]) == ("blocks", "keep", ["unfused_optimizer"])
    assert (trial["injected"], trial["losses"]) == ("AdamW: fused None -> True", None)
    assert trial["outputs"]["kind"] == "same"
    assert trial["updates"]["kind"] in ("same", "rounding")
    assert trial["steps"] >= 5
    assert (together["measured_by"], together["losses"]) == ("runs", "not_deterministic")
    assert together["injected"] == "AdamW at train.py:6: fused None -> True"
    assert together["pairs"] >= 2
    assert found["baseline"]["arms"] == together["pairs"]
    assert trials.CONFIRMED in done.stdout
    assert "-step blocks in one run" in done.stdout


def test_a_script_is_recorded_first_and_keeps_its_arguments(tmp_path: Path) -> None:
    text = LOADER.replace("def main():", "def main():\n    assert sys.argv[1:] == ['--fix', '3']").replace(
        "import time", "import sys, time"
    )
    name = script(tmp_path, text).name
    done = tried(tmp_path, "--fix", "dataloader_starvation", "--budget", "1s", "--yes", name, "--fix", "3")
    assert done.returncode == 0, done.stderr
    assert "Undecided: 1 (dataloader_starvation)." in done.stdout.splitlines()
    (folder,) = (tmp_path / "diagnose-runs").iterdir()
    assert (folder / "trials.json").is_file()
    assert (folder / "report.html").is_file()


def test_a_script_that_fails_while_it_is_recorded_is_not_tried(tmp_path: Path) -> None:
    done = tried(tmp_path, script(tmp_path, "raise SystemExit(7)").name)
    assert (done.returncode, done.stdout) == (7, "")


def test_what_the_script_writes_is_asked_for(recorded: Path) -> None:
    manifest = msgspec.json.decode((recorded / "out" / "manifest.json").read_bytes(), type=Manifest)
    assert manifest.ranks[0].writes == ("model.pt", "log.txt")
    refused(
        tried(recorded, "out"), "The script writes model.pt, log.txt. Each run writes there again. To allow this, add"
    )


def test_a_dry_run_says_what_would_be_run_and_runs_nothing(recorded: Path) -> None:
    (recorded / "log.txt").unlink()
    done = tried(recorded, "out", "--dry-run")
    assert done.returncode == 0
    assert "Command: " in done.stdout
    assert "1. dataloader_starvation: patch:DataLoader(num_workers=" in done.stdout
    assert "at least 2 pairs of runs, about " in done.stdout
    assert not (recorded / "log.txt").exists()
    (recorded / "log.txt").touch()


@pytest.mark.exhaustive
def test_a_fix_that_the_script_no_longer_has_a_place_for_is_not_injected(recorded: Path) -> None:
    changed = LOADER.replace("DataLoader(Stored(), batch_size=16, shuffle=True)", "batches()").replace(
        "def main",
        "def batches():\n    while True:\n        yield torch.ones(16, 64), torch.ones(16).long()\n\n\ndef main",
    )
    script(recorded, changed, "changed.py")
    words = ["out", "--fix", "1", "--yes", "--json", "-", "--", sys.executable, "changed.py"]
    done = tried(recorded, *words)
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads(done.stdout)["trials"]
    assert (trial["verdict"], trial["injected"], trial["measured"]) == ("not_injected", None, None)
    assert trial["why"] == "The run reached no line of the script that it changes."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none",), "The folder none does not exist. Name a folder of diagnose profile."),
        (("out/rank0.trace.json.gz",), "out/rank0.trace.json.gz is a single trace. Name a folder of diagnose profile"),
        (("none.py",), "none.py does not exist. Check the path, or run a command with: diagnose try -- none.py"),
        ((), "Name a recording or a script, for example: diagnose try train.py"),
        (("--json", "-", "train.py"), "The script uses standard output while diagnose records it. Name a file for the"),
        (("out", "--fix", "9"), "--fix 9 names no finding of this run. There are: 1 dataloader_starvation"),
        (("out", "--budget", "soon"), "'soon' is not a time. Write, for example, 90s, 10m or 1h."),
        (("out", "--yes", "--", sys.executable, "other.py"), "other.py is not here."),
        (("out", "--yes", "--", "no-such-command"), "Cannot run no-such-command: No such file or directory."),
        (
            ("out", "--yes", "--", sys.executable, "-c", "print(1)"),
            "The unmodified script could not be measured. The script ended before its first training step.",
        ),
    ],
)
def test_what_cannot_be_tried_is_refused_in_a_sentence(recorded: Path, words: tuple[str, ...], said: str) -> None:
    done = tried(recorded, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_command_with_starred_out_secrets_has_to_be_given(recorded: Path, tmp_path: Path) -> None:
    for path in (recorded / "out").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    manifest = msgspec.json.decode((tmp_path / "manifest.json").read_bytes(), type=Manifest)
    secret = msgspec.structs.replace(manifest, command=(*manifest.command, "--token", "***"))
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(secret))
    refused(tried(recorded, tmp_path), "The recorded command has masked secrets. Run: diagnose try")


def test_a_recording_that_cannot_be_written_to_is_refused() -> None:
    with pytest.raises(
        CannotTry, match=r"^Cannot write to /proc/self: .*\. Copy the recording to a writable folder\.$"
    ):
        _work_folder(Path("/proc/self"))


def test_the_budget_ends_trials_and_what_was_measured_is_printed_even_if_it_cannot_be_written(recorded: Path) -> None:
    done = tried(recorded, "out", "--fix", "1", "--budget", "1s", "--yes", "--json", "/dev/full")
    assert done.returncode == 2
    assert "The budget ran out after 0 pairs." in done.stdout
    assert done.stdout.startswith("Undecided: 1 (dataloader_starvation).\n")
    assert "/dev/full" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("after", some_of(["unmodified script", "pair 3"], ["unmodified script"]))
def test_an_interrupt_leaves_no_process_and_prints_what_was_measured(recorded: Path, after: str) -> None:
    child = started(recorded, sys.executable, "-m", "diagnose", "try", "out", "--fix", 1, "--yes", "--pairs", 3)
    while after not in (line := child.stderr.readline()):
        assert line
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=600)
    assert child.returncode == 130
    assert "Interrupted." in err
    assert ("Baseline step time: " in out) is (after == "pair 3")
    wait_for(lambda: of_session(child.pid) == [])
    assert not list((recorded / "out").glob(".trial*"))


def of_session(number: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == number:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_what_is_no_recording_is_refused_before_it_is_analysed(tmp_path: Path) -> None:
    (tmp_path / "rank0.trace.json").write_text("[]")
    done = plain(tmp_path, "-m", "diagnose", "try", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {tmp_path} has no manifest.json. Name a folder of diagnose profile.\n"
