"""What a test says of a budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.contracts.budget import Judged, Kept, What
from diagnose.reports import budget
from diagnose.trace.frames import Site
from tests.reports.alerts import diagnosed, with_finding

pytestmark = pytest.mark.usefixtures("as_for_users")

STEP = Judged(What.STEP, 50e6, Kept.OVER, 71.9e6, 74.3e6, "30 steps without the profiler")
IDLE = Judged(What.IDLE, 0.1, Kept.CANNOT_TELL, 0.05, 0.31, "the 3 ms that recording adds may all be idle")
UNKNOWN = Judged(What.IDLE, 0.1, Kept.CANNOT_TELL, None, None, "no step with work of a GPU was recorded")
BOUNDED = Judged(What.STEP, 50e6, Kept.CANNOT_TELL, None, 60e6, "no step was timed without the profiler")


def test_each_limit_is_a_sentence() -> None:
    assert budget.told(STEP) == (
        "A step takes 71.9 ms to 74.3 ms (30 steps without the profiler); the limit is 50.0 ms."
    )
    assert budget.told(IDLE) == (
        "The GPU is idle for 5.0 % to 31.0 % of a step (the 3 ms that recording adds may all be idle);"
        " the limit is 10.0 %."
    )
    assert budget.told(UNKNOWN) == (
        "The GPU is idle for an unknown part of a step: no step with work of a GPU was recorded."
    )
    assert budget.told(BOUNDED) == (
        "A step takes at most 60.0 ms (no step was timed without the profiler); the limit is 50.0 ms."
    )


def test_a_failing_test_says_what_to_fix_and_where(tmp_path: Path) -> None:
    found = with_finding(diagnosed(tmp_path), site=Site("train.py", 4, "train"))
    assert budget.exceeded([STEP, IDLE], found, "out") == (
        "The training exceeds its budget. A step takes 71.9 ms to 74.3 ms (30 steps without the profiler);"
        " the limit is 50.0 ms.\n"
        "What to fix:\n"
        "1. The range `slow` takes long (TT01) saves 40.0 ms (40.0 %)\n"
        "   at train.py:4 (train)\n"
        "   Drop it.\n"
        "The recording is in out: diagnose analyze out"
    )


def test_what_cannot_be_told_is_said() -> None:
    assert budget.unsure([STEP, UNKNOWN]) == (
        "Cannot tell whether the training keeps its budget."
        " The GPU is idle for an unknown part of a step: no step with work of a GPU was recorded."
    )
