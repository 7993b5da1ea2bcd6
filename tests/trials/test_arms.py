"""Arms of trials on real trainings: fixes are made in them, void where they are not, and what is measured."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from diagnose.trials.arms import Arm, Size, Void, run_arm
from diagnose.trials.losses import compared
from diagnose.trials.selection import CannotTry
from tests.capture.scripts import script
from tests.trials.scripts import MANY, MORE, steady

pytestmark = pytest.mark.slow

SIZE = Size(warmup=3, timed=8, timed_s=0.0, expected_s=40.0)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write into their working folder."""
    monkeypatch.chdir(tmp_path)


def arm(folder: Path, text: str, *fixes: str, size: Size = SIZE, words: Sequence[str] = ()) -> Arm:
    path = script(folder, text)
    return run_arm([sys.executable, *words, str(path)], folder / f"arm{len(list(folder.iterdir()))}", size, fixes)


def printed(folder: Path) -> str:
    """The last line of the last arm."""
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    return logs[-1].read_text().splitlines()[-1]


def test_fixes_are_made_and_say_where(tmp_path: Path) -> None:
    fixes = {
        "patch:DataLoader(num_workers=2)": "DataLoader at train.py:17: num_workers 0 -> 2",
        "patch:torch.optim(fused=True)": "AdamW at train.py:14: fused None -> True",
        "patch:zero_grad(set_to_none=True)": "zero_grad() at train.py:20: set_to_none False -> True",
        "patch:gc.collect(every=500)": "gc.collect() at train.py:24: made once in 500 calls",
        "patch:torch.cuda.empty_cache()": "torch.cuda.empty_cache() at train.py:25: left out",
        "wrap:channels_last": "Sequential at train.py:14: 1 weights to channels_last, and with them what",
        "env:MALLOC_TRIM_THRESHOLD_=99999999": "MALLOC_TRIM_THRESHOLD_=99999999 in the environment",
    }
    arm(tmp_path, MANY)
    assert printed(tmp_path) == "0 None True False False True"
    changed = arm(tmp_path, MANY, *fixes)
    assert printed(tmp_path) == "2 True False True True False"
    for line, wanted in zip(changed.injected, fixes.values(), strict=True):
        assert line.startswith(wanted)


def test_other_fixes_are_made_and_say_where(tmp_path: Path) -> None:
    fixes = {
        "patch:DataLoader(prefetch_factor=8)": "DataLoader at train.py:13: prefetch_factor None -> 8",
        "patch:DataLoader(persistent_workers=True)": "DataLoader at train.py:13: persistent_workers False -> True",
        "patch:torch.set_num_threads(threads=1)": "torch.set_num_threads at train.py:6: 2 -> 1",
        "patch:set_detect_anomaly(mode=False)": "set_detect_anomaly at train.py:7: mode True -> False",
        "patch:torch.save(in_background)": "torch.save at train.py:21: written by a thread",
        "patch:torch.backends.cudnn(benchmark=True)": "torch.backends.cudnn.benchmark is on from the start",
        "wrap:torch.autocast": "Sequential at train.py:12: forward() in autocast to bfloat16",
    }
    arm(tmp_path, MORE)
    assert printed(tmp_path) == "2 False 2 True torch.float32 False"
    changed = arm(tmp_path, MORE, *fixes)
    assert printed(tmp_path) == "8 True 1 False torch.bfloat16 False"
    assert [line for line in changed.injected if not line.startswith("torch computes")] == [*fixes.values()]
    assert sorted(torch.load(tmp_path / "model.pt")) == ["0.bias", "0.weight", "2.bias", "2.weight"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_a_model_is_compiled(tmp_path: Path) -> None:
    before = arm(tmp_path, MORE)
    changed = arm(tmp_path, MORE, "wrap:torch.compile")
    assert printed(tmp_path).endswith(" True")
    assert changed.injected == ("Sequential at train.py:12: compiled when it is called",)
    assert compared(before.losses, before.losses, changed.losses) in ("same", "rounding")


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
    ("fix", "why"),
    [
        ("patch:DataLoader(num_workers=2)", "No line of the script was met that it changes."),
        ("patch:zero_grad(set_to_none=True)", "No line of the script was met that it changes."),
        ("wrap:channels_last", "No line of the script was met that it changes."),
        ("env:OMP_NUM_THREADS=2", "Torch computes with 1 threads, which the script sets itself."),
    ],
)
def test_a_fix_that_takes_no_effect_voids_the_arm(tmp_path: Path, fix: str, why: str) -> None:
    with pytest.raises(Void) as raised:
        arm(tmp_path, steady(), fix)
    assert (str(raised.value), raised.value.verdict) == (why, "not_injected")


def test_a_variable_that_the_script_sets_voids_the_arm(tmp_path: Path) -> None:
    text = "import os\nos.environ['MALLOC_TRIM_THRESHOLD_'] = '1'\n" + steady()
    with pytest.raises(Void, match="The script sets MALLOC_TRIM_THRESHOLD_ itself"):
        arm(tmp_path, text, "env:MALLOC_TRIM_THRESHOLD_=99999999")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (steady(steps=9), "The script ended after 9 steps, too few to time. Let it make more steps."),
        (steady("raise SystemExit(0)"), "The script ended before a training step was seen."),
        (steady("raise RuntimeError('no data')"), "The script ended with exit code 1: RuntimeError: no data"),
        (
            steady("input('Go on? ')"),
            "The script ended with exit code 1: EOFError: EOF when reading a line Arms get no input.",
        ),
        (steady("raise MemoryError('CUDA out of memory')"), "The script ran out of memory: MemoryError: CUDA out of"),
    ],
)
def test_a_run_that_measures_nothing_is_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(Void) as raised:
        arm(tmp_path, text)
    assert str(raised.value).startswith(why)


def test_a_run_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.trials.arms.LEAST_S", 1.0)
    text = "import subprocess, time\nchild = subprocess.Popen(['sleep', '600.125'])\ntime.sleep(600)\n"
    with pytest.raises(Void, match="The script was ended after 3 s, three times what it should take"):
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


def test_a_fix_of_what_one_rank_does_takes_effect_there(tmp_path: Path) -> None:
    saving = """
    if dist.get_rank() == 1:
        torch.save(model.state_dict(), "model.pt")
"""
    found = arm(tmp_path, TWO_RANKS + saving, "patch:torch.save(in_background)", words=LAUNCHER)
    assert found.injected == ("torch.save at train.py:19: written by a thread",)


def test_the_slowest_of_two_ranks_counts_and_all_inject(tmp_path: Path) -> None:
    fix = "wrap:DistributedDataParallel(gradient_as_bucket_view=True)"
    found = arm(tmp_path, TWO_RANKS, fix, words=LAUNCHER)
    assert found.injected == ("DistributedDataParallel at train.py:10: gradient_as_bucket_view False -> True",)
    assert found.step_ns > 5e6
    assert len(found.losses) >= SIZE.timed
    left = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in left
