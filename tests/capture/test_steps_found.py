"""Steps of scripts that have no optimizer, make few steps, or are started in unusual ways."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.capture.agent.plan import Plan
from diagnose.capture.run import prepare, run
from diagnose.trace.manifest import RankManifest
from tests.capture.scripts import STEP, plain, profile, script

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

BY_HAND = """
import sys, time
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

def step():
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(64, 64)), torch.randint(0, 10, (64,)))
    loss.backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
    return loss.item()

"""


def test_without_an_optimizer_backward_passes_are_steps_and_losses_are_the_same(tmp_path: Path) -> None:
    script(tmp_path, BY_HAND + "for i in range(400):\n    print(step().hex())\n")
    done = profile(tmp_path, "--keep-running", "train.py")
    assert (done.code, done.rank.steps_by, done.rank.ended) == (0, "backward", "recorded")
    assert "diagnose: Each backward pass counts as a step, as no optimizer stepped." in done.stderr
    assert done.stdout == plain(tmp_path, "train.py").stdout


@pytest.mark.exhaustive
def test_an_optimizer_after_a_warm_up_without_one_wins(tmp_path: Path) -> None:
    """35 backward passes come first, of which the last five are taken for steps."""
    loop = "for i in range(35):\n    model(torch.randn(8, 64)).sum().backward()\n"
    loop += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor i in range(100_000):\n"
    done = profile(tmp_path, "train.py", text=BY_HAND + loop + "    step()\n    optimizer.step()\n")
    assert (done.code, done.rank.steps_by) == (0, "optimizer")


@pytest.mark.exhaustive
def test_checkpointed_parts_are_no_passes_of_their_own() -> None:
    code = """
import torch
from torch.utils.checkpoint import checkpoint
from diagnose.capture.agent import backwards
seen = []
original = torch.autograd.backward
act = lambda: seen.append(1)
backwards.listen_to_ends(act)
layer = torch.nn.Linear(4, 4)
for _ in range(3):
    x = torch.randn(2, 4, requires_grad=True)
    checkpoint(layer, checkpoint(layer, x, use_reentrant=True), use_reentrant=True).sum().backward()
print(len(seen))
try:
    torch.zeros(1).backward()
except RuntimeError:
    x.sum().backward()
print(len(seen))
backwards.leave(act)
print(torch.autograd.backward is original)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["3", "4", "True"], done.stderr


INFERENCE = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).eval()
loss = torch.nn.MSELoss()
with torch.no_grad():
    while True:
        loss(model(torch.randn(512, 64)), torch.zeros(512, 64))
"""


def run_with(tmp_path: Path, plan: Plan, path: Path) -> tuple[RankManifest, list[str]]:
    said, words = list[str](), [sys.executable, str(path)]
    done = run(words, prepare(tmp_path / "out", plan, words), plan, said.append)
    (rank,) = done.manifest.ranks
    return rank, said


LOOKED_AT = """
import threading, time, torch
from diagnose.capture.agent import noticed, threads
layer, seen = torch.nn.Linear(4, 4), []
def slowly():
    for number in range(40):
        time.sleep(0.01)
        yield number
def look():
    for _ in range(20):
        threads.soon(lambda: seen.append(noticed.largest()))
        time.sleep(0.01)
looking = threading.Thread(target=look)
looking.start()
print(len(tuple(slowly())))
looking.join()
print(layer in seen)
"""


@pytest.mark.exhaustive
def test_a_tuple_that_the_script_is_making_is_not_held_while_its_model_is_looked_for() -> None:
    """Else Python cannot finish it, and the script ends with a SystemError."""
    done = subprocess.run([sys.executable, "-c", LOOKED_AT], capture_output=True, text=True)
    assert done.stdout.split() == ["40", "True"], done.stderr


@pytest.mark.exhaustive
def test_inference_is_recorded_by_calls_of_the_model(tmp_path: Path) -> None:
    rank, _ = run_with(tmp_path, Plan(calls_after_s=1.0), script(tmp_path, INFERENCE))
    assert (rank.steps_by, rank.ended) == ("call", "recorded")


@pytest.mark.exhaustive
def test_a_script_without_steps_is_told_how_to_mark_them_and_a_stretch_of_time_is_recorded(tmp_path: Path) -> None:
    text = "import torch\nx = torch.randn(256, 256)\nwhile True:\n    x = torch.tanh(x @ x)\n"
    path = script(tmp_path, text)
    rank, said = run_with(tmp_path, Plan(hint_after_s=1.5, window_after_s=6.0), path)
    assert said[0].split("\n") == [
        f"no step was found in 2 s. To mark steps, change the script in {path}, line 3, and run it with python:",
        "    import diagnose",
        '    with diagnose.record("diagnose-runs/marked") as recording:',
        "        while True:",
        "            ...",
        "            recording.step()",
    ]
    assert "no steps were found; recording 2 s" in said
    assert (rank.steps_by, rank.ended, rank.trace) == ("time", "recorded", "rank0.trace.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "out" / "rank0.trace.json.gz").read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "aten::mm" for event in events) > 10


@pytest.mark.exhaustive
def test_few_backward_passes_are_counted(tmp_path: Path) -> None:
    done = profile(tmp_path, "train.py", text=BY_HAND + "for i in range(20):\n    step()\n")
    assert done.code == 2
    said = "diagnose: The run made 20 backward passes but no optimizer step. At least 31 count as steps"
    assert said in done.stderr


@pytest.mark.parametrize(
    ("wanted", "made", "recorded"), [(2, 15, 3), pytest.param(8, 21, 4, marks=pytest.mark.exhaustive)]
)
def test_a_script_of_few_steps(tmp_path: Path, wanted: int, made: int, recorded: int) -> None:
    """15 are what --warmup 1 --steps 2 needs (the steps are steady, or waited for no longer, after five).
    Of 21 and --steps 8 one begins the clock, 5 warm up, 8 are timed, 1 tells the size between 2 others: 4 are left."""
    text = STEP + f"for i in range({made}):\n    step()\n"
    done = profile(tmp_path, "--warmup", 1, "--steps", wanted, "train.py", text=text)
    assert (done.code, done.rank.trace, done.rank.steps_made) == (0, "rank0.trace.json.gz", made)
    assert len(done.rank.timing.wall_ns) == recorded


@pytest.mark.parametrize("text", ["for i in", "raise MemoryError('full')"])
def test_the_error_of_a_script_stands_alone(tmp_path: Path, text: str) -> None:
    done, without = profile(tmp_path, "train.py", text=text), plain(tmp_path, "train.py")
    assert (done.code, done.stderr) == (1, without.stderr)


@pytest.mark.exhaustive
def test_a_launcher_whose_script_fails_at_once(tmp_path: Path) -> None:
    script(tmp_path, "raise ValueError('boom')\n")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = profile(tmp_path, "--", *launcher, "train.py")
    assert done.code == 1
    assert "ValueError: boom" in done.stderr
    assert "diagnose: " not in done.stderr
    assert "found no training step" not in done.stderr


@pytest.mark.exhaustive
def test_closures_of_lbfgs_are_no_steps_also_in_code_on_the_command_line(tmp_path: Path) -> None:
    loop = """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))

def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss

for i in range(1000):
    optimizer.step(closure)
    with torch.no_grad():
        model(x)
"""
    done = profile(tmp_path, "--", sys.executable, "-c", BY_HAND + loop)
    assert (done.code, done.rank.steps_by, done.rank.ended) == (0, "optimizer", "recorded")
    assert [optimizer.name for optimizer in done.rank.optimizers] == ["LBFGS"]
