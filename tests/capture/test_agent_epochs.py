"""Where epochs begin and how long they take, by a clock that the test sets."""

import math
import time
from collections import deque
from pathlib import Path

import msgspec
import pytest

from diagnose.capture.agent.clocks import Cycle, cycle, whole_epoch
from diagnose.capture.agent.steps import Epochs
from diagnose.trace import manifest
from tests.capture import scripts
from tests.exhaustive import some_of


class Run:
    """A training whose clock goes as it is told, in ns."""

    def __init__(self) -> None:
        self.now, self.number, self.epochs = 0, 0, Epochs()

    def between(self, ns: int = 30, starting: int = 20, loader: str = "train", kind: str | None = None) -> None:
        """Something else, then an iterator that gives its first batch."""
        self.now += ns
        self.epochs.begins(loader, kind)
        self.now += starting
        self.epochs.got(loader)

    def train(self, steps: int, loader: str | None = "train", step_ns: int = 10) -> None:
        """Each step takes a batch at once."""
        for _ in range(steps):
            if loader is not None:
                self.epochs.got(loader)
            self.now += step_ns
            self.epochs.step_ended(self.number)
            self.number += 1

    def found(self) -> manifest.Epochs | None:
        return msgspec.convert(self.epochs.found(), manifest.Epochs | None)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    made = Run()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: made.now)
    return made


def test_whole_epochs_have_what_is_between_them_as_often(run: Run) -> None:
    """Of steps 2 to 9 the fourth and the eighth begin an epoch: 8 x 10 and twice 30 + 20."""
    run.between(starting=500)
    run.train(2, step_ns=77)
    run.train(2)
    run.epochs.steady(2)
    run.between()
    run.train(4)
    run.between()
    run.train(2)
    run.epochs.close()
    run.train(2, step_ns=9_000)
    run.between(7_000)
    run.train(1)
    assert run.found() == manifest.Epochs(
        began=(0, 4, 8, 12), steps=4, timed=8, step_ns=22, first_step_ns=60, between_ns=30, starting_ns=20
    )


def test_steps_that_are_not_steady_are_in_no_mean(run: Run) -> None:
    run.between()
    run.train(4, step_ns=1_000)
    run.between()
    run.train(3)
    assert run.found() == manifest.Epochs(began=(0, 4), steps=4)
    run.epochs.steady(3)
    assert run.found() == manifest.Epochs(began=(0, 4), steps=4)
    run.train(1)
    run.between()
    run.train(1)
    found = run.found()
    assert (found.timed, found.step_ns) == (4, 22)  # Steps 5 to 8: three of 10, and one of 60.


def test_evaluation_by_a_loader_of_its_own_is_between_epochs(run: Run) -> None:
    run.between(0, 0)
    run.train(3)
    run.epochs.steady(2)
    for _ in range(2):
        run.between(5, 6, loader="evaluation")
        for _ in range(9):
            run.epochs.got("evaluation")
        run.now += 40
        run.between(1, 20)
        run.train(3)
    assert run.found() == manifest.Epochs(
        began=(0, 3, 6), steps=3, timed=6, step_ns=10 + 72 // 3, first_step_ns=82, between_ns=52, starting_ns=20
    )


def test_loaders_made_anew_for_each_epoch_by_one_line_are_one(run: Run) -> None:
    for number in range(3):
        run.between(loader=f"train{number}", kind="line 7")
        run.train(5, loader=f"train{number}")
        run.between(loader=f"evaluation{number}", kind="line 7")
    found = run.found()
    assert (found.began, found.steps) == ((0, 5, 10), 5)


def test_a_script_that_looks_at_a_batch_first_has_not_begun_an_epoch(run: Run) -> None:
    run.between()
    run.between()
    run.train(2)
    assert run.found() == manifest.Epochs(began=(0,))


def test_a_loader_that_gives_few_steps_a_batch_has_no_epochs_of_the_training(run: Run) -> None:
    assert run.found() is None
    for _ in range(3):
        run.train(4, loader=None)
        run.between(loader="evaluation")
    assert run.found() is None


def test_steps_that_are_counted_anew_forget_what_was_before(run: Run) -> None:
    run.between()
    run.train(2)
    run.number = 30
    run.train(1)
    run.between()
    run.train(6)
    run.between()
    run.train(1)
    found = run.found()
    assert (found.began, found.steps) == ((31, 37), 6)


def test_of_an_epoch_whose_steps_were_not_all_kept_there_is_no_mean(run: Run) -> None:
    run.epochs._ends_ns = deque(maxlen=5)
    run.between()
    run.train(7)
    run.between()
    run.train(7)
    run.epochs.steady(10)
    found = run.found()
    assert (found.steps, found.step_ns) == (7, None)


def test_place_in_an_epoch() -> None:
    found = manifest.Epochs(began=(0, 32), steps=32)
    assert [found.place(number) for number in (0, 31, 32, 40, 64)] == [0, 31, 0, 8, None]
    assert manifest.Epochs(began=(32,)).place(31) is None


def known(steps: int, step_ns: int, first_step_ns: int) -> dict[str, object]:
    return {"steps": steps, "step_ns": step_ns, "first_step_ns": first_step_ns, "began": [0, 8, 16]}


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (known(8, 200, 900), Cycle(8, 16, 9.0, epoch=True)),  # The others take 100.
        (known(8, 110, 180), None),  # 80 of 880 ns are between epochs: less than a tenth.
        (known(11, 200, 1_200), None),  # Longer than what was timed.
        (known(1, 200, 200), None),
        ({"began": [0], "steps": None}, None),
        (None, None),
    ],
)
def test_short_epochs_are_cycles(epochs: dict[str, object] | None, expected: Cycle | None) -> None:
    assert whole_epoch(epochs, 10) == expected


def test_a_long_step_that_begins_an_epoch_is_of_no_cycle() -> None:
    """Steps 13 and 20 are long, and an epoch begins with 20."""
    times = [10] * 3 + [50] + [10] * 6 + [900] + [10] * 9
    assert cycle(10, times) == Cycle(7, 20, 47.5)
    assert cycle(10, times, known(50, 30, 900) | {"began": [0, 20]}) == Cycle()


def test_of_epochs_that_are_recorded_whole_the_user_is_told() -> None:
    assert Cycle(8, 16, 9.0, epoch=True).said == (
        "An epoch has 8 steps, with long pauses between epochs. Recording whole epochs if they fit."
    )


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def batches(count, **more):
    return DataLoader(TensorDataset(torch.arange(2.0 * count).reshape(-1, 1)), batch_size=2, **more)

if __name__ == "__main__":
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader, evaluated = batches(9, **MORE), batches(3)
    for _ in range(60):
        for (x,) in loader:
            model(x).sum().backward()
            optimizer.step()
        for (x,) in evaluated:
            model(x)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "kept"), some_of([(0, False), (1, False), (1, True)], [(1, True)]))
def test_epochs_of_a_recorded_training(tmp_path: Path, workers: int, kept: bool) -> None:
    """An epoch has nine steps, whatever evaluation takes, also where workers are kept."""
    pytest.importorskip("torch")
    scripts.script(tmp_path, SCRIPT.replace("MORE", str({"num_workers": workers, "persistent_workers": kept})))
    done = scripts.profile(tmp_path, "--no-analyze", "train.py")
    assert done.code == 0, done
    rank, found = done.rank, done.rank.epochs
    assert found.began == tuple(range(0, 9 * len(found.began), 9))
    assert (found.steps, found.timed % 9) == (9, 0)
    assert 0 < found.between_ns + found.starting_ns < found.first_step_ns < 9 * found.step_ns
    # In whole cycles: of epochs, or of long steps that a busy machine seems to have.
    assert len(rank.timing.wall_ns) == rank.cycle * math.ceil(5 / rank.cycle) + 1
    assert found.place(rank.timing.first_step) == rank.timing.first_step % 9
