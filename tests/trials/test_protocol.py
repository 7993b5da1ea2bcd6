"""Pairs of runs of a real training: a fix that makes it slower is reported as that."""

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnose.contracts.finding import Fix
from diagnose.trials.arms import Size
from diagnose.trials.course import report
from diagnose.trials.protocol import Bench
from diagnose.trials.selection import Candidate, CannotTry
from tests.capture.scripts import script
from tests.trials.scripts import steady

pytestmark = pytest.mark.slow

IN_MEMORY = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(100_000, 4))
    while True:
        for (rows,) in DataLoader(data, batch_size=None, sampler=range(0, 100_000)):
            optimizer.zero_grad()
            model(rows).square().sum().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
"""
"""Steps take less than a millisecond, and to send a row from a worker takes longer than to read it."""


def bench(folder: Path, text: str, budget_s: float) -> Bench:
    path = script(folder, text)
    return Bench([sys.executable, str(path)], folder, Size(5, 200, 0.0, 30.0), 2, budget_s, lambda said: None)


def candidate(trial: str) -> Candidate:
    return Candidate("some_rule", 1, Fix("Do it.", trial=trial), trial, None)


@pytest.mark.exhaustive
def test_a_fix_that_makes_it_slower_is_reported_as_that(tmp_path: Path) -> None:
    made = bench(tmp_path, IN_MEMORY, 900)
    made.begin()
    found = made.measure([candidate("patch:DataLoader(num_workers=1)")], None)
    assert (found.verdict, found.losses) == ("slower", "same")
    assert found.measured.high < 1
    assert found.steps == 200
    told = report(made, (), complete=True)
    assert (told.keep, told.trials) == ((), (found,))
    assert told.baseline.arms == found.pairs
    assert told.baseline.step_ns.low <= told.baseline.step_ns.likely <= told.baseline.step_ns.high


def test_a_fix_with_which_the_script_fails_is_inconclusive_and_says_why(tmp_path: Path) -> None:
    text = steady(steps=100_000).replace("torch.nn.Linear(64, 10)", "torch.nn.Linear(64, 10, dtype=torch.cfloat)")
    text = text.replace("model(torch.randn(64, 64))", "model(torch.randn(64, 64, dtype=torch.cfloat)).abs()")
    made = bench(tmp_path, text, 300)
    made.begin()
    found = made.measure([candidate("patch:torch.optim(fused=True)")], None)
    assert (found.verdict, found.measured) == ("inconclusive", None)
    assert found.why.startswith("The script ended with exit code 1: RuntimeError: ")


def test_nothing_is_tried_on_a_script_that_fails_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(
        CannotTry, match=r"The unmodified script could not be measured\. The script ended with exit code"
    ):
        bench(tmp_path, "raise ValueError('no data')", 300).begin()


RAISES = """
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(20)])
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for number in range(1_000_000):
    optimizer.zero_grad(set_to_none=False)
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    if number > 40 and optimizer.param_groups[0]["fused"]:
        raise ValueError("fused")
"""


@pytest.mark.exhaustive
def test_after_a_switch_that_ends_the_script_another_run_measures_the_rest(tmp_path: Path) -> None:
    made = bench(tmp_path, RAISES, 300)
    made.size = Size(5, 10, 0.0, 30.0)
    some = [replace(candidate(trial), number=number) for number, trial in enumerate(SWITCHES, 1)]
    assert made.screen(some, 30.0) == []
    raised, zeroed = made.in_blocks
    assert (raised.verdict, raised.measured) == ("inconclusive", None)
    assert raised.why == "It fails: The script ended with exit code 1: ValueError: fused."
    assert (zeroed.numbers, zeroed.measured_by) == ((2,), "blocks")
    assert zeroed.measured is not None
    assert zeroed.injected == "zero_grad() at train.py:8: set_to_none False -> True"
    told = report(made, (), complete=True)
    assert told.trials == (raised, zeroed)
    assert told.baseline.arms == 0


@pytest.mark.exhaustive
def test_a_script_that_ends_is_started_again_and_its_blocks_are_pooled(tmp_path: Path) -> None:
    """Of 64 steps: to warm up, to time, and three pairs of blocks of five steps need more."""
    text = RAISES.replace("range(1_000_000)", "range(64)").replace("import torch", "import time, torch")
    text = text.partition("    if")[0] + '    time.sleep(0.05 if optimizer.param_groups[0]["fused"] else 0.1)\n'
    made = bench(tmp_path, text, 300)
    made.size = Size(5, 10, 0.0, 10.0)
    assert made.screen([candidate(SWITCHES[0])], 120.0) == []
    (fused,) = made.in_blocks
    assert made._count > 1
    assert (fused.verdict, fused.measured_by) == ("keep", "blocks")


@pytest.mark.exhaustive
def test_a_script_too_short_for_blocks_is_timed_as_a_whole(tmp_path: Path) -> None:
    """Of 12 steps one begins the clock, one warms up and one is the last."""
    made = bench(tmp_path, steady(steps=12), 300)
    assert made.screen([candidate(SWITCHES[0])], 60.0) == [candidate(SWITCHES[0])]
    made.begin()
    found = made.measure([candidate(SWITCHES[0])], None)
    assert (found.steps, found.pairs >= 2, made.size.warmup) == (9, True, 0)


SWITCHES = "patch:torch.optim(fused=True)", "patch:zero_grad(set_to_none=True)"


def test_nothing_is_screened_in_a_script_that_fails_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(
        CannotTry, match=r"The unmodified script could not be measured\. The script ended with exit code"
    ):
        bench(tmp_path, "raise ValueError('no data')", 300).screen([candidate(SWITCHES[0])], 30.0)
