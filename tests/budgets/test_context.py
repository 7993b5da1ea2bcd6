"""`with diagnose.budget(...)` around real trainings on the CPU. Sleeps, not speed, decide what is slow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.capture.scripts import STEP, plain, script

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

SLOW = STEP + "import diagnose\n\n\ndef waiting():\n    step()\n    time.sleep(0.02)\n\n"
"""A step of `waiting` takes 20 ms or more."""

MARKED = """
with diagnose.budget({limits}, steps=3, warmup=5) as budget:
    while not budget.finished:
        waiting()
        budget.step()
"""
FOUND = """
with diagnose.budget({limits}, steps=3, warmup=5) as budget:
    for _ in range({steps}):
        waiting()
"""
SAYS = 'print(budget.diagnosis is not None, *(f"{one.what.value}={one.kept.value}" for one in budget.judged))\n'


def run(folder: Path, text: str, before: str = SLOW) -> tuple[int, str, str]:
    """Exit code, output and errors of the script. Temporary folders are made in `tmp` of the folder."""
    (folder / "tmp").mkdir()
    script(folder, before + text)
    os.environ["TMPDIR"] = str(folder / "tmp")
    try:
        done = plain(folder, "train.py")
    finally:
        del os.environ["TMPDIR"]
    return done.returncode, done.stdout, done.stderr


def kept(folder: Path) -> list[str]:
    """What is left of temporary recordings."""
    return [path.name for path in (folder / "tmp").iterdir() if path.name.startswith("diagnose-budget-")]


def test_a_training_within_its_budget_leaves_nothing_but_what_is_asked_for(tmp_path: Path) -> None:
    """The second time with a limit that cannot be told without a GPU, and into a folder; the last of too few steps."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    text = MARKED.format(limits='step="30s"') + SAYS
    text += MARKED.format(limits='step="30s", idle="10%", folder="out"') + SAYS
    text += FOUND.format(limits='step="30s"', steps=4) + SAYS
    code, said, errors = run(tmp_path, text)
    assert code == 0
    assert said.splitlines() == [*("True step=within", "True step=within idle=cannot_tell", "False step=cannot_tell")]
    assert "no step with work of a GPU was recorded" in errors
    assert "BudgetWarning: Cannot tell whether the training keeps its budget. A step takes an unknown time" in errors
    assert "too few steps" in errors
    assert errors.count("BudgetWarning") == 2
    assert (tmp_path / "out" / "rank0.trace.json.gz").is_file()
    assert len(kept(tmp_path)) <= 1  # Of the last.


@pytest.mark.parametrize("how", [MARKED, FOUND.replace("{steps}", "80")], ids=["marked", "found"])
def test_a_training_that_is_too_slow_fails_with_what_to_fix(tmp_path: Path, how: str) -> None:
    """Steps are marked by the code, or end with the optimizer's."""
    code, _, errors = run(tmp_path, how.format(limits='step="15ms"'))
    assert code == 1
    said = errors[errors.index("BudgetExceeded: ") :]
    assert "diagnose.budgets.context.BudgetExceeded: The training exceeds its budget. A step takes" in errors
    assert "steps without the profiler); the limit is 15.0 ms." in said
    assert "What to fix:\n1. " in said
    assert "at train.py:" in said
    (folder,) = kept(tmp_path)
    assert f"diagnose analyze {tmp_path}/tmp/{folder}" in said


def test_an_error_of_the_training_stays_what_it_is(tmp_path: Path) -> None:
    code, _, errors = run(tmp_path, 'with diagnose.budget(step="1ns", steps=3, warmup=5): 1 / 0', "import diagnose\n")
    assert code == 1
    assert errors.strip().endswith("ZeroDivisionError: division by zero")
    assert "Budget" not in errors
    assert kept(tmp_path) == []


def test_ranks_need_a_folder_that_they_share(tmp_path: Path) -> None:
    text = 'os.environ |= {"RANK": "0", "WORLD_SIZE": "2"}\nwith diagnose.budget(step="1s"): pass'
    code, _, errors = run(tmp_path, text, "import os, diagnose\n")
    assert code == 1
    assert errors.strip().endswith("ValueError: Several ranks train. Set the same folder for all of them.")
