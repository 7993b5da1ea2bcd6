"""Fixes are made in real trainings and say where, or say why they are not: then the arm is void."""

import shutil
from pathlib import Path

import pytest
import torch

from diagnose.trials.arms import Void, compared
from tests.trials.running import arm, printed
from tests.trials.scripts import COMPILED, LIGHTNING, MANY, MORE, OTHER, TRANSFORMERS, steady

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_fixes_are_made_and_say_where(tmp_path: Path) -> None:
    fixes = {
        "patch:DataLoader(num_workers=2)": "DataLoader at train.py:17: num_workers 0 -> 2",
        "patch:torch.optim(fused=True)": "AdamW at train.py:14: fused None -> True",
        "patch:zero_grad(set_to_none=True)": "zero_grad() at train.py:20: set_to_none False -> True",
        "patch:gc.collect(every=500)": "gc.collect() at train.py:24: made once in 500 calls",
        "patch:torch.cuda.empty_cache()": "torch.cuda.empty_cache() at train.py:25: left out",
        "wrap:channels_last": "Sequential at train.py:14: 1 weights and the input to channels_last",
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
        "wrap:torch.autocast": "Sequential at train.py:17: forward() in autocast to bfloat16",
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
    assert changed.injected == ("Sequential at train.py:17: compiled when it is called",)
    assert compared(before.losses, before.losses, changed.losses) in ("same", "rounding")


@pytest.mark.parametrize(
    ("fix", "why"),
    [
        ("patch:DataLoader(num_workers=2)", "The run reached no line of the script that it changes."),
        ("patch:zero_grad(set_to_none=True)", "The script already has set_to_none=True."),
        ("patch:torch.cuda.synchronize()", "The run reached no line of the script that it changes."),
        ("patch:torch.backends.cudnn(benchmark=True)", "PyTorch has no GPU here."),
        ("patch:transformers(attn_implementation=sdpa)", "The model has no attn_implementation, which models of"),
        ("wrap:DistributedDataParallel(no_sync)", "Nothing is wrapped in DistributedDataParallel, or no"),
        ("wrap:channels_last", "The model has no weights of four dimensions that are not channels_last already."),
        ("env:TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1", "PyTorch used no GPU, to which TORCH_ALLOW_TF32_"),
        ("env:OMP_NUM_THREADS=2", "Torch computes with 1 threads, which the script sets itself."),
    ],
)
def test_a_fix_that_takes_no_effect_voids_the_arm(tmp_path: Path, fix: str, why: str) -> None:
    with pytest.raises(Void) as raised:
        arm(tmp_path, steady(), fix)
    assert (str(raised.value)[: len(why)], raised.value.verdict) == (why, "not_injected")


def test_a_variable_that_the_script_sets_voids_the_arm(tmp_path: Path) -> None:
    text = "import os\nos.environ['MALLOC_TRIM_THRESHOLD_'] = '1'\n" + steady()
    with pytest.raises(Void, match="The script sets MALLOC_TRIM_THRESHOLD_ itself"):
        arm(tmp_path, text, "env:MALLOC_TRIM_THRESHOLD_=99999999")


@pytest.mark.parametrize(
    ("fix", "why"),
    [
        ("patch:DataLoader(pin_memory=True)", "PyTorch has no GPU here."),
        ("patch:DataLoader(prefetch_factor=4)", "The DataLoader has no workers."),
    ],
)
def test_a_loader_says_why_it_cannot(tmp_path: Path, fix: str, why: str) -> None:
    with pytest.raises(Void) as raised:
        arm(tmp_path, MANY, fix)
    assert (str(raised.value), raised.value.verdict) == (why, "not_injected")


def test_a_variable_is_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch looks whether it is there, whatever its value."""
    name = "PYTORCH_NO_CUDA_MEMORY_CACHING"
    monkeypatch.setenv(name, "1")
    text = steady(f"import os\nprint(os.environ.get({name!r}), flush=True)")
    arm(tmp_path, text)
    assert printed(tmp_path) == "1"
    with pytest.raises(Void, match=f"PyTorch used no GPU, to which {name} applies"):
        arm(tmp_path, text, f"env:{name}=")
    assert printed(tmp_path) == "None"


def test_again_other_fixes_are_made_and_say_where(tmp_path: Path) -> None:
    fixes = {
        "patch:torch.optim(foreach=True)": "RMSprop at train.py:26: foreach False -> True",
        "patch:torch.use_deterministic_algorithms(mode=False)": "torch.use_deterministic_algorithms at train.py:9: mode"
        " True -> False",
        "patch:torch.utils.checkpoint": "checkpoint() at train.py:21: activations are kept",
        "patch:gc.freeze(every=500)": "gc.freeze() after the first step, then gc.collect(1) every 500 steps",
        "patch:DataLoader(batch_size=2x)": "DataLoader at train.py:27: batch_size 8 -> 16",
    }
    arm(tmp_path, OTHER)
    assert printed(tmp_path) == "8 False 2 True True False"
    changed = arm(tmp_path, OTHER, *fixes)
    assert printed(tmp_path) == "16 True 1 False False True"
    assert list(changed.injected) == [*fixes.values()]


@pytest.mark.exhaustive
def test_attention_of_transformers(tmp_path: Path) -> None:
    fix = "patch:transformers(attn_implementation=sdpa)"
    before = arm(tmp_path, TRANSFORMERS.format(attention="eager"))
    assert printed(tmp_path) == "eager"
    changed = arm(tmp_path, TRANSFORMERS.format(attention="eager"), fix)
    assert printed(tmp_path) == "sdpa"
    assert changed.injected == ("GPT2LMHeadModel at train.py:9: attn_implementation eager -> sdpa",)
    assert compared(before.losses, before.losses, changed.losses) in ("same", "rounding")
    with pytest.raises(Void, match="The script has attn_implementation=sdpa already"):
        arm(tmp_path, TRANSFORMERS.format(attention="sdpa"), fix)


def test_the_module_that_lightning_calls_is_changed(tmp_path: Path) -> None:
    changed = arm(tmp_path, LIGHTNING, "wrap:torch.autocast")
    assert changed.injected == ("Sequential at train.py:21: forward() in autocast to bfloat16",)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_calls_of_torch_compile_are_changed(tmp_path: Path) -> None:
    fixes = "patch:torch.compile(dynamic=True)", "patch:torch.compile(mode=reduce-overhead)"
    changed = arm(tmp_path, COMPILED, *fixes)
    assert changed.injected == (
        "torch.compile at train.py:8: dynamic None -> True",
        "torch.compile at train.py:8: mode None -> reduce-overhead",
    )


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_a_model_is_compiled_by_mode_but_not_twice(tmp_path: Path) -> None:
    fix = "wrap:torch.compile(mode=reduce-overhead)"
    changed = arm(tmp_path, MORE, fix)
    assert changed.injected == ("Sequential at train.py:17: compiled when it is called, mode=reduce-overhead",)
    text = MORE.replace("    optimizer =", "    model.compile()\n    optimizer =")
    with pytest.raises(Void, match="The script compiles the model itself"):
        arm(tmp_path, text, fix)
