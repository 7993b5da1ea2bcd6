"""Every sample shows what it is named for, says so of itself, and is diagnosed as such; every training trains."""

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import diagnose
from diagnose.facts.core.breakdown import TimeCause
from diagnose.facts.core.steps import Measure
from diagnose.rulekit.page import built_in_rules

SAMPLES = Path(__file__).parent.parent / "sample_traces"
FOLDERS = sorted(path.parent for path in SAMPLES.glob("recorded/*/trace.json.gz"))
TRAININGS = sorted(path.parent for path in SAMPLES.glob("trainings/*/train.py"))
GROUPS = {
    "recorded/*": {"make.py", "about.toml", "trace.json.gz"},
    "trainings/*": {"train.py"},
    "planted/*/*": {"make.py", "about.toml"},
    "controls/*": {"make.py", "about.toml"},
    "jobs/*": {"manifest.json"},
}
"""Where folders of samples are, and what each holds at least."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_recording_still_shows_what_its_program_promises(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"sample_{folder.name}", folder / "make.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    program.verify(folder / "trace.json.gz")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_sample_says_what_it_is(folder: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("tomllib came with Python 3.11")
    import tomllib

    about = tomllib.loads((folder / "about.toml").read_text(encoding="utf-8"))
    assert {"title", "shows", "device", "torch", "command"} <= set(about)
    assert about["command"] == f"python sample_traces/recorded/{folder.name}/make.py"


def folders(pattern: str) -> list[Path]:
    return [path for path in sorted(SAMPLES.glob(pattern)) if path.is_dir() and path.name != "__pycache__"]


def test_every_folder_is_in_its_group() -> None:
    assert {folder.name for folder in folders("*")} == {pattern.partition("/")[0] for pattern in GROUPS}
    for pattern, files in GROUPS.items():
        assert folders(pattern)
        for folder in folders(pattern):
            assert files <= {path.name for path in folder.iterdir()}, folder


def test_planted_cases_are_grouped_as_rules_are() -> None:
    families = {path.parent.name for path in built_in_rules().glob("*/*.py")}
    assert {folder.name for folder in folders("planted/*")} <= {*families, "mixed"}


def test_all_samples_together_are_small() -> None:
    files = [path for path in SAMPLES.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) <= 15_000_000


def test_the_small_training_on_a_cpu() -> None:
    found = diagnose.analyze(SAMPLES / "recorded" / "cpu_mlp" / "trace.json.gz")
    assert (found.steps.measure, found.steps.recorded, found.steps.used) == (Measure.HOST, 6, 5)
    assert found.breakdown is None
    assert sum(found.host.parts.values()) == found.host.step_ns
    assert found.host.parts[TimeCause.OPS] > found.host.step_ns / 2
    assert (found.input.fetches, found.input.in_process, found.input.exposed_ns) == (5, True, None)
    assert {"aten::mm", "aten::addmm"} == {op.name for op in found.ops[:2]}


SMALL = {
    "image_classifier": "--steps 4 --images 32 --batch-size 4 --image-size 16 --width 8 --blocks 1",
    "small_gpt": "--steps 4 --batch-size 2 --context 16 --layers 2 --heads 2 --dim 16 --vocab 64 --eval-every 2",
}
"""Options of each training that let it end within seconds. With four channels instead of eight, convolutions in the
channels-last format write beyond their memory (torch 2.13, on an AMD EPYC).
"""

FIXED = {"image_classifier": "--pin-memory --channels-last --fused", "small_gpt": "--flash --fused"}
"""Those that make it faster without other numbers, but for rounding."""


def losses(training: str, options: str) -> list[float]:
    """The loss of every step of a training that runs to its end."""
    script = str(SAMPLES / "trainings" / training / "train.py")
    command = [sys.executable, script, *SMALL[training].split(), *options.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"step \d+ loss (\S+)", done.stdout)]


def test_all_trainings_are_run() -> None:
    assert [folder.name for folder in TRAININGS] == sorted(SMALL) == sorted(FIXED)


@pytest.mark.slow
@pytest.mark.parametrize("training", sorted(SMALL))
def test_a_training_trains_and_its_fixes_change_no_number(training: str) -> None:
    pytest.importorskip("torch")
    found = losses(training, "")
    assert len(found) == 4
    assert all(math.isfinite(loss) for loss in found)
    assert len(set(found)) == 4
    assert losses(training, "--seed 1") != found
    assert losses(training, FIXED[training]) == pytest.approx(found, rel=1e-3)
