"""Arms of trials on real trainings: fixes are made in them and say where, or why they are not; what is measured."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from diagnose.trials.arms import Arm, Size, Void, compared, run_arm
from diagnose.trials.selection import CannotTry
from tests.trials.running import SIZE, arm, printed
from tests.trials.scripts import COMPILED, LIGHTNING, MANY, MORE, OTHER, SHARDED, TRANSFORMERS, ranks, steady

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FIXES = {
    MANY: {
        "patch:DataLoader(num_workers=2)": "DataLoader at train.py:17: num_workers 0 -> 2",
        "patch:torch.optim(fused=True)": "AdamW at train.py:14: fused None -> True",
        "patch:zero_grad(set_to_none=True)": "zero_grad() at train.py:20: set_to_none False -> True",
        "patch:gc.collect(every=500)": "gc.collect() at train.py:24: made once in 500 calls",
        "patch:torch.cuda.empty_cache()": "torch.cuda.empty_cache() at train.py:25: left out",
        "wrap:channels_last": "Sequential at train.py:14: 1 weights and the input to channels_last",
        "env:MALLOC_TRIM_THRESHOLD_=99999999": "MALLOC_TRIM_THRESHOLD_=99999999 in the environment",
    },
    MORE: {
        "patch:DataLoader(prefetch_factor=8)": "DataLoader at train.py:13: prefetch_factor None -> 8",
        "patch:DataLoader(persistent_workers=True)": "DataLoader at train.py:13: persistent_workers False -> True",
        "patch:torch.set_num_threads(threads=1)": "torch.set_num_threads at train.py:6: 2 -> 1",
        "patch:set_detect_anomaly(mode=False)": "set_detect_anomaly at train.py:7: mode True -> False",
        "patch:torch.save(in_background)": "torch.save at train.py:21: written by a thread",
        "wrap:torch.autocast": "Sequential at train.py:17: forward() in autocast to bfloat16",
    },
    OTHER: {
        "patch:torch.optim(foreach=True)": "RMSprop at train.py:26: foreach False -> True",
        "patch:torch.use_deterministic_algorithms(mode=False)": "torch.use_deterministic_algorithms at train.py:9: mode"
        " True -> False",
        "patch:torch.utils.checkpoint": "checkpoint() at train.py:21: activations are kept",
        "patch:gc.freeze(every=500)": "gc.freeze() after the first step, then gc.collect(1) every 500 steps",
        "patch:DataLoader(batch_size=2x)": "DataLoader at train.py:27: batch_size 8 -> 16",
    },
}


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (MANY, "0 None True False False True", "2 True False True True False"),
        (MORE, "2 False 2 True torch.float32 False", "8 True 1 False torch.bfloat16 False"),
        (OTHER, "8 False 2 True True False", "16 True 1 False False True"),
    ],
    ids=["many", "more", "other"],
)
def test_fixes_are_made_and_say_where(tmp_path: Path, text: str, before: str, after: str) -> None:
    arm(tmp_path, text)
    assert printed(tmp_path) == before
    changed = arm(tmp_path, text, *FIXES[text])
    assert printed(tmp_path) == after
    told = [line for line in changed.injected if not line.startswith("torch computes")]
    for line, wanted in zip(told, FIXES[text].values(), strict=True):
        assert line.startswith(wanted) if text == MANY else line == wanted
    if text == MORE:
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
        ("patch:DataLoader(pin_memory=True)", "PyTorch has no GPU here."),
        ("patch:DataLoader(prefetch_factor=4)", "The DataLoader has no workers."),
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
        arm(tmp_path, MANY if "pin_memory" in fix or "prefetch" in fix else steady(), fix)
    assert (str(raised.value)[: len(why)], raised.value.verdict) == (why, "not_injected")


def test_a_variable_that_the_script_sets_voids_the_arm(tmp_path: Path) -> None:
    text = "import os\nos.environ['MALLOC_TRIM_THRESHOLD_'] = '1'\n" + steady()
    with pytest.raises(Void, match="The script sets MALLOC_TRIM_THRESHOLD_ itself"):
        arm(tmp_path, text, "env:MALLOC_TRIM_THRESHOLD_=99999999")


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_the_module_that_lightning_calls_is_changed(tmp_path: Path) -> None:
    changed = arm(tmp_path, LIGHTNING, "wrap:torch.autocast")
    assert changed.injected == ("Sequential at train.py:21: forward() in autocast to bfloat16",)


@pytest.mark.exhaustive
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


LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DDP = "DistributedDataParallel at train.py"
HOOK = "wrap:DistributedDataParallel(comm_hook=fp16_compress_hook)"
NO_SYNC = "wrap:DistributedDataParallel(no_sync)"


def both(folder: Path, text: str, *fixes: str) -> Arm:
    return arm(folder, text, *fixes, words=LAUNCHER)


def told(folder: Path) -> tuple[int, str, float]:
    """Reductions, whether weights agree, and their sum, as the script prints them."""
    reduced, same, total = printed(folder).split()
    return int(reduced), same, float(total)


@pytest.mark.exhaustive
def test_gradients_are_reduced_in_the_last_backward_pass(tmp_path: Path) -> None:
    """Two of nine steps are learnt from."""
    before = both(tmp_path, ranks("4"))
    reduced, same, total = told(tmp_path)
    assert (reduced, same) == (9 * 4, "True")
    changed = both(tmp_path, ranks("4"), NO_SYNC)
    assert told(tmp_path) == (2 * 4 + 7, "True", pytest.approx(total, rel=1e-4))
    assert changed.injected == (f"{DDP}:25: gradients are reduced in the last of 4 backward passes",)
    assert compared(before.losses, before.losses, changed.losses) in ("same", "rounding")


@pytest.mark.exhaustive
def test_a_step_with_fewer_or_more_passes_stays_right(tmp_path: Path) -> None:
    """Step 4 has 2 passes, and none of these reduces; step 7 has 5, which is two more than those before it."""
    text = ranks("{4: 2, 7: 5}.get(number, 3)")
    both(tmp_path, text)
    reduced, same, total = told(tmp_path)
    assert (reduced, same) == (7 * 3 + 2 + 5, "True")
    both(tmp_path, text, NO_SYNC)
    # Two steps to learn, two with one reduction, none by the hook in step 4; steps 5 and 6 to learn again; step 7
    # reduces in its last three passes, and is none to learn from: step 8 reduces in all.
    assert told(tmp_path) == (3 + 3 + 1 + 1 + 0 + 3 + 3 + 3 + 3, "True", pytest.approx(total, rel=1e-4))


@pytest.mark.exhaustive
def test_one_pass_a_step_has_nothing_to_leave_out(tmp_path: Path) -> None:
    with pytest.raises(Void, match="A step has one backward pass"):
        both(tmp_path, ranks("1"), NO_SYNC)


@pytest.mark.exhaustive
def test_options_and_hooks_of_ddp_and_barriers(tmp_path: Path) -> None:
    fixes = {
        "wrap:DistributedDataParallel(static_graph=True)": f"{DDP}:10: static_graph False -> True",
        "wrap:DistributedDataParallel(bucket_cap_mb=10)": f"{DDP}:10: bucket_cap_mb None -> 10",
        HOOK: f"{DDP}:25: gradients are sent by fp16_compress_hook",
        "patch:torch.distributed.barrier": "torch.distributed.barrier() at train.py:28: left out after the first",
    }
    changed = both(tmp_path, ranks("1", count=False), *fixes)
    assert list(changed.injected) == [*fixes.values()]
    with pytest.raises(Void, match="The script registers a communication hook itself"):
        both(tmp_path, ranks("1"), HOOK)
    with pytest.raises(Void, match="The backend cannot do bf16_compress_hook: BF16 all reduce"):
        both(tmp_path, ranks("1", count=False), HOOK.replace("fp16", "bf16"))


@pytest.mark.exhaustive
def test_shards_are_kept_after_the_forward_pass(tmp_path: Path) -> None:
    changed = both(tmp_path, SHARDED, "patch:fully_shard(reshard_after_forward=False)")
    assert changed.injected == (
        "fully_shard at train.py:10: reshard_after_forward None -> False",
        "fully_shard at train.py:11: reshard_after_forward None -> False",
    )


@pytest.mark.exhaustive
def test_two_runs_and_one_with_workers_have_the_same_losses(tmp_path: Path) -> None:
    first, again = arm(tmp_path, MANY), arm(tmp_path, MANY)
    changed = arm(tmp_path, MANY, "patch:DataLoader(num_workers=1)")
    assert len(first.losses) >= SIZE.warmup + SIZE.timed
    assert compared(first.losses, again.losses, changed.losses) == "same"


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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
