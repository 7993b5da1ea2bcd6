"""`with diagnose.record(...)` in a training loop."""

from pathlib import Path

import pytest

import diagnose
from diagnose.capture.run import CannotRecord
from diagnose.source.run_log import read
from diagnose.watched.assembly import rank_run
from tests.capture.scripts import RECORDED, STEP, Done, plain, script, steps_in

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

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
