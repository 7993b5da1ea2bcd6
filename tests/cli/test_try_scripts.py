"""`diagnose try` on scripts as people write them: frameworks, accumulation, and what gets in the way of timing."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from diagnose.trace.manifest import Manifest
from diagnose.trials.arms import compared, first_size
from tests.capture.scripts import profile, script
from tests.cli.invoking import refused, run
from tests.trials.running import SIZE, arm

pytestmark = pytest.mark.slow

STORED = """
import sys
import time
import torch

torch.set_num_threads(1)
torch.manual_seed(0)


class Stored(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.full((64,), index / 4096), index % 10


def net():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def loss_of(scores, labels):
    return torch.nn.functional.cross_entropy(scores, labels)

"""
"""Each batch waits for storage, in the process that trains."""

PLAIN = """
def main():
    {first}
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    number = 0
    for epoch in range(100):
        for rows, labels in torch.utils.data.DataLoader(Stored(), batch_size=8):
            number += 1
            {inside}


if __name__ == "__main__":
    main()
"""

STEP = "loss_of(model(rows), labels).backward(); optimizer.step(); optimizer.zero_grad()"

LIGHTNING = """
import lightning


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, number):
        return loss_of(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    trainer = lightning.Trainer(max_epochs=100, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(Stored(), batch_size=8))
"""

TRAINER = """
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, rows, labels):
        scores = self.net(rows)
        return {"loss": loss_of(scores, labels), "logits": scores}


def collate(items):
    rows, labels = zip(*items)
    return {"rows": torch.stack(rows), "labels": torch.tensor(labels)}


if __name__ == "__main__":
    sizes = dict(per_device_train_batch_size=8, gradient_accumulation_steps=2, num_train_epochs=100)
    others = dict(use_cpu=True, report_to=[], save_strategy="no", remove_unused_columns=False)
    arguments = TrainingArguments("written", **sizes, **others)
    Trainer(Model(), arguments, train_dataset=Stored(), data_collator=collate).train()
"""

ACCELERATE = """
from accelerate import Accelerator


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Stored(), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(100):
        for rows, labels in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model(rows), labels))
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
"""


def plain(inside: str = STEP, first: str = "pass") -> str:
    """A training loop. `inside`: lines of each round; `first`: a line before all."""
    return PLAIN.format(inside=inside.replace("\n", "\n" + 12 * " "), first=first)


ACCUMULATION = plain(
    "try:\n    (loss_of(model(rows), labels) / 4).backward()\n"
    "    if number % 4 == 0: optimizer.step(); model.zero_grad()\n"
    'except SystemExit: print("not now", flush=True)'
)
SLOW_START = plain(f"time.sleep(0.02 if number <= 200 else 0)\n{STEP}")


def tried(folder: Path, text: str, *words: str) -> dict[str, Any]:
    """What comes of trying workers in a script."""
    done = profile(folder, *words, script(folder, STORED + text).name, timeout=300)
    assert done.code == 0, done.stderr
    what = ["out", "--fix", "dataloader_starvation", "--pairs", "2", "--budget", "5m", "--yes", "--json", "-"]
    found = run("try", *what, cwd=folder, OMP_NUM_THREADS="1")
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def line_of_loader(text: str) -> int:
    return 1 + next(at for at, one in enumerate(text.splitlines()) if "DataLoader(" in one or ".train()" in one)


@pytest.mark.parametrize(
    ("text", "losses_a_step"),
    [
        pytest.param(LIGHTNING, 1, id="lightning", marks=pytest.mark.exhaustive),
        pytest.param(TRAINER, 2, id="trainer", marks=pytest.mark.exhaustive),
        pytest.param(ACCELERATE, 2, id="accelerate", marks=pytest.mark.exhaustive),
    ],
)
def test_the_loader_of_a_framework_gets_workers(
    tmp_path: Path, text: str, losses_a_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, changed = (arm(tmp_path, STORED + text, *fix) for fix in ([], ["patch:DataLoader(num_workers=1)"]))
    line = line_of_loader(STORED + text)
    assert changed.injected == (f"DataLoader at train.py:{line}: num_workers 0 -> 1",)
    assert compared(first.losses, first.losses, changed.losses) == "same"
    assert len(changed.losses) >= losses_a_step * (SIZE.warmup + SIZE.timed)
    assert first.step_ns > losses_a_step * 8 * 0.5e6


@pytest.mark.exhaustive
def test_gradients_that_are_accumulated_and_an_exit_that_is_caught(tmp_path: Path) -> None:
    found = tried(tmp_path, ACCUMULATION)
    (trial,) = found["trials"]
    line = line_of_loader(STORED + ACCUMULATION)
    assert trial["injected"].startswith(f"DataLoader at train.py:{line}: num_workers 0 -> ")
    assert trial["losses"] == "same"
    assert trial["losses_compared"] >= 4 * (trial["steps"] + 10)
    assert trial["pairs"] >= 2
    assert trial["measured"]["high"] > 1
    assert found["baseline"]["step_ns"]["low"] > 4 * 8 * 0.5e6


@pytest.mark.exhaustive
def test_a_warm_up_that_the_user_names_holds_in_runs_as_well(tmp_path: Path) -> None:
    """The first 200 steps sleep for 20 ms more."""
    found = tried(tmp_path, SLOW_START, "--warmup", "200")
    manifest = msgspec.json.decode((tmp_path / "out" / "manifest.json").read_bytes(), type=Manifest)
    assert first_size(manifest).warmup >= 200
    (trial,) = found["trials"]
    assert trial["losses_compared"] >= 200 + trial["steps"]
    assert min(trial["warmup_s"].values()) > 200 * 0.02


@pytest.mark.exhaustive
def test_a_script_that_reads_its_input_cannot_be_tried(tmp_path: Path) -> None:
    """Recorded with input: `diagnose profile` leaves it to the script."""
    text = plain(first="assert sys.stdin.readline(), 'name a rate'")
    script(tmp_path, STORED + text)
    done = profile(tmp_path, script(tmp_path, STORED + plain()).name)
    assert done.code == 0
    script(tmp_path, STORED + text)
    said = "The unmodified script could not be measured. The script ended with exit code 1: AssertionError: name a rate"
    refused(run("try", "out", "--fix", "1", "--yes", cwd=tmp_path), said)
