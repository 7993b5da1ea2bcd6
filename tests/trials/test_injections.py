"""Fixes are made in real trainings and say where, or say why they are not: then the arm is void."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from diagnose.trials.arms import Void
from diagnose.trials.losses import compared
from tests.trials.running import arm, printed
from tests.trials.scripts import MANY, MORE, steady

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write into their working folder."""
    monkeypatch.chdir(tmp_path)


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
