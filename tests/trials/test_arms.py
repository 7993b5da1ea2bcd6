"""Arms of trials on real trainings: fixes are made in them, void where they are not, and what is measured."""

import subprocess
from pathlib import Path

import pytest

from diagnose.trials.arms import Size, Void, compared, run_arm
from diagnose.trials.selection import CannotTry
from tests.trials.running import SIZE, arm
from tests.trials.scripts import MANY, steady

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_two_runs_and_one_with_workers_have_the_same_losses(tmp_path: Path) -> None:
    first, again = arm(tmp_path, MANY), arm(tmp_path, MANY)
    changed = arm(tmp_path, MANY, "patch:DataLoader(num_workers=1)")
    assert len(first.losses) >= SIZE.warmup + SIZE.timed
    assert compared(first.losses, again.losses, changed.losses) == "same"


def test_losses_without_a_seed_are_not_deterministic(tmp_path: Path) -> None:
    text = steady(seed="time.time_ns()")
    first, again, changed = (arm(tmp_path, text, *fix) for fix in ([], [], ["patch:torch.optim(fused=True)"]))
    assert compared(first.losses, again.losses, changed.losses) == "not_deterministic"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (steady(steps=9), "The script ended after 9 steps: too few to time."),
        ("raise SystemExit(0)", "The script ended before its first training step."),
        ("raise RuntimeError('no data')", "The script ended with exit code 1: RuntimeError: no data"),
        (
            "input('Go on? ')",
            "The script ended with exit code 1: EOFError: EOF when reading a line. The runs get no standard input.",
        ),
        ("raise MemoryError('CUDA out of memory')", "The script ran out of memory: MemoryError: CUDA out of"),
    ],
)
def test_a_run_that_measures_nothing_is_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(Void) as raised:
        arm(tmp_path, text)
    assert str(raised.value).startswith(why)


def test_what_a_rank_raises_is_told_though_torchrun_prints_more_after_it(tmp_path: Path) -> None:
    with pytest.raises(Void) as raised:
        arm(tmp_path, "raise MemoryError('CUDA out of memory. Tried')", words=LAUNCHER)
    assert raised.value.verdict == "out_of_memory"
    assert str(raised.value) == "The script ran out of memory: MemoryError: CUDA out of memory. Tried"


def test_a_run_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.trials.arms.LEAST_S", 1.0)
    text = "import subprocess, time\nchild = subprocess.Popen(['sleep', '600.125'])\ntime.sleep(600)\n"
    with pytest.raises(Void, match=r"diagnose stopped the script after 3 s, far more than expected\."):
        arm(tmp_path, text, size=Size(3, 8, 0.0, expected_s=1.0))
    assert "600.125" not in subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True).stdout


def test_a_command_that_does_not_start_ends_all_trials(tmp_path: Path) -> None:
    with pytest.raises(CannotTry, match="Cannot run no-such-command"):
        run_arm(["no-such-command"], tmp_path / "arm", SIZE, ())


def test_what_a_short_script_lets_time_is_kept(tmp_path: Path) -> None:
    """It makes 90 steps, and was to be timed for a minute."""
    found = arm(tmp_path, steady(steps=90), size=Size(3, 8, 60.0, 40.0))
    assert 8 <= found.steps <= 90 - 3


def test_memory_and_times_are_those_of_the_training(tmp_path: Path) -> None:
    """Steps sleep for 2 ms; 400 MB are filled before the first."""
    small = arm(tmp_path, steady())
    large = arm(tmp_path, steady("import torch\nheld = torch.ones(100_000_000)\ntime.sleep(2)"))
    assert small.peak_bytes is not None
    assert large.peak_bytes is not None
    assert large.peak_bytes - small.peak_bytes > 300e6
    assert small.step_ns > 2e6
    assert large.warmup_s > 2
    assert small.first_step >= SIZE.warmup


TWO_RANKS = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.005)
"""
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def test_the_slowest_of_two_ranks_counts_and_all_inject_also_what_one_does(tmp_path: Path) -> None:
    saving = """
    if dist.get_rank() == 1:
        torch.save(model.state_dict(), "model.pt")
"""
    fixes = ("wrap:DistributedDataParallel(gradient_as_bucket_view=True)", "patch:torch.save(in_background)")
    found = arm(tmp_path, TWO_RANKS + saving, *fixes, words=LAUNCHER)
    assert set(found.injected) == {
        "DistributedDataParallel at train.py:10: gradient_as_bucket_view False -> True",
        "torch.save at train.py:19: written by a thread",
    }
    assert found.step_ns > 5e6
    assert len(found.losses) >= SIZE.timed
    left = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in left


def test_with_a_larger_batch_the_time_is_that_of_as_many_samples(tmp_path: Path) -> None:
    """Each sample takes 10 ms, and there are 8 of them, then 32, in a step: else it would be 320 ms or more."""
    text = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Stored(Dataset):
    def __len__(self):
        return 32_000

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(4)


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in DataLoader(Stored(), batch_size=8):
    optimizer.zero_grad()
    model(rows).sum().backward()
    optimizer.step()
"""
    found = arm(tmp_path, text, "patch:DataLoader(batch_size=4x)")
    assert found.injected == ("DataLoader at train.py:20: batch_size 8 -> 32",)
    assert 80e6 < found.step_ns < 320e6
