"""Scripts that use profilers and ranges of their own are recorded, and end as they do by themselves."""

from pathlib import Path

import pytest

from benchmarks.profilers import MODES, tried
from tests.capture.scripts import STEP, profile, script

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

IN_A_THREAD = """
import threading
def own():
    with torch.profiler.profile() as profile:
        torch.ones(3).sum()
    names.append({one.name for one in profile.events()} >= {"aten::ones", "aten::sum"})
names = []
for i in range(400):
    step()
    if torch.autograd._profiler_enabled() and len(names) < 3:
        thread = threading.Thread(target=own)
        thread.start()
        thread.join()
print(names)
"""

LEFT_RUNNING = """
for i in range(400):
    step()
    if i == 90:
        torch.profiler.profile().start()
"""


def test_ranges_that_are_open_from_one_recording_to_the_next(tmp_path: Path) -> None:
    """What is opened in one recording and closed in the next wrote to freed memory: three of four runs crashed."""
    epoch = "    with torch.profiler.record_function('epoch'):\n        for i in range(5): step()\n"
    script(tmp_path, STEP + f"for epoch in range(60):\n{epoch}print('whole')\n")
    done = profile(tmp_path, "--keep-running", "--warmup", "3", "--steps", "2", "train.py")
    assert (done.code, done.stdout.splitlines()[0]) == (0, "whole")
    assert done.manifest.complete


def test_a_profiler_in_another_thread_has_its_turn_at_once(tmp_path: Path) -> None:
    """The thread that trains waits for it, so ours cannot end at the end of a step."""
    script(tmp_path, STEP + IN_A_THREAD)
    done = profile(tmp_path, "--keep-running", "train.py")
    assert (done.code, done.stdout.splitlines()[0]) == (0, "[True, True, True]")
    assert "The script's own profiler started during a recording, so diagnose recorded again afterwards." in done.stderr
    assert done.manifest.complete


def test_a_run_ends_cleanly_while_a_profiler_of_its_own_records(tmp_path: Path) -> None:
    script(tmp_path, STEP + LEFT_RUNNING)
    done = profile(tmp_path, "--warmup", "3", "--steps", "2", "train.py")
    assert done.code in (0, 2), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_scripts_that_profile_themselves(mode: str) -> None:
    """One of those that `python -m benchmarks.profilers` runs; it crashed each time."""
    assert tried(7, mode) in ("fine", "not recorded, and said so")
