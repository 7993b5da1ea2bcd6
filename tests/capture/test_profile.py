"""`diagnose profile` on real scripts."""

import contextlib
import gzip
import json
import math
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.scripts import RECORDED, STEP, Done, command, environment, plain, profile, script, started, steps_in

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

LOOP = STEP + "for i in range(int(sys.argv[1])):\n    step()\nprint('whole')\n"
DETACHED = """
import subprocess
sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=-3, stderr=-3)
open("sleeper", "w").write(str(sleeper.pid))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """A plain training, which leaves a process of its own behind."""
    folder = tmp_path_factory.mktemp("recorded")
    script(folder, DETACHED + LOOP)
    yield profile(folder, "--steps", 4, "train.py", 100_000)
    os.kill(int((folder / "sleeper").read_text()), signal.SIGKILL)


def test_a_script_is_recorded_and_ended(recorded: Done) -> None:
    done = recorded
    assert (done.code, done.stdout) == (0, "")
    assert done.files == RECORDED
    assert done.manifest.complete
    assert done.manifest.exit_code is None
    assert done.manifest.command == (sys.executable, "train.py", "100000")
    rank = done.rank
    assert (rank.rank, rank.world_size, rank.steps_by, rank.ended) == (0, 1, "optimizer", "recorded")
    assert len(rank.warm_up.wall_ns) >= 10
    assert 4 <= len(rank.unprofiled.wall_ns) <= 30
    assert rank.unprofiled.first_step == rank.warm_up.first_step + len(rank.warm_up.wall_ns)
    assert len(rank.timing.wall_ns) >= 5  # More if slow steps seem to come at a period, as on a busy machine.
    # In between one step is recorded to tell how large the recording will be, with a step before and after it that is
    # not: what one recording opens must be closed before the next begins. Cycles that a busy machine seems to have are
    # recorded from their begin.
    between = rank.timing.first_step - rank.unprofiled.first_step - len(rank.unprofiled.wall_ns)
    assert 3 <= between < 3 + rank.cycle
    assert rank.attribution.first_step > rank.timing.first_step + len(rank.timing.wall_ns)
    assert rank.event_cost is not None


@pytest.mark.exhaustive
def test_long_steps_at_a_period_are_recorded_with_the_others(tmp_path: Path) -> None:
    """In whole cycles; with stacks one of them, after one that is not used."""
    script(tmp_path, STEP + "for i in range(100_000):\n    step()\n    time.sleep(0.3 if i % 4 == 1 else 0.03)\n")
    done = profile(tmp_path, "--steps", 5, "train.py")
    assert done.rank.notes[0].startswith("One step in 4 takes ")
    unprofiled, timing, detail = (
        [ns > 200_000_000 for ns in one.wall_ns]
        for one in (done.rank.unprofiled, done.rank.timing, done.rank.attribution)
    )
    assert (len(unprofiled), done.rank.cycle) == (30, 4)
    assert (len(timing), sum(timing[1:])) == (9, 2)
    assert detail == [False, True, False]


def test_what_the_two_recordings_hold(recorded: Done) -> None:
    done = recorded
    timing, detail = (steps_in(done.folder / f"rank0.{name}.json.gz") for name in ("trace", "detail"))
    for steps, clock in ((timing, done.rank.timing), (detail, done.rank.attribution)):
        assert sorted(steps) == list(range(clock.first_step, clock.first_step + len(clock.wall_ns)))
    for names in (*timing.values(), *detail.values()):
        assert [name for name in names if name.startswith("Optimizer.")] == [
            "Optimizer.zero_grad#SGD.zero_grad",
            "Optimizer.step#SGD.step",
        ]
    kinds = {}
    for name in ("trace", "detail"):
        events = json.loads(gzip.decompress((done.folder / f"rank0.{name}.json.gz").read_bytes()))["traceEvents"]
        stacks = any(event.get("cat") == "python_function" for event in events)
        kinds[name] = (stacks, any("Input Dims" in event.get("args", {}) for event in events))
    assert kinds == {"trace": (False, False), "detail": (True, True)}


@pytest.mark.exhaustive
def test_collections_and_saves_are_ranges_of_the_timing_recording(tmp_path: Path) -> None:
    """Also while torch.compile traces, where a collection that called ops would leave them in the graph."""
    source = (
        STEP
        + """
import gc, io

gc.disable()
compiled = torch.compile(lambda x: x.sin() + 1, backend="aot_eager", dynamic=False)
for number in range(100_000):
    step()
    gc.collect()
    gc.enable()
    gc.set_threshold(10, 1, 1)
    assert torch.equal(compiled(torch.ones(number % 3 + 2)), torch.ones(number % 3 + 2).sin() + 1)
    gc.disable()
    text = f"{torch.ones(3)} {torch.ones(()):.3f}"
    if number % 2:
        torch.save(model.state_dict(), io.BytesIO())
"""
    )
    done = profile(tmp_path, "--steps", 4, "train.py", text=source)
    assert done.code == 0, done.stderr
    assert done.rank.marked == ("garbage_collection", "checkpoint", "text")
    timing = steps_in(done.folder / "rank0.trace.json.gz")
    assert all(names.count("Tensor.__repr__ (text)") == 1 for names in timing.values())
    assert all(names.count("<built-in function collect>") == 1 for names in timing.values())
    assert [names.count("torch.save (checkpoint)") for _, names in sorted(timing.items())] in (
        [0, 1] * 2 + [0],
        [1, 0] * 2 + [1],
    )
    assert sum(names.count("Python GC") for names in timing.values()) > 0


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux tells the CPU time of single threads")
def test_threads_of_python_that_compute_beside_the_training_are_noted(tmp_path: Path) -> None:
    source = (
        STEP
        + """
import threading, time

def spin():
    while True:
        sum(range(10_000))

def rest():
    while True:
        time.sleep(0.01)

for work in (spin, rest):
    threading.Thread(target=work, name=work.__name__, daemon=True).start()
for number in range(100_000):
    step()
    time.sleep(0.02)
"""
    )
    done = profile(tmp_path, "--steps", 4, "train.py", text=source)
    assert done.code == 0, done.stderr
    assert [python_thread.name for python_thread in done.rank.python_threads if python_thread.cpu_share > 0.2] == [
        "spin"
    ]
    assert done.rank.python_threads[0].cpu_share < 1.5


@pytest.mark.parametrize("ending", ["", "sys.exit(7)", "raise ValueError('boom')", "os.kill(os.getpid(), 9)"])
def test_a_script_that_never_trains_runs_as_without_us(tmp_path: Path, ending: str) -> None:
    text = (
        "import os, sys\nprint(sys.argv, __name__, __file__, os.getcwd(), sys.path, sys.stdin.read())\n"
        f"print('told', file=sys.stderr)\nsys.stdout.flush()\n{ending}\n"
    )
    script(tmp_path, text)
    words = [sys.executable, "train.py", "--steps", "3", "-x"]
    without, done = (
        subprocess.run(given, capture_output=True, text=True, cwd=tmp_path, env=environment(), input="typed")
        for given in (words, command("-o", "out", "-q", *words[1:]))
    )
    code = without.returncode if without.returncode >= 0 else 128 - without.returncode
    assert done.returncode == (code or 2)
    assert done.stdout == without.stdout
    ours = done.stderr.removeprefix(without.stderr)
    killed = ending.startswith("os.kill")
    said = f"Error: diagnose found no training step before the run {'was killed by signal 9' if killed else 'ended'}. "
    assert ours.startswith(said) if killed or not ending else ours == ""
    assert ours.count("\n") == (1 if killed or not ending else 0)


def test_a_crash_keeps_what_was_recorded_and_looks_as_without_us(tmp_path: Path) -> None:
    """Errors of a dataset and of an optimizer of the script's own show no frame of ours."""
    text = (
        "class Data(torch.utils.data.Dataset):\n    def __len__(self): return 4\n"
        "    def __getitem__(self, k): raise KeyError(k)\n"
        "class Bad(torch.optim.SGD):\n    def step(self, closure=None): raise ValueError('boom')\n"
        "try:\n    next(iter(torch.utils.data.DataLoader(Data())))\nexcept KeyError:\n"
        "    for i in range(160):\n        step()\n        time.sleep(0.002)\n"
        "    step(Bad(model.parameters(), lr=1))\n"
    )
    script(tmp_path, STEP + text)
    without = plain(tmp_path, "train.py")
    done = profile(tmp_path, "-q", "--steps", 400, "train.py")
    assert (done.code, without.returncode) == (1, 1)
    assert "KeyError" in without.stderr
    assert "boom" in without.stderr
    assert done.stderr == without.stderr
    assert done.files == ["manifest.json", "rank0.trace.json.gz"]
    assert (done.manifest.complete, done.manifest.exit_code, done.rank.ended) == (True, 1, "crashed")
    assert len(steps_in(done.folder / "rank0.trace.json.gz")) == len(done.rank.timing.wall_ns) + 1


def test_losses_are_the_same_with_and_without_us(tmp_path: Path) -> None:
    text = STEP + "for i in range(400):\n    print(step().hex())\n"
    script(tmp_path, text)
    without = plain(tmp_path, "train.py")
    done = profile(tmp_path, "--keep-running", "train.py")
    assert done.stdout == without.stdout
    assert done.stdout.count("\n") == 400
    assert (done.code, done.rank.ended) == (0, "recorded")
    assert done.manifest.exit_code == 0


LONG = STEP + "for i in range(100_000):\n    step()\n    time.sleep(0.01)\n    open('at', 'w').write(str(i))\n"


def wait_until_recording(folder: Path) -> None:
    """The script LONG has made so many steps that those of `--steps 1000` are being recorded."""
    for _ in range(6_000):
        if (folder / "at").exists() and int((folder / "at").read_text() or 0) > 150:
            return
        time.sleep(0.1)
    raise AssertionError("the script does not get on")


def interrupted(folder: Path, code: int, said: str) -> None:
    assert code == 130
    assert said.count("KeyboardInterrupt") == 1
    assert f"Interrupted. See the recording so far with: diagnose analyze {folder / 'out'}" in " ".join(said.split())
    assert len(steps_in(folder / "out" / "rank0.trace.json.gz")) > 10


def test_ctrl_c_in_a_terminal_reaches_the_script_once(tmp_path: Path) -> None:
    """It goes to the whole group; a second one would break into what the script does at its end."""
    text = LONG.replace("\n", "\n    ")
    script(tmp_path, f"try:\n    {text}\nfinally:\n    time.sleep(0.3)\n    print('saved', flush=True)\n")
    words = command("-o", tmp_path / "out", "--no-analyze", "--steps", 1000, "train.py")
    child, terminal = pty.fork()
    if not child:
        os.chdir(tmp_path)
        os.execve(words[0], words, environment())
    wait_until_recording(tmp_path)
    os.write(terminal, b"\x03")
    said = b""
    with contextlib.suppress(OSError):  # Linux tells the end of a terminal so.
        while part := os.read(terminal, 4096):
            said += part
    text = said.decode()
    assert "saved" in text
    assert not any(words in text for words in ("Exception ignored", "sys.excepthook", "During handling"))
    interrupted(tmp_path, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text)


def test_an_interrupt_that_only_we_get_is_passed_on(tmp_path: Path) -> None:
    script(tmp_path, LONG)
    words = command("-o", tmp_path / "out", "--no-analyze", "--steps", 1000, "train.py")
    child = started(tmp_path, *words)
    wait_until_recording(tmp_path)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=600)
    interrupted(tmp_path, child.returncode, stderr)


@pytest.mark.exhaustive
def test_a_script_that_leaves_by_os_exit(tmp_path: Path) -> None:
    script(tmp_path, STEP + "while not os.path.exists('out/rank0.trace.json.gz'):\n    step()\nos._exit(5)\n")
    done = profile(tmp_path, "train.py")
    assert done.code == 5
    assert "rank0 ended without a message: killed, or exited with os._exit." in done.stderr
    assert done.rank.trace == "rank0.trace.json.gz"


def test_a_script_too_short(tmp_path: Path) -> None:
    done = profile(tmp_path, "train.py", 12, text=LOOP)
    assert (done.code, done.stdout) == (2, "whole\n")
    # 1 begins the clock, 10 warm up, 30 are timed, 3 tell the size, 1 + 5 are recorded; else 1 + 5 + 3 + 3 + 1 + 2.
    said = "The run made 12 steps, but recording 5 takes at least 50. Let it make more steps,"
    assert f"{said} or use --warmup 1 --steps 2 (at least 15 steps)." in done.stderr
    assert done.rank.ended == "itself"


@pytest.mark.exhaustive
def test_an_exit_that_the_script_catches_comes_again(tmp_path: Path) -> None:
    script(
        tmp_path,
        STEP
        + "for k in range(2):\n    try:\n        for i in range(1000): step()\n"
        + "    except BaseException: print('caught')\nprint('never')\n",
    )
    done = profile(tmp_path, "train.py")
    assert done.stdout == "caught\ncaught\nnever\n"
    assert done.manifest.complete


@pytest.mark.exhaustive
def test_the_script_s_own_profiler_goes_first(tmp_path: Path) -> None:
    count = "print(sum(one.count for one in own.key_averages() if one.key == 'Optimizer.step#SGD.step'))\n"
    loop = (
        f"with torch.profiler.profile() as own:\n    for i in range(30): step()\n{count}"
        "while not torch.autograd._profiler_enabled(): step()\n"
        f"with torch.profiler.profile() as own: step()\n{count}for i in range(200): step()\n"
    )
    done = profile(tmp_path, "--steps", 8, "train.py", text=STEP + loop)
    assert done.stdout == "30\n1\n"
    # One more than asked for, in whole cycles: steps of a busy machine may seem to have one.
    assert len(done.rank.timing.wall_ns) == done.rank.cycle * math.ceil(8 / done.rank.cycle) + 1
    assert done.stderr.count("profiler started during a recording, so diagnose recorded again afterwards.") == 1


@pytest.mark.exhaustive
def test_a_script_that_always_records_itself(tmp_path: Path) -> None:
    script(tmp_path, STEP + "with torch.profiler.profile():\n    for i in range(1100): step()\n")
    done = profile(tmp_path, "train.py")
    assert "the script records itself with torch.profiler; run it without, or analyze its own trace" in done.stderr
    assert done.code == 2


@pytest.mark.exhaustive
def test_a_recording_that_would_get_large_is_shortened(tmp_path: Path) -> None:
    from diagnose.capture.agent.plan import Plan
    from diagnose.capture.run import prepare, run

    path, plan = script(tmp_path, LOOP), Plan(steps=50, most_bytes=500_000)
    words = [sys.executable, str(path), "100000"]
    done = run(words, prepare(tmp_path / "out", plan, words), plan, lambda what: None)
    (rank,) = done.manifest.ranks
    assert 2 <= len(rank.timing.wall_ns) < 51
    assert f"The timing recording has {len(rank.timing.wall_ns)} steps, as more would not fit 0.5 MB." in rank.notes
    assert len(gzip.decompress((tmp_path / "out" / "rank0.trace.json.gz").read_bytes())) < 600_000


DDP = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
"""


def test_all_ranks_of_a_launcher_are_recorded_in_the_same_steps_and_ended(tmp_path: Path) -> None:
    script(tmp_path, DDP)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = profile(tmp_path, "--", *launcher, "train.py")
    assert done.code == 0, done.stderr[-4000:]
    first, second = done.manifest.ranks
    assert (first.rank, second.rank, first.world_size, second.world_size) == (0, 1, 2, 2)
    assert first.timing.first_step == second.timing.first_step
    assert first.attribution.first_step == second.attribution.first_step
    assert {"rank0.trace.json.gz", "rank1.trace.json.gz", "rank1.detail.json.gz"} <= set(done.files)
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True).stdout
    assert left == ""


@pytest.mark.exhaustive
def test_scaled_gradients_a_schedule_and_several_optimizers(tmp_path: Path) -> None:
    """Gradients of two batches a step, scaled; the scheduler wraps the optimizer's step once more. The optimizer that
    steps most rarely makes the step."""
    loop = (
        'scaler = torch.amp.GradScaler("cpu")\nschedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)\n'
        "second = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for i in range(1000):\n    loss = model(torch.randn(64, 64)).sum()\n    scaler.scale(loss).backward()\n"
        "    if i % 2:\n        scaler.step(optimizer)\n        scaler.update()\n        schedule.step()\n"
        "        optimizer.zero_grad()\n        optimizer.step()\n        second.step()\n"
    )
    done = profile(tmp_path, "train.py", text=STEP + loop)
    for names in steps_in(done.folder / "rank0.trace.json.gz").values():
        assert names.count("Optimizer.step#SGD.step") == 3
        assert names.count("autograd::engine::evaluate_function: SumBackward0") == 2
    assert done.rank.flags.grad_scaler is True
    assert [optimizer.name for optimizer in done.rank.optimizers] == ["SGD", "SGD"]


@pytest.mark.exhaustive
def test_an_optimizer_step_within_torch_compile_is_left_alone(tmp_path: Path) -> None:
    """A profiler that starts in there crashes the process, sooner or later; backward passes are steps instead."""
    loop = (
        'compiled = torch.compile(lambda: optimizer.step(), backend="eager")\n'
        "loader = torch.utils.data.DataLoader(torch.randn(100_000, 64), batch_size=10)\nfor batch in loader:\n"
        "    optimizer.zero_grad()\n    model(batch).sum().backward()\n    compiled()\n    time.sleep(0.01)\n"
    )
    done = profile(tmp_path, "train.py", text=STEP + loop)
    assert (done.code, done.rank.steps_by, done.rank.ended) == (0, "backward", "recorded")
    assert done.manifest.complete


@pytest.mark.exhaustive
def test_a_step_that_is_compiled_and_cannot_be_observed_is_said(tmp_path: Path) -> None:
    loop = 'compiled = torch.compile(lambda: optimizer.step(), backend="eager")\nfor i in range(20):\n    compiled()\n'
    done = profile(tmp_path, "train.py", text=STEP + loop)
    assert (done.code, done.manifest.ranks) == (2, ())
    assert done.manifest.notes == (
        "The optimizer runs inside torch.compile, where diagnose cannot see it. Mark steps with diagnose.record.",
    )


@pytest.mark.exhaustive
def test_a_module_with_its_arguments(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(
        STEP + "print(sys.argv[1:], __name__, __package__)\nfor i in range(1000): step()\n"
    )
    done = profile(tmp_path, "-m", "mine.train", "--steps", "7", "-o", "x")
    assert done.stdout == "['--steps', '7', '-o', 'x'] __main__ mine\n"
    assert (done.code, done.manifest.complete) == (0, True)


def test_a_sitecustomize_of_the_user_is_run_too(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.customized = __file__\n")
    script(tmp_path, "import sys\nprint(sys.customized, any('bootstrap' in path for path in sys.path))\n")
    given = {**environment(), "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{os.environ['PYTHONPATH']}"}
    words = command("-o", "out", "-q", "train.py")
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=given)
    assert done.stdout == f"{tmp_path / 'site' / 'sitecustomize.py'} False\n"


def test_loaders_are_described_and_no_worker_is_left(tmp_path: Path) -> None:
    text = STEP + (
        "class Data(torch.utils.data.Dataset):\n    def __len__(self): return 100_000\n"
        "    def __getitem__(self, index):\n        time.sleep(0.001)\n        return torch.zeros(64)\n"
        "loaders = [torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=workers) for workers in (0, 4)]\n"
        "for batch, _ in zip(*loaders):\n    optimizer.zero_grad()\n    model(batch).sum().backward()\n"
        "    optimizer.step()\n"
    )
    done = profile(tmp_path, "train.py", text=text)
    assert done.code == 0
    assert [(one.dataset, one.num_workers, one.batch_size) for one in done.rank.loaders] == [
        *(("Data", 0, 8), ("Data", 4, 8))
    ]
    assert [one.empty_share is None for one in done.rank.loaders] == [True, False]
    for loader in done.rank.loaders:
        assert loader.items_ns > 8_000_000
    assert len(done.manifest.ranks) == 1
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True).stdout == ""


@pytest.mark.parametrize(("ending", "code"), [("raise ValueError('late')", 1), ("os.kill(os.getpid(), 9)", 137)])
def test_what_fails_after_the_recording_is_passed_on(tmp_path: Path, ending: str, code: int) -> None:
    script(tmp_path, STEP + f"try:\n    for i in range(1000): step()\nfinally:\n    {ending}\n")
    done = profile(tmp_path, "train.py")
    assert (done.code, done.manifest.exit_code) == (code, code)
    assert done.manifest.complete


@pytest.mark.exhaustive
def test_each_epoch_has_an_optimizer_of_its_own(tmp_path: Path) -> None:
    loop = (
        "kept = []\nfor epoch in range(100):\n    kept.append(torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    for i in range(20):\n        step(kept[-1])\n"
    )
    done = profile(tmp_path, "train.py", text=STEP + loop)
    assert (done.code, done.manifest.complete) == (0, True)
    every = done.rank.cycle  # Long steps of a busy machine may look like a cycle, and whole cycles are recorded.
    assert len(done.rank.timing.wall_ns) == -(-5 // every) * every + 1


@pytest.mark.exhaustive
def test_what_a_forked_training_recorded_is_kept(tmp_path: Path) -> None:
    loop = (
        "import multiprocessing\n"
        "def train():\n    while not os.path.exists('out/rank0.trace.json.gz'): step()\n    step()\n"
        "child = multiprocessing.get_context('fork').Process(target=train)\nchild.start()\nchild.join()\n"
    )
    done = profile(tmp_path, "train.py", text=STEP + loop)
    assert (done.rank.ended, done.rank.trace) == ("itself", "rank0.trace.json.gz")
    assert done.rank.unprofiled is not None


@pytest.mark.exhaustive
def test_a_script_that_shows_its_errors_itself_has_crashed_all_the_same(tmp_path: Path) -> None:
    show = "sys.excepthook = lambda kind, error, trace: print('mine', error)\n"
    done = profile(tmp_path, "train.py", text=STEP + show + "for i in range(20): step()\nraise ValueError('boom')\n")
    assert (done.stdout, done.code, done.rank.ended) == ("mine boom\n", 1, "crashed")


def test_an_interrupt_that_the_script_handles_is_its_own(tmp_path: Path) -> None:
    text = (
        "import signal\nstop = []\nsignal.signal(signal.SIGINT, lambda *_: stop.append(1))\n"
        + STEP
        + (
            "i = 0\nwhile not stop:\n    step()\n    time.sleep(0.01)\n    i += 1\n    open('at', 'w').write(str(i))\n"
            "print('saved')\n"
        )
    )
    script(tmp_path, text)
    words = command("-o", tmp_path / "out", "--no-analyze", "--steps", 1000, "train.py")
    child = started(tmp_path, *words)
    wait_until_recording(tmp_path)
    child.send_signal(signal.SIGINT)
    stdout, _ = child.communicate(timeout=600)
    assert (stdout, child.returncode) == ("saved\n", 0)
    assert (tmp_path / "out" / "rank0.trace.json.gz").exists()


def test_a_process_that_the_script_detaches_outlives_the_run(recorded: Done) -> None:
    os.kill(int((recorded.folder.parent / "sleeper").read_text()), 0)


def test_a_folder_that_vanishes_is_told_in_sentences(tmp_path: Path) -> None:
    script(tmp_path, STEP + "import shutil\nfor i in range(20): step()\nshutil.rmtree('out')\nprint('whole')\n")
    done = profile(tmp_path, "train.py")
    assert (done.code, done.stdout) == (2, "whole\n")
    assert "Traceback" not in done.stderr
    assert "diagnose: the run's settings could not be kept (FileNotFoundError: " in done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"Error: Cannot write to {tmp_path / 'out'}: No such file or directory. Its contents may be incomplete."
    )
