"""`diagnose watch` on real scripts."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diagnose.contracts.watched_run import RankRun, RunPartKind
from diagnose.source.run_log import read
from diagnose.watched.assembly import rank_run
from tests.capture.scripts import STEP, plain, script, started, wait_for
from tests.exhaustive import some_of

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

S = 1_000_000_000

TRAINING = """
import json, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

spent = {}

class clock:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        self.began = time.perf_counter()
    def __exit__(self, *_):
        spent[self.name] = spent.get(self.name, 0) + time.perf_counter() - self.began

class Numbers(Dataset):
    def __init__(self, count, delay):
        self.rows, self.delay = torch.randn(count, 64), delay
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        time.sleep(self.delay)
        return self.rows[index], index % 10

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training, validation = DataLoader(Numbers(320, 0.001), 16, shuffle=True), DataLoader(Numbers(64, 0.004), 16)
loss_of = torch.nn.CrossEntropyLoss()

def evaluate():
    model.eval()
    total = 0.0
    with torch.no_grad():
        for rows, labels in validation:
            total += loss_of(model(rows), labels).item()
    model.train()
    return total

losses = []
for epoch in range(4):
    batches = iter(training)
    while True:
        with clock("loader" if losses else "start"):
            batch = next(batches, None)
        if batch is None:
            break
        with clock("steps" if losses else "start"):
            rows, labels = batch
            loss = loss_of(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
            losses.append(loss.item().hex())
    with clock("evaluation"):
        losses.append(evaluate().hex())
    with clock("save"):
        torch.save([model.state_dict() for _ in range(300)], "model.pt")
    with clock("outside"):
        time.sleep(0.5)
json.dump({"spent": spent, "losses": losses}, open("told.json", "w"))
"""


def watch(folder: Path, *more: object, text: str = "") -> subprocess.CompletedProcess[str]:
    """`diagnose watch -o OUT MORE` in the folder, where the text is written to train.py before."""
    if text:
        script(folder, text)
    return plain(folder, "-m", "diagnose", "watch", "-o", folder / "out", *more)


def run_of(folder: Path, rank: int = 0) -> RankRun:
    return rank_run(read(folder / "out" / f"rank{rank}.watch"))


def test_the_parts_are_those_of_a_stopwatch_in_the_script(tmp_path: Path) -> None:
    done = watch(tmp_path, "train.py", text=TRAINING)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())["spent"]
    run = run_of(tmp_path)
    parts = {one.kind: one for one in run.parts}
    assert sum(one.ns for one in run.parts) == run.length_ns
    assert (run.steps, run.steps_by, run.ended) == (80, "optimizer", "itself")
    # The stopwatch has our hooks in it, some 0.1 ms of each of 80 steps, and what the loader's iterator does. What
    # stops the process between both, as other processes do, is in one alone.
    pairs = {
        RunPartKind.LOADER: told["loader"],
        RunPartKind.EVALUATION: told["evaluation"],
        RunPartKind.SAVE: told["save"],
        RunPartKind.OUTSIDE: told["outside"],
        RunPartKind.TRAINING: told["steps"],
    }
    for kind, seconds in pairs.items():
        assert parts[kind].ns / S == pytest.approx(seconds, rel=0.1, abs=0.3), kind
    assert (parts[RunPartKind.EVALUATION].count, parts[RunPartKind.SAVE].count) == (4, 4)
    assert parts[RunPartKind.TRAINING].count == 79
    assert [(one.first_step, one.steps) for one in run.epochs] == [(0, 19), (20, 20), (40, 20), (60, 20)]
    assert run.files == ("model.pt", "told.json")
    assert re.match(r"[^:]+: [^:]+ %\n80 steps \(counted by optimizer steps\), completed\n", done.stdout)


EPOCHS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
rows = TensorDataset(torch.ones(24, 4))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = {kept}
for epoch in range(4):
    for (row,) in kept or DataLoader(rows, batch_size=4):
        optimizer.zero_grad()
        model(row).sum().backward()
        optimizer.step()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kept", ["None", "DataLoader(rows, batch_size=4, num_workers=1, persistent_workers=True)"])
def test_epochs_of_loaders_that_nothing_keeps_and_of_workers_that_stay(tmp_path: Path, kept: str) -> None:
    done = watch(tmp_path, "train.py", text=EPOCHS.format(kept=kept))
    assert done.returncode == 0, done.stderr
    assert [(one.first_step, one.steps) for one in run_of(tmp_path).epochs] == [(0, 5), (6, 6), (12, 6), (18, 6)]


def test_losses_are_the_same_to_the_bit(tmp_path: Path) -> None:
    script(tmp_path, TRAINING)
    assert plain(tmp_path, "train.py").returncode == 0
    alone = json.loads((tmp_path / "told.json").read_text())["losses"]
    assert watch(tmp_path, "train.py").returncode == 0
    watched = json.loads((tmp_path / "told.json").read_text())["losses"]
    assert len(alone) == 84
    assert watched == alone


COMPILED = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="eager", fullgraph=True)
def loss_of(rows):
    return model(rows).square().mean()

for step in range(12):
    loss = loss_of(torch.ones(4, 8) * step)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 5:
        model.eval()
print(loss.item().hex())
"""


@pytest.mark.exhaustive
def test_a_compiled_function_that_calls_the_model_stays_whole(tmp_path: Path) -> None:
    script(tmp_path, COMPILED)
    alone, done = plain(tmp_path, "train.py"), watch(tmp_path, "--no-analyze", "-q", "train.py")
    assert alone.returncode == 0, alone.stderr
    assert (done.returncode, done.stdout) == (0, alone.stdout), done.stderr
    assert "compilation" in read(tmp_path / "out" / "rank0.watch").start


@pytest.mark.exhaustive
def test_a_script_of_three_steps(tmp_path: Path) -> None:
    done = watch(tmp_path, "train.py", text=STEP + "for _ in range(3):\n    step()\n")
    assert done.returncode == 0
    assert "3 steps (counted by optimizer steps), completed" in done.stdout
    assert not list((tmp_path / "out").glob("*.open*"))


def test_a_script_without_steps(tmp_path: Path) -> None:
    done = watch(tmp_path, "train.py", text="import torch\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: diagnose found no training step, so there is no log." in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_of_the_script_is_its_own(tmp_path: Path) -> None:
    done = watch(tmp_path, "train.py", text=STEP + "for _ in range(20):\n    step()\nraise KeyError('mine')\n")
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr
    assert "), ended with an error" in done.stdout


FORKS = (
    STEP
    + """
import subprocess
for at in range(40):
    step()
    if at in (5, 20):
        child = os.fork()
        if not child:
            for _ in range(10):
                step()
            os._exit(3) if at == 5 else sys.exit(4)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        subprocess.run([sys.executable, "-c", "import torch"])
"""
)


@pytest.mark.exhaustive
def test_children_of_the_script_leave_its_log_alone(tmp_path: Path) -> None:
    done = watch(tmp_path, "--no-analyze", "train.py", text=FORKS)
    assert (done.returncode, done.stdout) == (0, "3\n4\n"), done.stderr
    log = read(tmp_path / "out" / "rank0.watch")
    assert (rank_run(log).steps, log.ended, log.damaged) == (40, "itself", 0)


RESTARTED = (
    "import subprocess, sys\nif len(sys.argv) == 1:\n"
    "    while subprocess.run([sys.executable, __file__, 'again']).returncode: pass\n    sys.exit()\n"
    + STEP
    + """
first = not os.path.exists("saved.pt")
for at in range(600):
    step()
    time.sleep(0.005)
    if first and at == 300:
        torch.save(model.state_dict(), "saved.pt")
if first:
    os.kill(os.getpid(), 9)
"""
)


@pytest.mark.exhaustive
def test_a_training_that_starts_again_has_a_log_of_each_attempt(tmp_path: Path) -> None:
    done = watch(tmp_path, "train.py", text=RESTARTED)
    assert done.returncode == 0, done.stderr
    assert "The training restarted once" in done.stdout
    assert "600 steps (counted by optimizer steps), completed" in done.stdout
    told = json.loads((tmp_path / "out" / "report.json").read_text())["attempts"]
    assert [one["ended"] for one in told] == [None]
    assert 200 < told[0]["steps"] <= 600
    assert 0 < told[0]["saved_steps"] <= 600


ENDLESS = (
    STEP
    + """
open("pid", "w").write(str(os.getpid()))
clock = open("steps", "w")
while True:
    step()
    time.sleep(0.005)
    clock.seek(0)
    clock.write(f"{time.time():.3f}")
    clock.flush()
"""
)


@pytest.mark.parametrize("seed", some_of(map(str, range(100)), ["0"]))
def test_a_killed_run_loses_ten_seconds_at_most(tmp_path: Path, seed: str) -> None:
    script(tmp_path, ENDLESS)
    asked = [sys.executable, "-m", "diagnose", "watch", "-q", "-o", tmp_path / "out", "--no-analyze", "train.py"]
    process = started(tmp_path, *asked)
    wait_for((tmp_path / "out" / "rank0.watch.open").exists)
    time.sleep(random.Random(seed).uniform(0, 8))
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert process.wait(600) == 128 + signal.SIGKILL
    log = read(tmp_path / "out" / "rank0.watch")
    ended_s = (log.started_unix_ns + log.length_ns) / S
    assert log.ended is None
    assert log.damaged == 0
    assert float((tmp_path / "steps").read_text()) - ended_s < 10
    shown = plain(tmp_path, "-m", "diagnose", "analyze", tmp_path / "out")
    assert (shown.returncode, "killed or still running" in shown.stdout) == (0, True)


@pytest.mark.exhaustive
def test_a_full_disk_leaves_the_training_alone(tmp_path: Path) -> None:
    """Files cannot get larger than 1,500 bytes: the log's beginning fits, and what follows does not."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1500, -1))\n"
    steps = "for _ in range(800):\n    loss = step()\n    time.sleep(0.005)\nprint(loss.hex())\n"
    script(tmp_path, limit + STEP + steps)
    alone, done = plain(tmp_path, "train.py"), watch(tmp_path, "--no-analyze", "-q", "train.py")
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == (alone.stdout, "")
    file = tmp_path / "out" / "rank0.watch"
    assert 0 < file.stat().st_size <= 1500
    log = read(file)
    assert (log.rank, log.damaged, log.ended) == (0, 0, None)


@pytest.mark.exhaustive
def test_modules_and_launchers_are_watched(tmp_path: Path) -> None:
    steps = "for _ in range(30):\n    step()\n"
    script(tmp_path, STEP + steps)
    assert "30 steps" in watch(tmp_path, "-m", "train").stdout
    ranks = STEP + "torch.distributed.init_process_group('gloo')\n" + steps
    script(tmp_path, ranks + "torch.distributed.destroy_process_group()\n", "ranks.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "ranks.py"]
    done = watch(tmp_path, "--overwrite", "--", *launcher)
    assert done.returncode == 0, done.stderr
    assert "Rank 0 of 2 (2 with a log): 30 steps" in done.stdout
    assert [run_of(tmp_path, rank).rank for rank in (0, 1)] == [0, 1]


def test_a_log_is_analysed_as_json_markdown_and_page(tmp_path: Path) -> None:
    script(tmp_path, STEP + "for _ in range(30):\n    step()\n")
    assert watch(tmp_path, "-q", "--no-analyze", "train.py").returncode == 0

    def analyze(*more: str) -> subprocess.CompletedProcess[str]:
        return plain(tmp_path, "-m", "diagnose", "analyze", tmp_path / "out", *more)

    found = json.loads(analyze("--json", "-").stdout)["ranks"][0]
    assert (found["steps"], sum(one["ns"] for one in found["parts"])) == (30, found["length_ns"])
    assert analyze("--format", "markdown").stdout.startswith("## ")
    assert analyze("--html", str(tmp_path / "page.html")).returncode == 0
    assert "<title>diagnose: " in (tmp_path / "page.html").read_text()
    sarif = analyze("--sarif", str(tmp_path / "found.sarif"))
    assert sarif.returncode == 2
    assert "A run's log has no --sarif. Use --html, --json or --markdown." in sarif.stderr
    log = tmp_path / "out" / "rank0.watch"
    before = log.read_bytes()
    over = analyze("--json", str(log))
    assert (over.returncode, log.read_bytes()) == (2, before)
    assert "is an input, and writing there would destroy it. Choose another file." in over.stderr
    again = watch(tmp_path, "train.py")
    assert again.returncode == 2
    assert (
        "already has a recording. Name a new folder, or replace it with --overwrite (overwrite=True)." in again.stderr
    )
