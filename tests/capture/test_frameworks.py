"""Trainers of others: recorded from outside, as they are, and from inside by a callback."""

import sys
from pathlib import Path

import pytest

from diagnose.source.run_log import read
from diagnose.watched.assembly import rank_run
from tests.capture.scripts import Done, plain, profile, script, steps_in
from tests.exhaustive import some_of

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

LIGHTNING = """
import sys, torch
import lightning
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

callbacks = []
if sys.argv[1:]:
    from diagnose.capture.lightning import Record
    callbacks.append(Record("out", steps=3, stop=True))
quiet = dict(enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, logger=False)
trainer = Trainer(max_epochs=2, accelerator="cpu", callbacks=callbacks, accumulate_grad_batches=2, **quiet)
data = TensorDataset(torch.randn(20000, 64), torch.randint(0, 10, (20000,)))
trainer.fit(Model(), DataLoader(data, batch_size=20))
print("steps", trainer.global_step)
"""

TRANSFORMERS = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self): return 2000
    def __getitem__(self, index):
        tokens = torch.arange(index % 50, index % 50 + 16)
        return {"input_ids": tokens, "labels": tokens}

callbacks = []
if sys.argv[1:]:
    from diagnose.capture.transformers import Record
    callbacks.append(Record("out", steps=3, stop=True))
size = dict(vocab_size=100, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    "checkpoints", per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=1, report_to=[],
    use_cpu=True, save_strategy="no", disable_tqdm=True,
)
trainer = Trainer(model=GPT2LMHeadModel(GPT2Config(**size)), args=arguments, train_dataset=Data(), callbacks=callbacks)
trainer.train()
print("steps", trainer.state.global_step)
"""

AFTER_A_CRASH = TRANSFORMERS.replace(
    "trainer.train()\n",
    """
class Fails(torch.nn.Module):
    def forward(self, **_): raise RuntimeError("out of memory")

first = Record("first", steps=3)
try:
    Trainer(model=Fails(), args=arguments, train_dataset=Data(), callbacks=[first]).train()
except Exception as error:
    print(error)
trainer.train()
""",
)

ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(64, 10)
data = TensorDataset(torch.randn(20000, 64), torch.randint(0, 10, (20000,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=10))
for epoch in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
"""

TRAINERS = {"lightning": LIGHTNING, "transformers": TRANSFORMERS}


def recorded(done: Done) -> None:
    """Two losses a step, as gradients are accumulated over two batches."""
    assert done.rank.timing is not None
    assert done.manifest.complete
    for names in steps_in(done.folder / "rank0.trace.json.gz").values():
        assert names.count("autograd::engine::evaluate_function: NllLossBackward0") == 2


@pytest.mark.parametrize("package", TRAINERS)
def test_a_trainer_is_recorded_as_it_is(tmp_path: Path, package: str) -> None:
    pytest.importorskip(package)
    done = profile(tmp_path, "--steps", 3, "train.py", text=TRAINERS[package])
    assert done.code == 0, done.stderr
    assert "steps" not in done.stdout
    assert (done.rank.steps_by, done.rank.loop) == ("optimizer", package)
    recorded(done)


@pytest.mark.parametrize("package", some_of(TRAINERS, {"lightning"}))
def test_a_callback_records_from_inside_also_after_a_training_that_failed(tmp_path: Path, package: str) -> None:
    pytest.importorskip(package)
    script(tmp_path, AFTER_A_CRASH if package == "transformers" else TRAINERS[package])
    ran = plain(tmp_path, "train.py", "--record")
    assert ran.returncode == 0, ran.stderr
    done = Done(0, "", "", tmp_path / "out")
    assert done.rank.steps_by == "code"
    assert done.rank.attribution is not None
    last = done.rank.unprofiled_after.first_step + len(done.rank.unprofiled_after.wall_ns)
    assert ran.stdout.endswith(f"steps {last}\n")
    assert package != "transformers" or not Done(0, "", "", tmp_path / "first").manifest.complete


@pytest.mark.parametrize("package", TRAINERS)
def test_a_callback_watches_from_inside(tmp_path: Path, package: str) -> None:
    pytest.importorskip(package)
    watching = TRAINERS[package].replace("Record", "Watch").replace(", steps=3, stop=True", "")
    script(tmp_path, watching)
    ran = plain(tmp_path, "train.py", "--watch")
    assert ran.returncode == 0, ran.stderr
    log = read(tmp_path / "out" / "rank0.watch")
    run = rank_run(log)
    assert f"steps {run.steps}\n" in ran.stdout
    assert (run.steps_by, run.ended, log.damaged) == ("code", "itself", 0)
    phases = {one.phase: one.count for one in run.phases}
    assert phases["optimizer"] == phases["backward"] == run.steps - 1
    assert not (tmp_path / "out" / ".work").exists()


@pytest.mark.exhaustive
def test_accelerate_launch(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    script(tmp_path, ACCELERATE)
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    done = profile(tmp_path, "--", *launcher, "train.py")
    assert done.code == 0, done.stderr
    assert done.rank.loop == "accelerate"
    recorded(done)
