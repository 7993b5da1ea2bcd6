"""Every sample shows what it is named for, says so of itself, and is diagnosed as such."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import diagnose
from diagnose.facts.host import HostActivity
from diagnose.facts.steps import Measure

SAMPLES = Path(__file__).parent.parent / "sample_traces"
FOLDERS = sorted(folder for folder in SAMPLES.iterdir() if folder.is_dir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_recording_still_shows_what_its_program_promises(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"sample_{folder.name}", folder / "make.py")
    assert spec is not None
    assert spec.loader is not None
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
    assert about["command"] == f"python sample_traces/{folder.name}/make.py"


def test_all_samples_together_are_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*")) < 25_000_000


def test_the_small_training_on_a_cpu() -> None:
    found = diagnose.analyze(SAMPLES / "cpu_mlp" / "trace.json.gz")
    assert found.steps is not None
    assert (found.steps.measure, found.steps.recorded, found.steps.used) == (Measure.HOST, 6, 5)
    assert found.breakdown is None
    assert found.host is not None
    assert sum(found.host.parts.values()) == found.host.step_ns
    assert found.host.parts[HostActivity.OPS] > found.host.step_ns / 2
    assert found.input is not None
    assert (found.input.fetches, found.input.in_process, found.input.exposed_ns) == (5, True, None)
    assert found.ops is not None
    assert {"aten::mm", "aten::addmm"} == {op.name for op in found.ops[:2]}
