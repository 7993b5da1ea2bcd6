"""Recordings from inside, by `with diagnose.record(...)` and by callbacks of trainers; and trainers as they are."""

import sys
from pathlib import Path

import pytest

import diagnose
from diagnose.capture.run import CannotRecord
from diagnose.source.run_log import read
from diagnose.watched.assembly import rank_run
from tests.capture.scripts import RECORDED, STEP, Done, plain, profile, script, steps_in
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
    def __len__(self): return 4000
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


@pytest.mark.exhaustive
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


@pytest.mark.parametrize("package", some_of(TRAINERS, ["transformers"]))
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


LOOP = """
import diagnose
with diagnose.record("out", steps=3, warmup=5) as recording:
    for i in range(1000):
        step()
        recording.step()
        if recording.finished:
            break
print("after", i)
"""


def test_a_loop_of_one_s_own(tmp_path: Path) -> None:
    """Its relative folder stays where it is, wherever the script goes."""
    script(tmp_path, STEP + LOOP.replace("        step()\n", "        step()\n        os.chdir('/')\n"))
    ran = plain(tmp_path, "train.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("after ")
    done = Done(0, "", "", tmp_path / "out")
    assert done.files == RECORDED
    assert (done.manifest.complete, done.manifest.notes) == (True, ())
    assert (done.rank.steps_by, done.rank.ended) == ("code", "recorded")
    # One more than asked for, as the first is not used; more where steps of a busy machine seem to have a cycle.
    first, count = done.rank.timing.first_step, len(done.rank.timing.wall_ns)
    assert count >= 4
    assert sorted(steps_in(done.folder / "rank0.trace.json.gz")) == list(range(first, first + count))
    assert diagnose.analyze(done.folder).steps.recorded == count


def test_a_loop_that_ends_early_keeps_what_there_is(tmp_path: Path) -> None:
    script(tmp_path, STEP + LOOP.replace("steps=3", "steps=300").replace("range(1000)", "range(200)"))
    assert plain(tmp_path, "train.py").returncode == 0
    done = Done(0, "", "", tmp_path / "out")
    assert done.files == ["manifest.json", "rank0.trace.json.gz"]
    assert (done.rank.ended, done.manifest.complete) == ("itself", True)


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CannotRecord, match=r"is not empty\. Name a new folder"), diagnose.record(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_cell_of_a_notebook_is_run_twice(tmp_path: Path) -> None:
    """First after a failure, then over its own recording."""
    broken = LOOP.replace('"out",', '"out", overwrite=True,').replace("step()", "raise_", 1)
    cell = LOOP.replace('"out",', '"out", overwrite=True,')
    twice = f"try:\n    exec({broken!r})\nexcept NameError:\n    print('failed')\nexec({cell!r})\nexec({cell!r})\n"
    script(tmp_path, STEP + twice)
    ran = plain(tmp_path, "train.py")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["failed", "after", "after"]
    done = Done(0, "", "", tmp_path / "out")
    assert done.manifest.complete
    assert "rank0.trace.json.gz" in done.files


def test_one_recording_at_a_time_in_a_process(tmp_path: Path) -> None:
    refused = pytest.raises(CannotRecord, match=r"^This process is already recording\. End that")
    with diagnose.record(tmp_path / "a"), refused, diagnose.record(tmp_path / "b"):
        pass
    with diagnose.record(tmp_path / "b"):
        pass


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"warmup": 0}, {"ranks": "some"}])
def test_no_steps_and_no_ranks_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|are not ranks\. Write auto, all, or"):
        diagnose.record(tmp_path, **wrong)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_ranks_that_record_themselves_are_all_in_the_manifest(tmp_path: Path) -> None:
    """The second says what it knows a second later than the first, which waits for it."""
    text = (
        'import os, time, torch, torch.distributed as dist, diagnose\ndist.init_process_group("gloo")\n'
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        'with diagnose.record("out", steps=3, warmup=5) as recording:\n    for i in range(120):\n'
        "        optimizer.zero_grad()\n        model(torch.randn(32, 64)).sum().backward()\n        optimizer.step()\n"
        "        recording.step()\n    time.sleep(dist.get_rank())\ntime.sleep(0.5)\ndist.destroy_process_group()\n"
    )
    script(tmp_path, text)
    ran = plain(tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py")
    assert ran.returncode == 0, ran.stderr
    manifest = Done(0, "", "", tmp_path / "out").manifest
    assert [(rank.rank, rank.world_size, rank.steps_by) for rank in manifest.ranks] == [(0, 2, "code"), (1, 2, "code")]
    assert (manifest.complete, manifest.notes) == (True, ())


WATCHED = """
import diagnose
from pathlib import Path
from diagnose.capture.asked_recordings import ask, is_made
from torch.utils.data import DataLoader
with diagnose.watch("out"):
    for i in range(400):
        step()
        if i % 10 == 0:
            list(DataLoader(range(4)))
        if i % 100 == 50:
            torch.save(model.state_dict(), "model.pt")
    target = ask(Path("out"))
    for _ in DataLoader(range(100_000), batch_size=3):
        step()
        i += 1
        if is_made(target):
            break
print(i + 1)
"""


def test_a_training_of_one_s_own_is_watched_and_recorded_when_asked(tmp_path: Path) -> None:
    script(tmp_path, STEP + WATCHED)
    ran = plain(tmp_path, "train.py")
    assert ran.returncode == 0, ran.stderr
    run = rank_run(read(tmp_path / "out" / "rank0.watch"))
    assert (run.steps, run.steps_by, run.ended) == (int(ran.stdout), "optimizer", "itself")
    counts = {one.phase: one.count for one in run.phases}
    assert counts["save"] == 4
    assert counts["optimizer"] == counts["step"] == run.steps - 1 - counts["recording"]
    done = Done(0, "", "", tmp_path / "out" / "recording-1")
    assert done.files == RECORDED
    assert done.rank.steps_by == "optimizer"
    (loader,) = done.rank.loaders  # Whatever loaders there were before.
    assert loader.batch_size == 3


def test_only_one_thing_is_recorded_or_watched_at_a_time(tmp_path: Path) -> None:
    second = pytest.raises(CannotRecord, match="This process is already recording")
    with diagnose.watch(tmp_path / "a"), second, diagnose.record(tmp_path / "b"):
        pass
