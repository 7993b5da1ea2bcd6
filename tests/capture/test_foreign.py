"""Scripts that use profilers and ranges of their own are recorded, and end as they do by themselves."""

from pathlib import Path

import pytest

from tests.capture.scripts import STEP, plain, profile, script

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

OF_ITS_OWN = """
from torch.profiler import profile, record_function, schedule
later = schedule(wait=13, warmup=6, active=6, repeat=3, skip_first=9)
for steps, options in (26, {}), (33, {"with_stack": True}), (15, {"schedule": schedule(wait=1, warmup=2, active=2)}), \\
        (37, {}), (105, {"schedule": later, "profile_memory": True}):
    with record_function("stretch"), profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as own:
        for _ in range(steps): step(), own.step()
print([step() for _ in range(100)][-1])
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
    assert (done.code, done.stdout[:6]) == (0, "whole\n"), done.stderr
    assert "Could not observe" not in done.stderr
    assert done.manifest.complete


def test_a_profiler_in_another_thread_has_its_turn_at_once(tmp_path: Path) -> None:
    """The thread that trains waits for it, so ours cannot end at the end of a step."""
    done = profile(tmp_path, "--keep-running", "train.py", text=STEP + IN_A_THREAD)
    assert (done.code, done.stdout.splitlines()[0]) == (0, "[True, True, True]")
    assert "The script's own profiler started during a recording, so diagnose recorded again afterwards." in done.stderr
    assert done.manifest.complete


def test_a_run_ends_cleanly_while_a_profiler_of_its_own_records(tmp_path: Path) -> None:
    done = profile(tmp_path, "--warmup", "3", "--steps", "2", "train.py", text=STEP + LEFT_RUNNING)
    assert done.code in (0, 2), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [(), ("--keep-running",)])
def test_a_script_that_profiles_itself_in_several_ways(options: tuple[str, ...], tmp_path: Path) -> None:
    done = profile(tmp_path, *options, "--warmup", "3", "--steps", "2", "train.py", text=STEP + OF_ITS_OWN)
    assert done.code == 0 or (done.code == 2 and "recorded" in done.stderr.splitlines()[-1])
    (last,) = plain(tmp_path, "train.py").stdout.splitlines()
    assert done.stdout.splitlines() == [last] or not (options or done.stdout)
