"""How the budget is shared: what one trial leaves, another one may use. Runs are made up, and take a second each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import pytest

from diagnose.trials import arms
from diagnose.trials.arms import Arm, Size
from diagnose.trials.protocol import Bench
from tests.trials.test_heat import arm
from tests.trials.test_protocol import candidate

FUSED, WORKERS = candidate("patch:torch.optim(fused=True)"), candidate("patch:DataLoader(num_workers=4)")


class Timed(Bench):
    """Of which a run takes a second."""

    @property
    def left_s(self) -> float:
        return self.budget_s - self._count


def noise() -> Iterator[float]:
    return cycle((1.0, 1.04, 0.97, 1.05, 0.95, 1.02, 0.99))


def test_a_trial_goes_on_with_what_others_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 s the script as it is takes 2, and each trial gets two pairs: 2 s are left."""
    differ = noise()

    def run_arm(
        command: Sequence[str], folder: Path, size: Size, fixes: Sequence[str], written: Sequence[str] = ()
    ) -> Arm:
        return arm(5e6) if WORKERS.trial in fixes else arm(10e6 * next(differ) if FUSED.trial in fixes else 10e6)

    monkeypatch.setattr(arms, "run_arm", run_arm)
    made = Timed(["train"], Path(), Size(10, 30, 0.0, 1.0), 2, 12.0, lambda standing: None)
    made.begin()
    first = made.measure([FUSED], None, rest=1)
    assert (first.verdict, first.why, made.spent) == ("inconclusive", "The budget was spent after 2 pairs.", {0})
    second = made.measure([WORKERS], None)
    assert (second.verdict, second.pairs, made.spent) == ("keep", 2, {0})
    more = made.go_on(0, [FUSED], None)
    assert (more.pairs, more.why) == (3, "The budget was spent after 3 pairs.")
    assert made.trials == [more, second]
    assert len(made.without) == 2 + 3 + 2
