"""`diagnose record`, and recordings that a watched run makes by itself, on real scripts."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diagnose.capture.asked_recordings import is_made
from diagnose.source.run_log import read
from diagnose.watched.assembly import rank_run
from tests.capture.scripts import RECORDED, ROOT, STEP, environment, manifest_of, plain, script, started, wait_for

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

HELD = """
    for _ in range(6_000 if at == 100 and os.path.exists("out") else 0):
        if "ask." in str([*os.walk("out")]):
            break
        time.sleep(0.01)
"""
"""Waits at a step until a recording is asked for, a minute at most: `diagnose record` starts as fast as it may."""

LOADED = (
    STEP
    + """
from torch.utils.data import DataLoader, TensorDataset

rows = DataLoader(TensorDataset(torch.ones(16_000, 64)), batch_size=8)
open("pid", "w").write(str(os.getpid()))
for at, (row,) in enumerate(rows):
    loss = step()
    time.sleep(0.004)
print(loss.hex())
"""
)


def command(*more: object) -> list[str]:
    return [sys.executable, "-m", "diagnose", *map(str, more)]


def begun(folder: Path, *more: object) -> subprocess.Popen[str]:
    """`diagnose watch -o out MORE` in the folder, which has seen some steps."""
    process = started(folder, *command("watch", "--no-analyze", "-o", folder / "out", *more))
    log = folder / "out" / "rank0.watch"
    wait_for(lambda: log.exists() and log.stat().st_size)
    return process


def record(*more: object) -> subprocess.CompletedProcess[str]:
    return plain(ROOT, "-m", "diagnose", "record", *more)


def test_the_next_steps_are_recorded_and_the_training_goes_on(tmp_path: Path) -> None:
    """Its losses stay the same to the bit. The loader is known, though its epoch began before."""
    script(tmp_path, LOADED.replace("    loss = step", f"{HELD}    loss = step"))
    alone = plain(tmp_path, "train.py")
    process, inner = begun(tmp_path, "train.py"), tmp_path / "out" / "recording-1"
    done = record(tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, f"Recorded. See it with: diagnose analyze {inner}\n"), done.stderr
    told, errors = process.communicate(timeout=600)
    assert (process.returncode, told) == (0, alone.stdout), errors
    assert sorted(path.name for path in inner.iterdir()) == RECORDED
    (rank,) = manifest_of(inner).ranks
    assert "Recorded during diagnose watch: on request." in manifest_of(inner).notes
    (loader,) = rank.loaders
    assert loader.batch_size == 8
    assert 30 < loader.asked < 400
    run = rank_run(read(tmp_path / "out" / "rank0.watch"))
    parts = {one.kind.value: one for one in run.parts}
    assert (run.steps, sum(one.ns for one in run.parts)) == (2000, run.length_ns)
    counts = [parts[kind].count for kind in ("training", "recording")]
    assert None not in counts
    assert sum(filter(None, counts)) == 1999
    assert run.damaged == 0


@pytest.mark.exhaustive
def test_signals_ask_but_where_the_script_has_its_own_use_of_them(tmp_path: Path) -> None:
    script(tmp_path, LOADED)
    process, inner = begun(tmp_path, "train.py"), tmp_path / "out" / "recording-1"
    time.sleep(1)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGUSR2)
    wait_for(lambda: is_made(inner))
    process.send_signal(signal.SIGUSR2)
    told, errors = process.communicate(timeout=600)
    assert (process.returncode, told.count("\n")) == (0, 1), errors
    for number in (1, 2):
        folder = tmp_path / "out" / f"recording-{number}"
        assert manifest_of(folder).ranks[0].trace is not None
        assert f"recording some steps into {folder}: requested by a signal" in errors
    own = "import signal\nsignal.signal(signal.SIGUSR2, lambda *_: print('mine', flush=True))\n"
    (tmp_path / "own").mkdir()
    script(tmp_path / "own", own + LOADED)
    process = begun(tmp_path / "own", "train.py")
    os.kill(int((tmp_path / "own" / "pid").read_text()), signal.SIGUSR2)
    told, errors = process.communicate(timeout=600)
    assert told.startswith("mine\n")
    assert not (tmp_path / "own" / "out" / "recording-1").exists()


RANKS = (
    STEP
    + f"""
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
for at in range(1200):
{HELD}    step()
    time.sleep(0.004)
torch.distributed.destroy_process_group()
"""
)


@pytest.mark.exhaustive
def test_all_ranks_record_the_same_steps(tmp_path: Path) -> None:
    script(tmp_path, RANKS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "train.py"]
    process = begun(tmp_path, "--", *launcher)
    done = record(process.pid)
    assert done.returncode == 0, done.stderr
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    found = manifest_of(tmp_path / "out" / "recording-1")
    assert [one.trace for one in found.ranks] == ["rank0.trace.json.gz", "rank1.trace.json.gz"]
    timed = [one.timing for one in found.ranks]
    assert None not in timed
    assert len({one.first_step for one in timed if one is not None}) == 1
    assert len(found.ranks[0].distributed.ddp) == 1


@pytest.mark.exhaustive
def test_commands_of_one_job_record_together(tmp_path: Path) -> None:
    """As where each machine or rank starts one; any of them may see what is asked for."""
    script(tmp_path, RANKS)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        where = {
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": taken.getsockname()[1],
        }
    asked = command("watch", "--no-analyze", "-o", tmp_path / "out", "train.py")
    both = [started(tmp_path, *asked, **where, RANK=rank) for rank in (0, 1)]
    wait_for(lambda: all((tmp_path / "out" / f"rank{rank}.watch").exists() for rank in (0, 1)))
    assert record(tmp_path / "out").returncode == 0
    assert [process.wait(600) for process in both] == [0, 0]
    timed = [one.timing for one in manifest_of(tmp_path / "out" / "recording-1").ranks]
    assert len(timed) == 2
    assert len({one.first_step for one in timed if one is not None}) == 1


@pytest.mark.exhaustive
def test_a_run_that_is_killed_as_it_records_leaves_its_log(tmp_path: Path) -> None:
    script(tmp_path, LOADED)
    process = begun(tmp_path, "train.py")
    assert record("--no-wait", tmp_path / "out").returncode == 0
    wait_for(lambda: (tmp_path / "out" / "recording-1").exists())
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGKILL
    assert "Traceback" not in errors
    assert read(tmp_path / "out" / "rank0.watch").damaged == 0
    assert not list(tmp_path.glob("out/**/.work"))
    refused = record(tmp_path / "out")
    assert refused.returncode == 2
    assert "has ended. Start one with diagnose watch" in refused.stderr
    again = plain(tmp_path, "-m", "diagnose", "watch", "--no-analyze", "--overwrite", "-o", "out", "train.py")
    assert again.returncode == 0, again.stderr
    assert not (tmp_path / "out" / "recording-1").exists()


def test_processes_that_nobody_watches_record_nothing(tmp_path: Path) -> None:
    for whom in (tmp_path, os.getpid()):
        done = record(whom)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(r"Error: .*\.\n", done.stderr)


STUTTER = (
    STEP
    + """
recording = os.path.join("out", "recording-1")
for at in range({most}):
    made = [os.path.exists(os.path.join(recording, name)) for name in ("manifest.json", ".work")]
    if at % 20 == 0 and made == [True, False]:
        break
    step()
    time.sleep(0.006)
    optimizer.zero_grad()
    loss = model(torch.ones(4, 64)).sum()
    if at % 20 == 7:
        time.sleep(0.15)
    loss.backward()
    optimizer.step()
"""
)


@pytest.mark.exhaustive
def test_the_next_outlier_is_caught(tmp_path: Path) -> None:
    """Every 40th step has one: a whole period is recorded, and the place is named. `--recordings 0` asks for none."""
    script(tmp_path, STUTTER.format(most=8000))
    process = begun(tmp_path, "train.py")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    inner = tmp_path / "out" / "recording-1"
    assert re.search(rf"recording some steps into {inner}: one step in \d+ takes 1\d\d ms longer", errors)
    (rank,) = manifest_of(inner).ranks
    assert max(rank.timing.wall_ns) > 150_000_000
    shown = subprocess.run(command("analyze", inner), env=environment(), capture_output=True, text=True, check=True)
    assert "Step-time spikes" in shown.stdout
    script(tmp_path, STUTTER.format(most=1000))
    process = begun(tmp_path, "--overwrite", "--recordings", 0, "train.py")
    _, errors = process.communicate(timeout=600)
    assert "recording some steps" not in errors
