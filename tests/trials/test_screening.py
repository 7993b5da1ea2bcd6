"""Fixes that are turned on and off in one running training: what gains, harms, does nothing or cannot be made is told,
the training stays what it is, and what was measured is kept however the script ends."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from diagnose.contracts.finding import Fix
from diagnose.contracts.trials import Trial
from diagnose.fixes.setting import Safety
from diagnose.trace.measured import Screened
from diagnose.trials.arms import Size
from diagnose.trials.screening import Screen, Start, on_top_of, screen, so_far, trial_of
from diagnose.trials.selection import Candidate
from tests.capture.scripts import script
from tests.trials.scripts import LIGHTNING, RANKS

pytestmark = pytest.mark.slow

SIZE = Size(warmup=5, timed=10, timed_s=0.0, expected_s=30.0)

FUSED, THREADS = "patch:torch.optim(fused=True)", "patch:torch.set_num_threads(threads=2)"
SELDOM = "patch:gc.collect(every=500)"
BFLOAT16, NONE = "wrap:torch.autocast", "patch:zero_grad(set_to_none=True)"

SMALL = """
import sys
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(60)])
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for number in range(1_000_000):
    optimizer.zero_grad(set_to_none=False)
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    {after}
"""
"""Two thirds of its step are the optimizer, one small parameter after the other."""

NUMBERS = """
import os
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Dropout(0.2), torch.nn.Flatten()
model = torch.nn.Sequential(*layers, torch.nn.Linear(8 * 36, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
for number in range(int(os.environ.get("STEPS", 1_000_000))):
    optimizer.zero_grad(set_to_none=False)
    loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(0, 4, (4,)))
    loss.backward()
    optimizer.step()
    with open("losses.txt", "a") as file:
        print(loss.item().hex(), model[1].running_mean.sum().item().hex(), file=file)
"""
"""With random numbers, and with buffers that each forward pass changes."""


def small(after: str = "") -> str:
    return SMALL.format(after=after)


def candidate(trial: str, number: int = 1, safety: Safety = Safety.ROUNDING) -> Candidate:
    return Candidate("some_rule", number, Fix("Do it.", safety=safety, trial=trial), trial, None)


def screened(folder: Path, text: str, *names: str, seconds: float = 60.0, words: Sequence[str] = ()) -> Screen:
    command = [sys.executable, *words, str(script(folder, text))]
    some = [candidate(name, number) for number, name in enumerate(names, 1)]
    return screen(command, folder / "arm1", SIZE, some, seconds, lambda found: None)


def trial(found: Screen, number: int = 0, why: str = "") -> Trial:
    one = found.screened[number]
    return trial_of(candidate(one.name, number + 1), one, found.screened, {}, why)


def test_what_gains_is_kept_and_nothing_is_void(tmp_path: Path) -> None:
    """A collection by hand takes ten times the rest of the step."""
    text = small(after="gc.collect()").replace("import sys", "import gc")
    found = screened(tmp_path, text, "wrap:channels_last", "patch:torch.cuda.synchronize", SELDOM, FUSED, seconds=45)
    assert (found.failed, found.interrupted) == (None, False)
    layout, waiting, seldom, fused = found.screened
    assert seldom.kept
    assert seldom.injected == ("gc.collect() at train.py:14: made once in 500 calls",)
    assert min(seldom.peak_bytes) > 50e6
    gained = trial(found, 2)
    assert gained.verdict == "keep"
    assert gained.measured.likely > 2
    assert (gained.measured_by, gained.added, gained.pairs) == ("blocks", None, len(seldom.alone))

    assert fused.injected == ("AdamW: fused None -> True",)
    assert fused.updates.kind in ("same", "rounding")
    assert fused.outputs.kind == "same"
    assert fused.on_top_of in ((), (SELDOM,))
    assert bool(fused.added) == bool(fused.on_top_of)

    assert trial(found, 0).verdict == "not_injected"
    assert layout.void == "the model has no weights of four dimensions that are not channels_last already"
    assert (trial(found, 1).verdict, waiting.alone) == ("not_injected", ())
    assert trial(found, 1).why == "The run reached no line of the script that it changes."


@pytest.mark.exhaustive
def test_a_save_that_each_block_has_is_no_fault(tmp_path: Path) -> None:
    """Epochs of eight steps end with one. Blocks of 0.3 s hold several, and are not made again for them."""
    text = small(after="if number % 8 == 0: torch.save(model.state_dict(), 'model.pt')")
    text = text.replace("for number in range(1_000_000):", "loader = torch.utils.data.DataLoader(range(8))\n{epochs}")
    text = text.format(epochs="for number, _ in enumerate(row for epoch in range(100_000) for row in loader):")
    found = screened(tmp_path, text.replace("'model.pt'", repr(str(tmp_path / "model.pt"))), FUSED, seconds=20)
    assert found.failed is None
    (fused,) = found.screened
    assert len(fused.alone) >= 3
    assert fused.repeated_for.keys() <= {"pause", "collection"}  # By other processes.


def test_what_harms_is_not_kept(tmp_path: Path) -> None:
    """Each step casts all weights, for one row."""
    text = small().replace("Linear(16, 16) for _ in range(60)", "Linear(512, 512) for _ in range(6)")
    text = text.replace("torch.randn(8, 16)", "torch.randn(1, 512)").replace("optim.AdamW", "optim.SGD")
    found = screened(tmp_path, text, BFLOAT16, seconds=30)
    (autocast,) = found.screened
    told = trial_of(candidate(BFLOAT16, 1, Safety.PRECISION), autocast, found.screened, {})
    assert (autocast.kept, told.verdict in ("slower", "inconclusive")) == (False, True)
    assert autocast.outputs.kind == "differ"
    assert 1e-4 < autocast.outputs.typical < autocast.outputs.largest


def test_fixes_of_the_environment_are_in_force_all_the_time_where_they_were_kept_before(tmp_path: Path) -> None:
    """The switch of the same variables finds them there."""
    command = [sys.executable, str(script(tmp_path, small()))]
    trims = "env:MALLOC_TRIM_THRESHOLD_=2147483647"
    some, start = [candidate(trims)], Start([trims])
    found = screen(command, tmp_path / "arm1", SIZE, some, 20.0, lambda found: None, start=start)
    assert found.screened[0].void == "MALLOC_TRIM_THRESHOLD_ is in the environment already"


def test_what_the_script_has_already_is_void_and_never_no_gain(tmp_path: Path) -> None:
    text = small().replace("foreach=False", "fused=True")
    found = screened(tmp_path, text, FUSED, "patch:set_detect_anomaly(mode=False)")
    assert [trial(found, number).verdict for number in (0, 1)] == ["not_injected", "not_injected"]
    assert trial(found).why == "The script has fused=True already."
    assert trial(found, 1).why == "Anomaly detection is off between steps."


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
@pytest.mark.exhaustive
def test_compiling_is_timed_apart(tmp_path: Path) -> None:
    text = small().replace("range(60)", "range(4)")
    found = screened(tmp_path, text, "wrap:torch.compile")
    (compiled,) = found.screened
    assert compiled.injected == ("Sequential: compiled when it is called",)
    assert compiled.settling_s > 1.0
    assert compiled.outputs.kind in ("same", "rounding")
    assert len(compiled.alone) >= 5
    told = trial(found).warmup_s
    assert told.with_ == compiled.settling_s


@pytest.mark.exhaustive
def test_a_training_stays_what_it_is_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of switches that change no numbers; forward passes beside it and steps of copies leave nothing."""
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, str(script(tmp_path, NUMBERS))], check=True, env={**os.environ, "STEPS": "3000"})
    alone = (tmp_path / "losses.txt").read_text().splitlines()
    (tmp_path / "losses.txt").unlink()
    found = screened(tmp_path, NUMBERS, NONE, "patch:gc.freeze(every=500)", seconds=5)
    made = (tmp_path / "losses.txt").read_text().splitlines()
    assert found.screened[0].alone
    assert found.screened[0].outputs.kind == "same"
    assert len(made) > 1000
    assert made[: len(alone)] == alone[: len(made)]


def test_a_script_that_ends_early_leaves_what_was_measured(tmp_path: Path) -> None:
    """When its optimizer is turned for the ninth time: the first pair of blocks, each made thrice, takes seven.
    Or in the first step with the next switch, where enough is known before."""
    turned = "turns.append(optimizer.param_groups[0]['fused'])\n    over = sum(a != b for a, b in pairwise(turns)) > 8"
    turned += "\n    if over or loss.dtype == torch.bfloat16: break"
    text = small(after=turned).replace("import sys", "from itertools import pairwise; turns = []")
    found = screened(tmp_path, text, FUSED, BFLOAT16)
    assert found.ended_after_s > 0
    assert 1 <= len(found.screened[0].alone) <= 9
    assert not found.screened[1].ended


def test_what_ends_the_script_is_blamed_on_what_was_on(tmp_path: Path) -> None:
    """Its own check of the optimizer raises in the first block with it."""
    text = small(after="if optimizer.param_groups[0]['fused'] and number > 40: raise MemoryError('out of memory')")
    found = screened(tmp_path, text, FUSED)
    assert found.failed.verdict == "out_of_memory"
    assert found.screened[0].is_on


def test_what_cannot_compute_the_batch_is_no_error_of_the_training(tmp_path: Path) -> None:
    """Fused AdamW refuses complex parameters: a step of its copy tells."""
    text = small().replace("Linear(16, 16)", "Linear(16, 16, dtype=torch.cfloat)").replace("range(60)", "range(2)")
    text = text.replace("torch.randn(8, 16))", "torch.randn(8, 16, dtype=torch.cfloat)).abs()")
    found = screened(tmp_path, text, FUSED)
    assert found.failed is None
    assert found.screened[0].void.startswith("with it PyTorch raises NotImplementedError: ")
    assert (trial(found).verdict, found.screened[0].alone) == ("inconclusive", ())


@pytest.mark.exhaustive
def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    seen = list[Sequence[Screened]]()
    interrupt = threading.Event()

    def told(found: Sequence[Screened]) -> None:
        seen.append(found)
        if found[0].alone and not interrupt.is_set():
            interrupt.set()
            signal.raise_signal(signal.SIGINT)

    command = [sys.executable, str(script(tmp_path, small()))]
    begun_s = time.monotonic()
    found = screen(command, tmp_path / "arm1", SIZE, [candidate(THREADS), candidate(FUSED, 2)], 600.0, told)
    assert found.interrupted
    assert time.monotonic() - begun_s < 300
    assert len(found.screened[0].alone) >= len(seen[-1][0].alone) >= 1
    assert not found.screened[1].ended


@pytest.mark.exhaustive
def test_ranks_turn_at_the_same_step(tmp_path: Path) -> None:
    """Weights of both ranks stay the same, though an optimizer that is fused on one of them alone would round apart."""
    text = RANKS.format(passes="1", count=False, shown=10**9).replace("torch.optim.SGD", "torch.optim.AdamW")
    check = "    if number % 20 == 0:\n        weights = [torch.zeros(64, 64) for rank in range(2)]\n"
    check += "        dist.all_gather(weights, model.module[0].weight.detach())\n        assert torch.equal(*weights)\n"
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    text = text.replace("    dist.barrier()\n", f"    dist.barrier()\n{check}")
    found = screened(tmp_path, text, FUSED, "patch:torch.distributed.barrier", words=words, seconds=80)
    assert found.failed is None
    assert [one.void for one in found.screened] == ["", ""]
    assert all(len(one.alone) >= 3 for one in found.screened)


TRAINER = """
import tempfile
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.set_num_threads(1)
sizes = dict(n_embd=32, n_head=2, n_layer=2, n_positions=32, vocab_size=100)
model = GPT2LMHeadModel(GPT2Config(**sizes, attn_implementation="eager"))
rows = [{"input_ids": torch.randint(0, 100, (32,)), "labels": torch.randint(0, 100, (32,))} for _ in range(4096)]
arguments = dict(max_steps=1_000_000, report_to=[], use_cpu=True, optim="adamw_torch", disable_tqdm=True)
arguments |= dict(logging_steps=1000, save_strategy="no")
Trainer(model, TrainingArguments(tempfile.mkdtemp(), **arguments), train_dataset=rows).train()
"""

ACCELERATED = """
import torch
from accelerate import Accelerator

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 64)), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(1000):
    for (rows,) in loader:
        optimizer.zero_grad()
        accelerator.backward(model(rows).square().mean())
        optimizer.step()
"""

OF_ADAM = LIGHTNING.replace("torch.optim.SGD(self.parameters(), lr=0.01)", "torch.optim.AdamW(self.parameters())")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("text", "model"),
    [(TRAINER, "GPT2LMHeadModel"), (OF_ADAM, "Sequential"), (ACCELERATED, "Sequential")],
    ids=["transformers", "lightning", "accelerate"],
)
def test_frameworks_are_screened_like_plain_loops(tmp_path: Path, text: str, model: str) -> None:
    """Their steps are an optimizer's, their model is the largest that a step calls."""
    found = screened(tmp_path, text, FUSED, BFLOAT16, seconds=40)
    assert found.failed is None
    fused, autocast = found.screened
    assert (fused.void, autocast.void) == ("", "")
    assert fused.injected[0].startswith("AdamW: fused ")
    assert autocast.injected == (f"{model}: called in autocast to bfloat16",)
    assert fused.updates.kind in ("same", "rounding")
    assert autocast.outputs.kind == "differ"
    assert min(len(fused.alone), len(autocast.alone)) >= 3


def test_in_a_later_process_all_is_on_top_of_what_was_kept() -> None:
    one = Screened(name=FUSED, alone=((2.0, 1.0), (2.0, 1.1), (2.1, 1.0)))
    moved = on_top_of([BFLOAT16], one)
    assert (moved.alone, moved.added, moved.on_top_of) == ((), one.alone, (BFLOAT16,))
    alone, added = so_far(moved, [moved])
    assert alone is None
    assert added is not None
    told = trial_of(candidate(FUSED, 2), moved, [moved], {BFLOAT16: 1})
    assert (told.measured, told.added, told.on_top_of, told.verdict) == (None, added, (1,), "keep")
